"""Predict with a model that Trainwright exported to PMML. It needs JPMML (jpmml_evaluator) and Java.

python model.pmml.reader.py predict rows.csv      # the predictions, as CSV
python model.pmml.reader.py verify [rows.csv]     # compares the model with its certificate
"""

import sys
from pathlib import Path
from typing import Any

import jpmml_evaluator
import numpy as np
import pandas as pd

from trainwright.exporters.certificates.reader import Arrays, Model, main


def open_artifact(path: Path) -> Model:
    """Return a function from inputs to outputs, both arrays (rows, ...) by name."""
    evaluator = jpmml_evaluator.make_evaluator(str(path))

    def predict(feeds: Arrays) -> dict[str, Any]:
        columns = evaluated(evaluator, feeds)
        if "label" not in columns:
            return {"prediction": columns["prediction"].astype(np.float64)[:, None]}
        shares = [one for name, one in columns.items() if name.startswith("probability(")]
        return {"label": columns["label"], "probabilities": np.stack(shares, axis=1).astype(np.float64)}

    return predict


def evaluated(evaluator: Any, feeds: Arrays) -> dict[str, Any]:
    """Return the outputs that a document names, (rows,) each, in their order."""
    found, errors = evaluator.evaluateAll(pd.DataFrame(fields(feeds)), error_col=None)
    if errors is not None:
        raise ValueError(next(one for one in errors if one is not None))
    return {one.getName(): found[one.getName()].to_numpy() for one in evaluator.getOutputFields()}


def fields(feeds: Arrays) -> dict[str, Any]:
    """Return inputs, (rows, 1) or (rows, n), as columns of PMML, in which None is a missing value."""
    columns = {}
    for name, given in feeds.items():
        values = np.asarray(given).reshape(len(given), -1)
        if values.dtype.kind == "i":  # times, in microseconds
            values = np.where(values == np.iinfo(np.int64).min, np.nan, values.astype(np.float64))
        for i in range(values.shape[1]):
            column = values[:, i].astype(object)
            column[pd.isna(column) | (column == "")] = None
            own = name if values.shape[1] == 1 else f"{name}[{i}]"
            columns[own] = column
    return columns


if __name__ == "__main__":
    main(sys.argv[1:], open_artifact)
