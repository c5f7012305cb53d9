"""Folders for `from_pretrained` compute the logits of the run, and have its tokenizer."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import trainwright
from late import Late
from trainwright.errors import InputError
from trainwright.exporters.huggingface import HuggingfaceExporter, PeftExporter
from trainwright.runs.run import Run
from trainwright.testing.exporter_suite import ExporterSuite

pytestmark = [
    pytest.mark.services,
    pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed"),
]
transformers: Any = Late(lambda: importlib.import_module("transformers"))
_SIZES = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 24}
BERT = {"model_type": "bert", "vocab_size": 300, "max_position_embeddings": 16, **_SIZES}


def changed(file: Path) -> None:
    """Change a weight that the logits depend on."""
    weights = load_file(file)
    name = next(one for one in weights if one.endswith("classifier.weight"))
    weights[name] = weights[name] + 0.5
    save_file(weights, file, {"format": "pt"})


class _OfTexts(ExporterSuite):
    """The suite on a model that classifies texts."""

    takes_rows = False
    lora: ClassVar[dict[str, Any]] = {}
    models: ClassVar[dict[str, dict[str, Any]]] = {"bert": {}}

    @pytest.fixture(scope="class")
    def run_of(self, folder: Path) -> Callable[[str], Run]:
        """Return a function to one run."""
        draws = np.random.default_rng(0)
        words = [["good", "fine", "bad", "poor"][i] for i in draws.integers(0, 4, 120)]
        lines = [f"it is {word},{'yes' if word in ('good', 'fine') else 'no'}" for word in words]
        (folder / "texts.csv").write_text("said,liked\n" + "\n".join(lines) + "\n")
        torch.manual_seed(0)
        base = transformers.BertForSequenceClassification(transformers.BertConfig(num_labels=2, **BERT))
        base.save_pretrained(folder / "base")
        params = {"text": "said", "tokenizer": "bpe", "vocab_size": 300, "max_length": 12}
        data = {"type": "text_table", "path": "texts.csv", "target": "liked", "params": params}
        model = {"type": "transformers:AutoModelForSequenceClassification", "path": str(folder / "base")}
        config = {"data": data, "model": {**model, **self.lora}, "training": {"batch_size": 16, "threads": 1}}
        run = trainwright.train(config, {"training.max_steps": 4}, runs_dir=folder / "runs", quiet=True)
        return lambda _: run

    def test_a_wrong_artifact_does_not_appear(
        self, run_of: Callable[[str], Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is compared, by its logits, although it takes no rows."""
        monkeypatch.setattr(type(self), "takes_rows", True)
        super().test_a_wrong_artifact_does_not_appear(run_of, tmp_path, monkeypatch)

    def test_it_predicts_no_rows(self, run_of: Callable[[str], Run], tmp_path: Path) -> None:
        run = run_of("bert")
        path = self.exported(run, tmp_path)
        for use in (
            lambda: trainwright.predict(path, "texts.csv"),
            lambda: trainwright.evaluate(path, data="texts.csv"),
            lambda: trainwright.compare(run, path),
        ):
            with pytest.raises(InputError, match=rf"gives logits, which .* or name run {run.id} itself"):
                use()


class TestHuggingface(_OfTexts, ExporterSuite):
    exporter = HuggingfaceExporter
    form = "huggingface"

    def damage(self, path: Path) -> None:
        changed(path / "model.safetensors")

    def test_the_folder_is_opened_by_transformers(self, run_of: Callable[[str], Run], tmp_path: Path) -> None:
        run = run_of("bert")
        path = trainwright.export(run, tmp_path / "m", "huggingface")
        tokenizer = transformers.AutoTokenizer.from_pretrained(path)
        model = transformers.AutoModelForSequenceClassification.from_pretrained(path).eval()
        texts = ["it is good", "it is poor"]
        with torch.no_grad():
            logits = model(
                **tokenizer(texts, return_tensors="pt", padding="max_length", truncation=True)
            ).logits
        expected = trainwright.load(run).predict_proba({"said": np.array(texts, dtype=object)})
        np.testing.assert_allclose(logits.softmax(1).numpy(), expected, atol=1e-5)
        assert sorted(model.config.id2label.values()) == ["no", "yes"]
        assert (path / "README.md").read_text().startswith("---\n")

    def test_what_is_no_model_of_transformers_is_refused(self, folder: Path, tmp_path: Path) -> None:
        config = {"data": {"type": "csv", "path": "rows.csv", "target": "churn"}, "model": "mlp"}
        overrides = ["training.max_steps=2", "training.threads=1", "data.impute=median"]
        run = trainwright.train(config, overrides, runs_dir=folder / "runs", quiet=True)
        with pytest.raises(InputError, match="trained no model of transformers; export its weights"):
            trainwright.export(run, tmp_path / "m", "huggingface")


class TestPeft(_OfTexts, ExporterSuite):
    exporter = PeftExporter
    form = "peft"
    lora: ClassVar[dict[str, Any]] = {"lora": {"r": 4, "alpha": 8}}

    def damage(self, path: Path) -> None:
        changed(path / "adapter_model.safetensors")

    def test_adapters_are_merged_for_transformers(self, run_of: Callable[[str], Run], tmp_path: Path) -> None:
        path = trainwright.export(run_of("bert"), tmp_path / "merged", "huggingface")
        assert not any("lora" in name for name in load_file(path / "model.safetensors"))
        known = json.loads((path / "certificate.json").read_text())
        assert known["compared"]["rows"] == {"edge": 8, "test": 12}
