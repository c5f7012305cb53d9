"""Torch beyond classes and values: text beside a loop by hand, named inputs, two heads with one loss, labels."""

from __future__ import annotations

import json
import math
import runpy
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from test_torch_reference import INIT, PREDICT, STEP, draw_weights, epoch_order, seed_torch, stream
from torch.nn import functional

import trainwright
from small_runs import checkpoints
from trainwright.cli.main import main
from trainwright.errors import CheckpointError, DataError, InputError, ModelError
from trainwright.frameworks.torch.losses.base import build_loss
from trainwright.frameworks.torch.models.gpt import Gpt
from trainwright.inference.texts import _drawn
from trainwright.plugins import task_for
from trainwright.records.journal import losses, read
from trainwright.runs.run import Run
from trainwright.testing.framework_suite import FEW_KILLS, FrameworkSuite, Kills
from trainwright.types import NO_LABEL, ArraySpec, DataInfo

LENGTH, BATCH, SEED = 12, 8, 3
SMALL_GPT = {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "dropout": 0.1}
BPE = {"tokenizer": "bpe", "vocab_size": 300}
LLAMA = {
    **{"position": "rotary", "normalization": "rms", "activation": "swiglu", "bias": False},
    **{"tie_embeddings": False, "num_kv_heads": 1},
}
TEXT = Path(textwrap.__file__).read_bytes()[:6000]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with modules of the user's own."""
    (tmp_path / "own_nets.py").write_text(textwrap.dedent(OWN))
    (tmp_path / "words.txt").write_bytes(TEXT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("own_nets", None)


def gpt(**training: Any) -> dict[str, Any]:
    return {
        "experiment": {"seed": SEED},
        "data": {"type": "text", "path": "words.txt", "params": {"length": LENGTH}},
        "model": {"type": "gpt", "params": SMALL_GPT},
        "training": {"max_steps": 70, "batch_size": BATCH, "learning_rate": 0.01, "threads": 1, **training},
        "evaluation": {"every_n_steps": 35},
    }


# -- text, beside a loop by hand


def windows(text: bytes) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and labels of all whole windows, (rows, LENGTH) each."""
    tokens = torch.tensor(list(text), dtype=torch.int64)
    rows = (len(text) - 1) // LENGTH
    return (tokens[start : start + rows * LENGTH].reshape(rows, LENGTH) for start in (0, 1))  # type: ignore[return-value]


def nats_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the negative log-likelihood of each label, (rows, length)."""
    nats = functional.cross_entropy(logits.reshape(-1, 256), labels.reshape(-1), reduction="none")
    return nats.reshape(labels.shape)


def by_hand(steps: int) -> tuple[Gpt, list[float]]:
    inputs, labels = windows(TEXT[:4800])
    rows = len(inputs)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    model = draw_weights(Gpt(256, LENGTH, 16, 2, 2, 0.1), SEED, 0.02 / 4**0.5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0, fused=True)
    per_epoch = -(-rows // BATCH)
    found = []
    for step in range(steps):
        ids = epoch_order(SEED, step // per_epoch, rows)[step % per_epoch * BATCH :][:BATCH]
        seed_torch(stream(SEED, STEP), step, 0)
        nats = nats_of(model(inputs[ids]), labels[ids])  # (rows, length)
        loss = (nats.sum(dim=1) / LENGTH).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    return model, found


def test_a_gpt_is_that_of_the_loop_by_hand(here: Path) -> None:
    run = trainwright.train(gpt() | {"checkpoint": {"save_top_k": 0}})
    model, expected = by_hand(70)
    assert list(losses(read(run.path / "journal")).values()) == expected
    stored = load_file(checkpoints(run)[-1] / "weights.safetensors")
    assert all(torch.equal(stored[name], tensor) for name, tensor in model.state_dict().items())
    assert expected[-1] < 3.4 < 5 < expected[0]

    model.eval()
    text = torch.tensor(list(TEXT[5400:]), dtype=torch.int64)
    nats, hits, counted = 0.0, 0, 0
    starts = [*range(0, len(text) - 1 - LENGTH, LENGTH), len(text) - 1 - LENGTH]
    for start in starts:
        new = min(LENGTH, start + LENGTH - counted)  # the last window overlaps the one before
        seed_torch(SEED, PREDICT, 0)
        with torch.no_grad():
            logits = model(text[None, start : start + LENGTH])[0, LENGTH - new :]  # (new, 256)
        labels = text[start + LENGTH + 1 - new : start + LENGTH + 1]
        nats += float(functional.cross_entropy(logits, labels, reduction="sum"))
        hits += int((logits.argmax(-1) == labels).sum())
        counted += new
    assert counted == len(text) - 1
    assert run.metrics["test_loss"] == pytest.approx(nats / counted, rel=1e-6)
    assert run.metrics["test_bits_per_byte"] == pytest.approx(nats / counted / math.log(2), rel=1e-6)
    assert run.metrics["test_token_accuracy"] == hits / counted


def test_microbatches_of_text_give_the_same_step_up_to_rounding(here: Path) -> None:
    config = gpt(max_steps=5) | {"evaluation": {}}
    config["model"] = {"type": "gpt", "params": SMALL_GPT | {"dropout": 0.0}}
    one, other = (
        list(
            losses(
                read(trainwright.train(config, [f"training.microbatch_size={size}"]).path / "journal")
            ).values()
        )
        for size in (8, 3)
    )
    assert other == pytest.approx(one, rel=1e-5)


def test_what_a_gpt_cannot_do_is_said(here: Path) -> None:
    with pytest.raises(ModelError, match="xgboost does not support language_modeling, the task of the data"):
        trainwright.train(gpt() | {"model": {"type": "xgboost"}})
    with pytest.raises(ModelError, match=r"num_heads \(3\) must divide hidden_size \(16\)"):
        trainwright.train(gpt(), ["model.params.num_heads=3"])
    with pytest.raises(InputError, match=r"metric 'f1' is for .*classification.*, but the task is language_"):
        trainwright.train(gpt(), ["evaluation.metrics=[f1]"])
    with pytest.raises(
        ModelError, match=r"model gpt needs text: data\.type: text, text_table or text_folder, or arrays"
    ):
        trainwright.train({"data": {"type": "iris"}, "model": {"type": "gpt"}})


def test_the_loss_of_a_batch_is_the_mean_of_its_rows() -> None:
    """Rows with few labels weigh as much as others, so that microbatches change nothing but rounding."""
    info = DataInfo("language_modeling", {"input_ids": ArraySpec((5,), "int64")}, 7)
    loss = build_loss("auto", task_for(info))
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 5, 7, generator=generator)
    labels = torch.randint(0, 7, (4, 5), generator=generator)
    labels[0, 1:] = labels[2, 3:] = labels[3] = NO_LABEL
    means = []
    for row, given in zip(logits.log_softmax(-1).tolist(), labels.tolist(), strict=True):
        nats = [-token[label] for token, label in zip(row, given, strict=True) if label != NO_LABEL]
        means.append(sum(nats) / max(1, len(nats)))
    assert loss(logits, {"labels": labels}).item() == pytest.approx(sum(means) / 4, rel=1e-6)


def test_a_gpt_predicts_and_explains_as_far_as_it_can(here: Path) -> None:
    run = trainwright.train(gpt(max_steps=6), ["evaluation.explain=true"])
    model = trainwright.load(run.id)
    rows = {
        "input_ids": np.frombuffer(TEXT[: 2 * LENGTH], np.uint8).reshape(2, LENGTH).astype(np.int64),
        "labels": np.frombuffer(TEXT[1 : 2 * LENGTH + 1], np.uint8).reshape(2, LENGTH).astype(np.int64),
    }
    logits = model.native(torch.from_numpy(rows["input_ids"]))  # (2, length, 256)
    nats = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(rows["labels"]).flatten())
    bits = model.predict(rows)["bits_per_byte"].mean()
    assert bits == pytest.approx(nats.item() / np.log(2), rel=1e-5)
    assert bits != pytest.approx(model.predict(rows | {"labels": rows["labels"] * 0})["bits_per_byte"].mean())
    with pytest.raises(InputError, match=r"no labels given.*give them too"):
        model.predict({"input_ids": rows["input_ids"]})
    assert model.evaluate("test").metrics == {
        name: value for name, value in run.metrics.items() if name.startswith("test_")
    }
    check_other_texts(run.id, model.native, here)
    assert trainwright.reproduce(run.id).verdict == "identical"


# -- tokens of a vocabulary


@pytest.fixture
def with_tokens(here: Path) -> Run:
    config = gpt(max_steps=12, learning_rate=0.03)
    config["data"]["params"] |= BPE
    config["model"] = {"type": "gpt", "params": SMALL_GPT | LLAMA}
    return trainwright.train(config)


def test_bits_are_those_of_a_byte_of_text(with_tokens: Run) -> None:
    """Of the text that the tokens stand for, whatever the vocabulary; the tokenizer is a file of the run."""
    run, model = with_tokens, trainwright.load(with_tokens.id)
    assert run.manifest["data"]["hash"]
    tokens = next(iter(model.tokenizer.encode([TEXT[5400:]]))).ids  # the test text
    end = model.tokenizer.end_of_text
    stream_ = torch.from_numpy(np.append(tokens, end))
    nats, counted = 0.0, 0
    for start in [*range(0, len(stream_) - 1 - LENGTH, LENGTH), len(stream_) - 1 - LENGTH]:
        new = min(LENGTH, start + LENGTH - counted)
        with torch.no_grad():
            logits = model.native(stream_[None, start : start + LENGTH])[0, LENGTH - new :]
        labels = stream_[start + LENGTH + 1 - new : start + LENGTH + 1]
        nats += float(functional.cross_entropy(logits, labels, reduction="sum"))
        counted += new
    first = model.tokenizer.decode(tokens[:1]).encode()
    text_bytes = len(TEXT[5400:]) - len(first)
    assert run.metrics["test_loss"] == pytest.approx(nats / counted, rel=1e-5)
    assert run.metrics["test_bits_per_byte"] == pytest.approx(nats / text_bytes / math.log(2), rel=1e-5)
    rows = {"input_ids": stream_[None, :LENGTH].numpy(), "labels": stream_[None, 1 : LENGTH + 1].numpy()}
    (bits,) = model.predict(rows)["bits_per_byte"]
    spelled = len(model.tokenizer.decode(tokens[1 : LENGTH + 1]).encode())
    row = functional.cross_entropy(
        model.native(torch.from_numpy(rows["input_ids"]))[0], stream_[1 : LENGTH + 1]
    )
    assert bits == pytest.approx(row.item() * LENGTH / spelled / math.log(2), rel=1e-5)
    assert trainwright.reproduce(run.id).verdict == "identical"


def test_text_is_generated_token_by_token(with_tokens: Run) -> None:
    """The most probable ones are those of a loop by hand; drawn ones follow the seed alone."""
    model = trainwright.load(with_tokens.id)
    ids = next(iter(model.tokenizer.encode([b"def text"]))).ids.tolist()
    start = len(ids)
    for _ in range(20):
        with torch.no_grad():
            ids.append(int(model.native(torch.tensor([ids[-LENGTH:]]))[0, -1].argmax()))
    assert model.generate("def text", 20, temperature=0) == model.tokenizer.decode(np.array(ids[start:]))
    assert model.generate("def text", 20, top_k=1, seed=5) == model.generate("def text", 20, temperature=0)
    one, same, other = (model.generate("def text", 20, seed=seed) for seed in (1, 1, 2))
    assert one == same != other
    assert model.generate("", 5, seed=1)  # as after the end of a text
    for options in ({"temperature": -1}, {"temperature": math.nan}, {"seed": -1}):
        with pytest.raises(InputError, match="given; a temperature is a number of at least 0"):
            model.generate("a", 5, **options)
    with pytest.raises(InputError, match="the prompt is not text in UTF-8"):
        model.generate("\udcff", 5)


def test_the_command_generates_the_same_text(with_tokens: Run, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*options: str) -> str:
        arguments = [
            "generate",
            str(with_tokens.path),
            "--prompt",
            "def text",
            "--max-tokens",
            "20",
            *options,
        ]
        assert main([*arguments, "--json"]) == 0
        return str(json.loads(capsys.readouterr().out)["text"])

    model = trainwright.load(with_tokens.id)
    assert said("--temperature", "0") == model.generate("def text", 20, temperature=0)
    assert said("--seed", "2", "--top-k", "5") == model.generate("def text", 20, seed=2, top_k=5)
    assert main(["generate", str(with_tokens.path), "--prompt", "def ", "--max-tokens", "0"]) == 0
    assert capsys.readouterr().out == "def \n"
    for options, message in (
        (["--temperature", "-1"], "--temperature"),
        (["--top-k", "0"], "--top-k"),
    ):
        assert main(["generate", str(with_tokens.path), "--prompt", "a", *options]) == 2
        assert message in capsys.readouterr().err
    model_section = {"type": "mlp", "hidden": [4]}
    trainwright.train({"data": "iris", "model": model_section, "training": {"max_steps": 1, "threads": 1}})
    assert main(["generate", "last", "--prompt", "a"]) == 2
    assert "generates no text: its task is classification; call predict" in capsys.readouterr().err


def test_a_damaged_tokenizer_is_not_used(with_tokens: Run) -> None:
    path = with_tokens.path / "data.json"
    path.write_text(path.read_text().replace("endoftext", "endofword"))
    with pytest.raises(CheckpointError, match=r"data.json is not what the model was trained with"):
        trainwright.load(with_tokens.id)


def test_the_example_learns_in_a_small_size(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the program itself: on one module, below what the letters' frequencies alone would give."""
    settings = ["path=words.txt", "length=32", "vocab_size=300"]
    small = [*(f"data.{one}" for one in settings), "model.hidden_size=32", "model.num_layers=1"]
    example = Path(__file__).parents[2] / "examples" / "gpt_stdlib.py"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            sys,
            "argv",
            [
                str(example),
                *small,
                "training.max_steps=60",
                "training.threads=1",
                "training.scheduler.warmup_steps=5",
            ],
        )
        runpy.run_path(str(example), run_name="__main__")
    run = trainwright.get("last")
    found = list(losses(read(run.path / "journal")).values())
    assert found[-1] < 0.75 * found[0]
    assert f"{run.metrics['test_bits_per_byte']:.3f} bits per byte" in capsys.readouterr().out
    counts = np.bincount(np.frombuffer(TEXT[5400:], np.uint8)) / len(TEXT[5400:])
    assert run.metrics["test_bits_per_byte"] < -(counts * np.log2(counts.clip(1e-9))).sum()


def test_tokens_are_drawn_by_their_probabilities() -> None:
    logits = np.log([0.1, 0.4, 0.0001, 0.4, 0.0999])
    drawn = [_drawn(logits, 1.0, None, draw) for draw in (0.0, 0.39, 0.41, 0.79, 0.81, 0.905, 0.99995)]
    assert drawn == [1, 1, 3, 3, 0, 4, 2]  # the most probable first, of equal ones the first
    assert [_drawn(logits, 1.0, 2, draw) for draw in (0.49, 0.51, 0.9999)] == [1, 3, 3]
    squares = [_drawn(logits, 0.5, None, draw) for draw in (0.93, 0.96, 0.98)]
    assert squares == [3, 0, 4]  # 0.16, 0.16, 0.01 and 0.00998 of 0.34


def check_other_texts(run: str, model: torch.nn.Module, folder: Path) -> None:
    """Compare what a run says of a text file with its model, asked for each byte."""
    text = Path(pytest.__file__).read_bytes()[:101]  # 8 windows, and 4 bytes that only the last one predicts
    (folder / "other").mkdir()
    (folder / "other" / "new.txt").write_bytes(text)
    nats, hits = np.zeros((2, len(text)))
    for first in [*range(0, 96, LENGTH), len(text) - 1 - LENGTH]:
        ids = torch.tensor(list(text[first : first + LENGTH]))
        chosen = functional.log_softmax(model(ids[None])[0], dim=1).detach().numpy()  # (length, 256)
        for i in range(LENGTH):
            at = first + i + 1
            if not nats[at]:  # not predicted by an earlier window
                nats[at], hits[at] = -chosen[i, text[at]], chosen[i].argmax() == text[at]
    for path in ("other/new.txt", "other"):  # a file, and a folder with only this one
        metrics = trainwright.evaluate(run, data=path)
        assert metrics["test_bits_per_byte"] == pytest.approx(nats.sum() / 100 / np.log(2), rel=1e-5)
        assert metrics["test_token_accuracy"] == pytest.approx(hits.sum() / 100)
    frame = trainwright.predict(run, folder / "other" / "new.txt")
    assert list(frame) == ["nats", "tokens", "hits", "bits_per_byte", "token_accuracy"]
    assert frame["tokens"].tolist() == [LENGTH] * 8 + [4]
    sums = [nats[1 + start : 1 + start + LENGTH].sum() for start in range(0, 100, LENGTH)]
    np.testing.assert_allclose(frame["nats"], sums, rtol=1e-5)
    assert frame["hits"].sum() == hits.sum()
    for name, written in (("windows.csv", pd.read_csv), ("windows.parquet", pd.read_parquet)):
        assert trainwright.predict_file(run, "other/new.txt", name).rows == 9
        pd.testing.assert_frame_equal(written(name), frame)
    refused = {
        b"": "is empty: give a text of at least 13 bytes",
        text[:LENGTH]: "has 12 bytes, too few for a window of the run's data.params.length: 12",
        b"PK\x03\x04\x14\0" * 10: "is not plain text: it contains a zero byte; give a text file in UTF-8",
    }
    for content, message in refused.items():
        (folder / "wrong.txt").write_bytes(content)
        for ask in (trainwright.predict, lambda run, path: trainwright.evaluate(run, data=path)):
            with pytest.raises(DataError, match=message):
                ask(run, "wrong.txt")
    with pytest.raises(DataError, match=r"gone\.txt"):
        trainwright.predict(run, "gone.txt")
    with pytest.raises(InputError, match="has no columns to keep"):
        trainwright.predict(run, "words.txt", keep=["id"])
    with pytest.raises(InputError, match="intervals are for amounts, but the task is language_modeling"):
        trainwright.predict(run, "words.txt", interval=0.9)


@pytest.mark.slow
class TestGpt(FrameworkSuite):
    framework = "torch"
    kills: ClassVar[Kills] = FEW_KILLS
    sources: ClassVar[Mapping[str, str]] = {"words.txt": TEXT.decode()}

    @pytest.fixture(autouse=True)
    def in_its_folder(self, config_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(config_file.parent)

    @classmethod
    def config(cls) -> dict[str, Any]:
        return {
            **gpt(max_steps=40, microbatch_size=3, max_grad_norm=1.0),
            "data": {"type": "text", "path": "words.txt", "params": {"length": LENGTH, **BPE}},
            "model": {"type": "gpt", "params": {**SMALL_GPT, **LLAMA}},
            "evaluation": {"every_n_steps": 6},
        }


# -- named inputs, several outputs, a loss of one's own

OWN = """
    import torch
    from torch import nn
    from torch.nn import functional

    class TwoInputs(nn.Module):
        def __init__(self, out_features):
            super().__init__()
            self.embed = nn.Embedding(20, 4)
            self.last = nn.Linear(10, out_features)

        def forward(self, numbers, text_ids):
            return self.last(torch.cat([numbers, self.embed(text_ids).mean(dim=1)], dim=1))

    class Wrong(TwoInputs):
        def forward(self, numbers, words):
            return super().forward(numbers, words)

    class TwoHeads(nn.Module):
        def __init__(self, in_features, out_features):
            super().__init__()
            self.body = nn.Linear(in_features, 16)
            self.classes = nn.Linear(16, out_features)
            self.amount = nn.Linear(16, 1)

        def forward(self, features):
            hidden = torch.relu(self.body(features))
            return {"logits": self.classes(hidden), "amount": self.amount(hidden)[:, 0]}

    def weighted(outputs, batch):
        classes = functional.cross_entropy(outputs["logits"], batch["target"])
        return classes + 0.1 * functional.mse_loss(outputs["amount"], batch["amount"])

    def no_number(outputs, batch):
        return outputs["logits"]
"""


def arrays(rows: int = 120) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    numbers = draw.normal(size=(rows, 6)).astype(np.float32)
    text_ids = draw.integers(0, 20, (rows, 5))
    target = (numbers[:, 0] + (text_ids < 10).mean(axis=1) > 0.5).astype(np.int64)
    return {"numbers": numbers, "text_ids": text_ids, "target": target}


SMALL = {
    "experiment": {"seed": SEED},
    "data": {"split": {"val": 0, "test": 0}},
    "training": {"epochs": 3, "batch_size": 20, "threads": 1},
}


def train_rows(count: int) -> list[int]:
    """Return the rows of the steps of three epochs, in their order."""
    return [row for epoch in range(3) for row in epoch_order(SEED, epoch, count)]


def test_a_model_with_named_inputs_is_that_of_the_loop_by_hand(here: Path) -> None:
    import own_nets  # type: ignore[import-not-found]

    data = arrays()
    splits = {"train": {name: array[:80] for name, array in data.items()}}
    splits["test"] = {name: array[80:] for name, array in data.items()}
    run = trainwright.train(SMALL | {"model": {"type": "own_nets:TwoInputs"}}, data=splits)
    seed_torch(SEED, INIT)
    model = own_nets.TwoInputs(2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0, fused=True)
    tensors = {name: torch.from_numpy(array[:80]) for name, array in data.items()}
    order = train_rows(80)
    for step in range(12):
        ids = order[20 * step : 20 * step + 20]
        loss = functional.cross_entropy(
            model(tensors["numbers"][ids], tensors["text_ids"][ids]), tensors["target"][ids]
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    stored = load_file(checkpoints(run)[-1] / "weights.safetensors")
    assert all(torch.equal(stored[name], tensor) for name, tensor in model.state_dict().items())
    loaded = trainwright.load(run.id)
    rows = {name: array[80:] for name, array in data.items() if name != "target"}
    with torch.no_grad():
        expected = torch.softmax(model(*(torch.from_numpy(array) for array in rows.values())), dim=1)
    np.testing.assert_allclose(loaded.outputs(rows), expected.numpy(), rtol=1e-5)
    with pytest.raises(InputError, match=r"rows without text_ids given; .*numbers \(6,\) float32, text_ids"):
        loaded.predict({"numbers": rows["numbers"]})
    with pytest.raises(InputError, match="different numbers of rows given: numbers 40, text_ids 5; give the"):
        loaded.predict(rows | {"text_ids": rows["text_ids"][:5]})
    with pytest.raises(InputError, match=r"rows of text_ids of shape \(\) given; .*text_ids \(5,\) int64"):
        loaded.predict(rows | {"text_ids": "words"})
    for dtype in (np.uint8, np.float64):
        same = loaded.outputs(rows | {"text_ids": rows["text_ids"].astype(dtype)})
        np.testing.assert_array_equal(same, loaded.outputs(rows))


def test_items_with_named_inputs_are_the_same_data(here: Path) -> None:
    data = arrays()
    held = {name: array[:80] for name, array in data.items()}

    class Items:
        classes = (0, 1)

        def __len__(self) -> int:
            return 80

        def __getitem__(self, i: int) -> dict[str, Any]:
            return {name: array[i] for name, array in held.items()}

    config = SMALL | {"model": {"type": "own_nets:TwoInputs"}, "checkpoint": {"save_top_k": 0}}
    one, other = (trainwright.train(config, data={"train": some}) for some in (held, Items()))
    assert one.digest == other.digest


def test_arrays_of_a_file_may_be_named(here: Path) -> None:
    np.savez(here / "both.npz", **arrays())
    run = trainwright.train(SMALL | {"model": {"type": "own_nets:TwoInputs"}, "data": {"path": "both.npz"}})
    assert run.manifest["data"]["splits"]["train"]["rows"] == 96
    assert trainwright.reproduce(run.id).verdict == "identical"
    data, loaded = arrays(), trainwright.load(run.id)
    rows = {name: array[80:] for name, array in data.items()}
    np.savez(here / "rows.npz", **{name: array for name, array in rows.items() if name != "target"})
    frame = trainwright.predict(run.id, here / "rows.npz")
    expected = loaded.outputs({name: rows[name] for name in ("numbers", "text_ids")})
    np.testing.assert_array_equal(frame[["probability_0", "probability_1"]].to_numpy(), expected)
    with pytest.raises(InputError, match="there is no target 'target' among the arrays given"):
        trainwright.evaluate(run.id, data=here / "rows.npz")
    np.savez(here / "rows.npz", **rows)
    own = trainwright.evaluate(run.id, data=here / "rows.npz")
    assert own["test_accuracy"] == pytest.approx((expected.argmax(axis=1) == rows["target"]).mean())


def test_inputs_that_do_not_fit_are_said(here: Path) -> None:
    with pytest.raises(
        ModelError, match=r"Mlp.forward takes features: .* or choose one of them in data\.features"
    ):
        trainwright.train(SMALL | {"model": "mlp"}, data={"train": arrays()})
    with pytest.raises(ModelError, match=r"arrays numbers, text_ids, but Wrong.forward takes numbers, words"):
        trainwright.train(SMALL | {"model": {"type": "own_nets:Wrong"}}, data={"train": arrays()})
    with pytest.raises(
        ModelError, match=r"random_forest .*takes one array of features, but the data have numb"
    ):
        trainwright.train(SMALL | {"model": {"type": "random_forest"}}, data={"train": arrays()})
    with pytest.raises(DataError, match="the train split has no array 'label'"):
        trainwright.train(
            SMALL | {"model": {"type": "mlp"}, "data": {"target": "label"}}, data={"train": arrays()}
        )
    short = arrays() | {"text_ids": np.zeros((3, 5), np.int64)}
    with pytest.raises(DataError, match="the train split has 3 rows of text_ids, but 120 targets"):
        trainwright.train(SMALL | {"model": {"type": "own_nets:TwoInputs"}}, data={"train": short})


def test_two_heads_with_a_loss_of_ones_own(here: Path) -> None:
    import own_nets

    data = arrays()
    named = {"features": data["numbers"], "amount": data["numbers"][:, 1], "target": data["target"]}
    config = SMALL | {"model": {"type": "own_nets:TwoHeads"}, "checkpoint": {"save_top_k": 0}}
    run = trainwright.train(config, ["training.loss=own_nets:weighted"], data={"train": named})
    seed_torch(SEED, INIT)
    model = own_nets.TwoHeads(6, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0, fused=True)
    tensors = {name: torch.from_numpy(array) for name, array in named.items()}
    order = train_rows(120)
    found = []
    for step in range(18):
        ids = order[20 * step : 20 * step + 20]
        loss = own_nets.weighted(model(tensors["features"][ids]), {n: t[ids] for n, t in tensors.items()})
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    assert list(losses(read(run.path / "journal")).values()) == found
    with torch.no_grad():
        expected = torch.softmax(model(tensors["features"])["logits"], dim=1)
    np.testing.assert_allclose(
        trainwright.load(run.id).outputs(named["features"]), expected.numpy(), rtol=1e-5
    )
    assert "own_nets" in run.manifest["code"]["modules"]


def test_losses_that_do_not_fit_are_said(here: Path) -> None:
    data = {"features": arrays()["numbers"], "target": arrays()["target"]}
    config = SMALL | {"model": {"type": "own_nets:TwoHeads"}}
    for loss, said in (
        (
            "own_nets:no_number",
            r"own_nets:no_number returned a tensor of shape \(1, 2\); it must return one number",
        ),
        ("own_nets:missing", "training.loss: .*missing"),
        (
            "own_nets:weighted",
            "own_nets:weighted failed: KeyError: 'amount'; the batch has the keys features, target",
        ),
        ("own_nets:TwoHeads", "own_nets:TwoHeads cannot be constructed: .*; write its options beside it"),
        ("mse", "mse is not a loss for classification; allowed: auto, cross_entropy, focal, or package"),
    ):
        with pytest.raises(ModelError, match=said):
            trainwright.train(config, [f"training.loss={loss}"], data={"train": data})


# -- labels, by three frameworks


def labels() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(1)
    features = draw.normal(size=(160, 4)).astype(np.float32)
    return features, (features[:, :3] + 0.2 * draw.normal(size=(160, 3)) > 0).astype(np.int64)


@pytest.mark.parametrize(
    "model",
    [
        {"type": "mlp", "params": {"hidden": [16]}},
        {"type": "xgboost", "params": {"n_estimators": 12}},
        {"type": "random_forest", "params": {"n_estimators": 12}},
        {"type": "k_neighbors"},
    ],
    ids=lambda model: model["type"],
)
def test_a_matrix_of_labels_is_learned(model: dict[str, Any], here: Path) -> None:
    x, y = labels()
    config = {"model": model, "training": {"epochs": 40, "learning_rate": 0.02, "threads": 1}}
    if model["type"] != "mlp":
        config["training"] = {"threads": 1}
    run = trainwright.train(config, data={"train": (x[:120], y[:120]), "test": (x[120:], y[120:])})
    assert run.manifest["data"]["task"] == "multilabel"
    frame = trainwright.load(run.id).predict(x[120:])
    assert list(frame) == [f"{kind}_{i}" for kind in ("prediction", "probability") for i in range(3)]
    predicted = frame[[f"prediction_{i}" for i in range(3)]].to_numpy()
    assert run.metrics["test_subset_accuracy"] == pytest.approx((predicted == y[120:]).all(axis=1).mean())
    assert (predicted == y[120:]).mean() > 0.8
    from sklearn.metrics import f1_score, log_loss

    assert run.metrics["test_f1"] == pytest.approx(f1_score(y[120:], predicted, average="macro"))
    chances = frame[[f"probability_{i}" for i in range(3)]].to_numpy().astype(np.float64)
    expected = np.mean([log_loss(y[120:, i], chances[:, i].clip(1.2e-7, 1 - 1.2e-7)) for i in range(3)])
    assert run.metrics["test_loss"] == pytest.approx(expected, rel=1e-3)


def test_labels_may_be_taken_for_amounts(here: Path) -> None:
    x, y = labels()
    run = trainwright.train(
        {"model": {"type": "mlp"}, "training": {"max_steps": 3}, "data": {"task": "regression"}}, data=(x, y)
    )
    assert run.manifest["data"]["task"] == "regression"
    with pytest.raises(DataError, match="3 columns of int64, but the task is classification"):
        trainwright.train({"model": {"type": "mlp"}, "data": {"task": "classification"}}, data=(x, y))
    with pytest.raises(
        ModelError, match=r"lightgbm does not support multilabel, the task of the data.*y\.argmax"
    ):
        trainwright.train({"model": {"type": "lightgbm"}}, data=(x, y))
    with pytest.raises(ModelError, match="LogisticRegression does not do multilabel; use random_forest"):
        trainwright.train({"model": {"type": "logistic_regression"}}, data=(x, y))
