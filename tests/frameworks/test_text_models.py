"""The models of texts: against row after row by hand, without any padding."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_torch_reference import draw_weights, epoch_order
from torch import Tensor, nn
from torch.nn import functional

import trainwright
from small_runs import SMALL
from trainwright.config import load
from trainwright.datasets.samples.arrays import Arrays
from trainwright.errors import ModelError
from trainwright.frameworks.base import LearnerInputs
from trainwright.frameworks.torch.learner import TorchLearner
from trainwright.frameworks.torch.models import build_model
from trainwright.frameworks.torch.params import MODELS
from trainwright.order import SampleOrder
from trainwright.runs.catalog import Catalog
from trainwright.types import ArraySpec, DataInfo, features_spec

ROWS, LENGTH, VOCABULARY, CLASSES, SEED = 9, 7, 20, 3, 3
SPEC = ArraySpec((LENGTH,), "int64")
INFO = DataInfo("classification", {"input_ids": SPEC, "attention_mask": SPEC}, CLASSES, vocab_size=VOCABULARY)
LENGTHS = (7, 1, 4, 2, 6, 7, 3, 1, 5)
ALL = [
    ("lstm", {"bidirectional": True, "hidden_size": 6, "embedding_dim": 5}),
    ("lstm", {"num_layers": 2, "hidden_size": 6, "pooling": "mean"}),
    ("lstm", {"bidirectional": True, "hidden_size": 6, "pooling": "max"}),
    ("text_transformer", {"hidden_size": 12, "num_heads": 3, "pooling": "mean"}),
    ("text_transformer", {"hidden_size": 12, "num_heads": 2, "pooling": "max", "intermediate_size": 9}),
    ("text_transformer", {"hidden_size": 12, "num_heads": 2, "pooling": "cls"}),
]


def arrays() -> dict[str, np.ndarray]:
    """Return rows of 7, 1, 4 ... tokens, then padding of tokens that nothing may see."""
    drawn = np.random.default_rng(0)
    mask = (np.arange(LENGTH) < np.array(LENGTHS)[:, None]).astype(np.int64)
    ids, target = drawn.integers(0, VOCABULARY, (ROWS, LENGTH)), drawn.integers(0, CLASSES, ROWS)
    return {"input_ids": ids, "attention_mask": mask, "target": target}


def built(name: str, params: dict[str, Any], info: DataInfo = INFO) -> Any:
    return build_model(name, MODELS[name](**params).model_dump(), info)


def by_hand(model: Any, tokens: Tensor, params: dict[str, Any]) -> Tensor:
    """Return the logits, (classes,), of one text, (tokens,)."""
    pooling = params.get("pooling", "last")
    if "num_heads" not in params:
        states = model.lstm(model.embedding(tokens))[0]  # (tokens, directions * hidden)
        size = params["hidden_size"]
        ends = torch.cat([states[-1, :size], states[0, size:]])
    else:
        states = model.token_embedding(tokens) + model.position_embedding.weight[: len(tokens)]
        states = torch.cat([model.summary[0], states]) if pooling == "cls" else states
        for layer in model.encoder.layers:
            states = after(layer, states, params["num_heads"])
        states = model.norm(states)
        ends = states[0]
    text = {"mean": states.mean(dim=0), "max": states.max(dim=0).values}.get(pooling, ends)
    logits: Tensor = model.head(text)
    return logits


def token_logits(model: Any, tokens: Tensor, params: dict[str, Any]) -> Tensor:
    """Return the logits of each token, (tokens, classes), of one text, (tokens,)."""
    if "num_heads" not in params:
        logits: Tensor = model.head(model.lstm(model.embedding(tokens))[0])
        return logits
    states = model.token_embedding(tokens) + model.position_embedding.weight[: len(tokens)]
    for layer in model.encoder.layers:
        states = after(layer, states, params["num_heads"])
    return model.head(model.norm(states))  # type: ignore[no-any-return]


def after(layer: Any, states: Tensor, heads: int) -> Tensor:
    """Return the states after a layer, (tokens, width)."""
    attention, mlp = layer.attention, layer.mlp
    x = layer.attention_norm(states)
    rows = attention.qkv_proj(x).view(len(x), heads, 3, -1)  # queries, keys and values of each head
    parts = []
    for head in range(heads):
        q, k, v = rows[:, head].unbind(1)  # (tokens, head size) each
        weights = torch.softmax(q @ k.T / q.shape[1] ** 0.5, dim=1)  # (tokens, tokens)
        parts.append(weights @ v)
    states = states + attention.out_proj(torch.cat(parts, dim=1))
    inner: Tensor = mlp.down_proj(functional.gelu(mlp.up_proj(layer.mlp_norm(states))))
    return states + inner


@pytest.mark.parametrize(("name", "params"), ALL)
def test_padding_changes_no_answer(name: str, params: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = built(name, {**params, "dropout": 0.0}).train()
    rows = {key: torch.from_numpy(array) for key, array in arrays().items()}
    logits = model(rows["input_ids"], rows["attention_mask"])
    for row, length in enumerate(LENGTHS):
        expected = by_hand(model, rows["input_ids"][row, :length], params)
        torch.testing.assert_close(logits[row], expected, rtol=1e-5, atol=1e-6)
    whole = model(rows["input_ids"])
    torch.testing.assert_close(whole[1], by_hand(model, rows["input_ids"][1], params), rtol=1e-5, atol=1e-6)
    with torch.no_grad():  # torch has faster kernels for this
        quiet = model.eval()(rows["input_ids"], rows["attention_mask"])
    torch.testing.assert_close(quiet, logits, rtol=1e-4, atol=1e-5)


def stepped(
    name: str, params: dict[str, Any], cut: tuple[int, int, int], rows: dict[str, np.ndarray], info: DataInfo
) -> tuple[float, Any]:
    """Return the loss of one step at a rate of 1, and the module after it."""
    batch, microbatch, ranks = cut
    training = {"device": "cpu", "optimizer": {"type": "sgd"}, "max_steps": 1}
    whole = {
        "experiment": {"seed": SEED},
        "data": {"type": "text_table", "path": "x.csv"},
        "model": {"type": name, "params": params},
        "training": {**training, "batch_size": batch, "microbatch_size": microbatch},
        "distributed": {"virtual": {"data": ranks}},
    }
    config = load(whole, adapters=Catalog()).config
    order = SampleOrder(ROWS, batch, SEED)
    learner = TorchLearner(
        LearnerInputs(config, info, config.model.params, 1, {"train": Arrays(rows)}, order)
    )
    (loss,) = learner.read([learner.step(0, 1.0).loss])
    return loss, learner.model().native


def assert_stepped(native: nn.Module, model: nn.Module) -> None:
    for key, weight in model.named_parameters():
        assert weight.grad is not None
        after = (weight - weight.grad).detach()
        torch.testing.assert_close(native.get_parameter(key).detach(), after, rtol=1e-5, atol=1e-6)


CUTS = [(9, 9, 1), (9, 2, 1), (8, 3, 2)]


@pytest.mark.parametrize(("name", "params"), [ALL[0], ALL[3]])
@pytest.mark.parametrize("cut", CUTS)
def test_a_step_is_that_by_hand_however_the_batch_is_cut(
    name: str, params: dict[str, Any], cut: tuple[int, int, int]
) -> None:
    given = {**params, "dropout": 0.0}
    loss, native = stepped(name, given, cut, arrays(), INFO)
    model = draw_weights(built(name, given), SEED)
    rows = {key: torch.from_numpy(array) for key, array in arrays().items()}
    losses = [
        -torch.log_softmax(by_hand(model, rows["input_ids"][i, : LENGTHS[i]], params), 0)[rows["target"][i]]
        for i in epoch_order(SEED, 0, ROWS)[: cut[0]]
    ]
    expected = torch.stack(losses).mean()
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    assert_stepped(native, model)


@pytest.mark.parametrize(("name", "params"), [ALL[0], ALL[3]])
@pytest.mark.parametrize("cut", CUTS)
def test_so_is_a_step_on_labels_of_tokens(
    name: str, params: dict[str, Any], cut: tuple[int, int, int]
) -> None:
    info = replace(INFO, task="token_classification", target="labels")
    given, rows = {**params, "dropout": 0.0}, arrays()
    labels = np.random.default_rng(1).integers(0, CLASSES, (ROWS, LENGTH))
    rows["labels"] = np.where(rows["attention_mask"] * (labels + rows["input_ids"] % 3), labels, -100)
    del rows["target"]
    loss, native = stepped(name, given, cut, rows, info)
    model = draw_weights(built(name, given, info), SEED)
    logits, wanted = [], []
    for i in epoch_order(SEED, 0, ROWS)[: cut[0]]:
        length = LENGTHS[i]
        logits.append(token_logits(model, torch.from_numpy(rows["input_ids"][i, :length]), params))
        wanted.append(torch.from_numpy(rows["labels"][i, :length]))
    expected = functional.cross_entropy(torch.cat(logits), torch.cat(wanted))
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    assert_stepped(native, model)


def test_models_of_tokens_say_what_they_lack() -> None:
    with pytest.raises(ModelError, match=r"lstm needs text: data\.type: text, text_table or text_folder"):
        built("lstm", {}, DataInfo("classification", features_spec((4,)), 3))
    unknown = DataInfo("classification", {"input_ids": SPEC}, 3)
    with pytest.raises(
        ModelError, match=r"cannot infer the vocabulary size from input_ids; set model\.vocab_size"
    ):
        built("lstm", {}, unknown)
    assert built("lstm", {"vocab_size": 11}, unknown).embedding.num_embeddings == 11
    with pytest.raises(ModelError, match=r"num_heads \(5\) must divide hidden_size \(12\)"):
        built("text_transformer", {"hidden_size": 12, "num_heads": 5})


def test_named_arrays_of_tokens_tell_their_number(tmp_path: Path) -> None:
    made = arrays()
    small = {"model": {"type": "lstm", "hidden_size": 4}, "training.max_steps": 2, "training.batch_size": 4}
    run = trainwright.train(
        SMALL, {"data": {"split": {"val": 0.3, "test": 0}}, **small}, data=made, runs_dir=tmp_path
    )
    model = trainwright.load(run)
    assert model.native.embedding.num_embeddings == made["input_ids"].max() + 1
    assert model.outputs({key: made[key] for key in ("input_ids", "attention_mask")}).shape == (ROWS, CLASSES)
