"""Models in PMML predict what their runs predict, from raw rows: JPMML opens them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, ClassVar

import pytest

from trainwright.exporters.pmml import PmmlExporter
from trainwright.testing.exporter_suite import ExporterSuite

pytestmark = [
    pytest.mark.services,
    pytest.mark.skipif(
        shutil.which("java") is None, reason="needs Java: apt-get install default-jre-headless"
    ),
]
MEDIAN = {"data.impute": "median"}


class TestPmml(ExporterSuite):
    exporter = PmmlExporter
    form = "pmml"
    models: ClassVar[dict[str, dict[str, Any]]] = {
        "lightgbm": {},
        "mlp": {**MEDIAN, "training.batch_size": 32},
        "random_forest": {},
        "bagging": {
            "model": {"type": "sklearn.ensemble:BaggingClassifier", "params": {"max_features": 0.6}},
            **MEDIAN,
        },
        "logistic_regression": {"data.encode": "frequency", **MEDIAN},
        "price": {"model": "mlp", "data.target": "income", "data.target_transform": "log1p", **MEDIAN},
        "city": {"model": "lightgbm", "data.target": "city", "data.missing_target": "drop"},
    }

    def damage(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace('intercept="0.0"', 'intercept="0.5"', 1), encoding="utf-8")
