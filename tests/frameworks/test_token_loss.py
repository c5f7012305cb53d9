"""The loss of tokens counts each label the same, however a batch is cut: against a whole-batch loop by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from test_torch_reference import draw_weights, epoch_order
from torch.nn import functional

from trainwright.config import load
from trainwright.datasets.base import Split
from trainwright.datasets.samples.arrays import Arrays
from trainwright.datasets.text import Windows
from trainwright.frameworks.base import LearnerInputs
from trainwright.frameworks.support.prefetcher import Samples
from trainwright.frameworks.torch.compiling import compiled_token_loss
from trainwright.frameworks.torch.learner import TorchLearner
from trainwright.frameworks.torch.losses.base import build_total_loss
from trainwright.frameworks.torch.losses.labels import label_counts
from trainwright.frameworks.torch.models.gpt import Gpt
from trainwright.order import SampleOrder
from trainwright.plugins import task_for
from trainwright.runs.catalog import Catalog
from trainwright.types import NO_LABEL, ArraySpec, Batch, DataInfo, Ids

ROWS, LENGTH, VOCABULARY, SEED = 9, 6, 20, 3


def rows() -> dict[str, np.ndarray]:
    """Return rows with 6, 1, 0, 4 ... labels."""
    drawn = np.random.default_rng(0)
    tokens = drawn.integers(0, VOCABULARY, (ROWS, LENGTH))
    labels = drawn.integers(0, VOCABULARY, (ROWS, LENGTH))
    for row, count in enumerate((6, 1, 0, 4, 2, 6, 3, 1, 5)):
        labels[row, count:] = NO_LABEL
    return {"input_ids": tokens, "labels": labels}


class Rows:
    """The same rows, read batch by batch."""

    def __len__(self) -> int:
        return ROWS

    def take(self, ids: Ids) -> Batch:
        return {name: array[ids] for name, array in rows().items()}

    def fingerprint(self) -> str:
        return "rows"


def info() -> DataInfo:
    return DataInfo(
        "language_modeling", {"input_ids": ArraySpec((LENGTH,), "int64")}, VOCABULARY, target="labels"
    )


def step(split: Split, training: Mapping[str, Any], ranks: int = 1) -> tuple[float, dict[str, torch.Tensor]]:
    """Return the loss of one step, and the weights after it; the rate is 1."""
    whole = {
        "experiment": {"seed": SEED},
        "data": {"type": "text", "path": "x.txt"},
        "model": {"type": "gpt", "params": {"hidden_size": 16, "num_layers": 1, "num_heads": 2}},
        "training": {"device": "cpu", "optimizer": {"type": "sgd"}, "max_steps": 1, **training},
        "distributed": {"virtual": {"data": ranks}},
    }
    config = load(whole, adapters=Catalog()).config
    order = SampleOrder(ROWS, config.training.batch_size, SEED)
    learner = TorchLearner(LearnerInputs(config, info(), config.model.params, 1, {"train": split}, order))
    (loss,) = learner.read([learner.step(0, 1.0).loss])
    native = learner.model().native
    return loss, {name: tensor.detach().clone() for name, tensor in native.named_parameters()}


def by_hand(batch: int) -> tuple[float, dict[str, torch.Tensor]]:
    """Return the same of one pass over the whole batch, by torch's own mean over the labels."""
    model = draw_weights(Gpt(VOCABULARY, LENGTH, 16, 1, 2), SEED, 0.02 / 2**0.5)
    ids = epoch_order(SEED, 0, ROWS)[:batch]
    tokens, labels = (torch.from_numpy(array[ids]) for array in rows().values())
    loss = functional.cross_entropy(model(tokens).flatten(0, 1), labels.flatten(), ignore_index=NO_LABEL)
    loss.backward()
    return loss.item(), {name: (one - one.grad).detach() for name, one in model.named_parameters()}


@pytest.mark.parametrize("kind", [Arrays, Rows])
@pytest.mark.parametrize(
    ("batch", "microbatch", "ranks"), [(9, 9, 1), (9, 1, 1), (9, 4, 1), (9, 2, 2), (8, 3, 4), (8, 1, 8)]
)
def test_each_cut_of_a_batch_gives_the_step_by_hand(
    kind: type, batch: int, microbatch: int, ranks: int
) -> None:
    split = Arrays(rows()) if kind is Arrays else Rows()
    loss, weights = step(split, {"batch_size": batch, "microbatch_size": microbatch}, ranks)
    expected, expected_weights = by_hand(batch)
    assert loss == pytest.approx(expected, rel=1e-6)
    for name, tensor in expected_weights.items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_a_compiled_loss_is_that_of_a_formula_in_float64(precision: str) -> None:
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    torch.manual_seed(0)
    logits = (3 * torch.randn(ROWS, LENGTH, VOCABULARY)).to(dtype).requires_grad_()
    labels = torch.from_numpy(rows()["labels"])
    loss = compiled_token_loss(build_total_loss("token_cross_entropy", task_for(info())))
    value = loss({"logits": logits, "hidden": None}, {"labels": labels})
    value.backward()

    counted = labels != NO_LABEL
    p = torch.softmax(logits.detach().double(), dim=2)
    picked = p.gather(2, labels.clamp(min=0)[..., None])[..., 0]
    assert value.item() == pytest.approx(-picked.log()[counted].sum().item(), rel=1e-6)
    expected = (p - functional.one_hot(labels.clamp(min=0), VOCABULARY)) * counted[..., None]
    torch.testing.assert_close(
        logits.grad, expected.to(dtype), rtol=1e-6 if precision == "fp32" else 8e-3, atol=1e-7
    )


@pytest.mark.soak
def test_a_compiled_step_is_the_one_by_hand() -> None:
    given = {"batch_size": 9, "microbatch_size": 4, "compile": True}
    loss, weights = step(Arrays(rows()), given)
    expected, expected_weights = by_hand(9)
    assert loss == pytest.approx(expected, rel=1e-6)
    for name, tensor in expected_weights.items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-5, atol=1e-6)


def test_rows_with_as_many_labels_need_no_counts() -> None:
    task = task_for(info())
    even = {name: array[[0, 5]] for name, array in rows().items()}
    windows = Windows(np.arange(20, dtype=np.uint8), 6, every_byte=False)
    assert label_counts(Arrays(even), task, "auto") is None
    assert label_counts(windows, task, "auto") is None
    assert label_counts(Arrays(rows()), task, "mine:loss") is None
    counts = label_counts(Windows(np.arange(20, dtype=np.uint8), 6, every_byte=True), task, "auto")
    assert counts is not None
    assert counts(Samples(np.arange(4), 0)).tolist() == [6, 6, 6, 1]
