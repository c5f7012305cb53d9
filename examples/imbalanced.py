"""Learn from a rare class: compare a plain loss with class weights and with the focal loss.

Run it with `python examples/imbalanced.py`. It downloads nothing, and takes some seconds. The data are
scikit-learn's breast cancer, of which only every tenth malignant row is left.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from sklearn.datasets import load_breast_cancer

import trainwright

LOSSES: dict[str, dict[str, Any]] = {
    "cross entropy": {},
    "balanced class weights": {"class_weights": "balanced"},
    "weights by hand": {"class_weights": {"malignant": 5}},
    "focal loss": {"loss": "focal", "focal_gamma": 2.0},
    "focal, with weights": {"loss": "focal", "class_weights": "balanced"},
}


def rare() -> pd.DataFrame:
    """Return the rows as a table, with `diagnosis` as the target."""
    data = load_breast_cancer(as_frame=True)
    frame = data.frame.drop(columns="target").assign(diagnosis=data.target_names[data.target])
    malignant = np.flatnonzero(frame["diagnosis"] == "malignant")
    kept: pd.DataFrame = frame.drop(index=np.setdiff1d(malignant, malignant[::10]))
    return kept


def main() -> None:
    """Train a model for each loss, and print what it finds of both classes on test rows."""
    frame = rare()
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{(frame['diagnosis'] == 'malignant').sum()} of {len(frame)} rows are malignant")
    for name, training in LOSSES.items():
        config = {
            "experiment": {"name": "imbalanced", "seed": 1},
            "data": {"target": "diagnosis", "split": {"test": 0.4}},
            "model": {"type": "mlp", "hidden": [16]},
            "training": {"epochs": 20, "learning_rate": 0.003, "threads": 1, **training},
            "evaluation": {"metrics": ["accuracy", "balanced_accuracy", "f1_macro"]},
            "checkpoint": {"metric": "val_balanced_accuracy"},
        }
        metrics = trainwright.train(config, data=frame).metrics
        found = ", ".join(
            f"{metric} {metrics[f'test_{metric}']:.3f}"
            for metric in ("accuracy", "balanced_accuracy", "f1_macro")
        )
        console.print(f"{name:24}{found}")


if __name__ == "__main__":
    main()
