"""Tokens that others have made: nanoGPT's train.bin and val.bin."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainwright
from trainwright.config.schema import DataConfig
from trainwright.datasets.base import PLAIN, DataBundle
from trainwright.datasets.text import TextDataset, TextParams
from trainwright.errors import DataError
from trainwright.types import INPUT_IDS, LABELS

TOKENS = (np.cumsum(np.random.default_rng(0).integers(0, 3, 5000)) % 400).astype(np.uint16)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The layout of nanoGPT."""
    TOKENS[:4500].tofile(tmp_path / "train.bin")
    TOKENS[4500:].tofile(tmp_path / "val.bin")
    return tmp_path


def loaded(folder: Path, dtype: str = "uint16", **params: Any) -> DataBundle:
    paths = {"train_path": str(folder / "train.bin"), "val_path": str(folder / "val.bin")}
    given = TextParams.model_validate({"dtype": dtype, "length": 16, **params})
    return TextDataset(DataConfig(type="text", **paths), given).load(PLAIN)


def test_windows_hold_the_tokens_of_the_files(folder: Path) -> None:
    bundle = loaded(folder)
    batch = bundle.splits["train"].take(np.array([7, 0]))
    np.testing.assert_array_equal(batch[INPUT_IDS], [TOKENS[112:128], TOKENS[:16]])
    np.testing.assert_array_equal(batch[LABELS], [TOKENS[113:129], TOKENS[1:17]])
    assert bundle.info.outputs == int(TOKENS.max()) + 1
    assert loaded(folder, vocab_size=50304).info.outputs == 50304


def test_one_file_is_cut_into_splits(folder: Path) -> None:
    config = DataConfig(type="text", path=str(folder / "train.bin"), split={"val": 0.2, "test": 0.1})  # type: ignore[arg-type]
    splits = TextDataset(config, TextParams(dtype="uint16", length=16)).load(PLAIN).splits
    first = splits["val"].take(np.zeros(1, np.int64))[INPUT_IDS][0]
    np.testing.assert_array_equal(first, TOKENS[:4500][int(4500 * 0.7) :][:16])


@pytest.mark.parametrize(
    ("dtype", "params", "said"),
    [
        ("uint16", {"vocab_size": 100}, "there are at most 100"),
        ("int64", {}, r"data\.dtype"),
        ("uint16", {"tokenizer": "bpe"}, "bpe is trained on texts"),
        ("uint16", {"end_of_text": True}, r"data\.end_of_text is for texts"),
    ],
)
def test_what_does_not_fit_is_refused(folder: Path, dtype: str, params: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        loaded(folder, dtype, **params)


def test_a_file_that_ends_within_a_token_is_refused(folder: Path) -> None:
    (folder / "val.bin").write_bytes(b"\1\2\3")
    with pytest.raises(DataError, match="has 3 bytes, which are no tokens in uint16"):
        loaded(folder)


def test_a_model_is_judged_by_tokens_where_bytes_are_not_known(folder: Path) -> None:
    config = {
        "data": {
            "type": "text",
            "train_path": str(folder / "train.bin"),
            "val_path": str(folder / "val.bin"),
            "dtype": "uint16",
            "length": 16,
        },
        "model": {"type": "gpt", "hidden_size": 16, "num_layers": 1, "num_heads": 2},
        "training": {"max_steps": 4, "batch_size": 8, "threads": 1},
    }
    run = trainwright.train(config, runs_dir=folder)
    assert set(run.metrics) == {"val_loss", "val_perplexity", "val_token_accuracy"}
    assert run.metrics["val_perplexity"] == pytest.approx(np.exp(run.metrics["val_loss"]))
    assert trainwright.reproduce(run).verdict == "identical"
    with pytest.raises(DataError, match="no tokenizer says which texts"):
        trainwright.load(run).generate("abc")
