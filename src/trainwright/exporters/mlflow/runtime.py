"""Predict with a model that Trainwright exported for MLflow, by MLflow.

pip install -r requirements.txt            # in this folder
python reader.py predict rows.csv          # the predictions, as CSV
python reader.py verify [rows.csv]         # compares the model with its certificate
"""

import logging
import sys
from pathlib import Path
from typing import Any

import mlflow.pyfunc
import numpy as np
import pandas as pd

from trainwright.exporters.certificates.reader import Arrays, Model, main


def open_artifact(path: Path) -> Model:
    """Return a function from inputs to outputs, both arrays (rows, ...) by name."""
    logging.getLogger("mlflow").setLevel(logging.ERROR)  # which warns of versions
    model = mlflow.pyfunc.load_model(str(path))
    schema = model.metadata.get_input_schema()

    def predict(feeds: Arrays) -> dict[str, Any]:
        if schema.is_tensor_spec():
            named = schema.has_input_names()
            given: Any = dict(feeds) if named else next(iter(feeds.values()))
        else:
            types = {one.name: getattr(one.type, "name", "any") for one in schema.inputs}
            given = pd.DataFrame({name: cells(np.asarray(feeds[name]), types[name]) for name in types})
        return outputs_of(model.predict(given))

    return predict


def cells(values: Any, kind: str) -> Any:
    """Return an input, (rows, 1), as a column of a type of MLflow; missing values are NaN, NaT or None."""
    flat = values[:, 0]
    if flat.dtype.kind == "i":
        flat = flat.astype("datetime64[us]")
    if kind in ("double", "datetime"):
        return flat
    if kind == "long":
        return flat.astype(np.int64)
    if kind == "boolean":
        return pd.Series([None if np.isnan(one) else bool(one) for one in flat], dtype=object)
    return pd.Series([None if pd.isna(one) or one == "" else one for one in flat.tolist()], dtype=object)


def outputs_of(table: Any) -> dict[str, Any]:
    """Return the columns of predictions as arrays by the names in the certificate."""
    chances = [name for name in table.columns if name.startswith("probability_")]
    if not chances:
        return {"prediction": table.to_numpy(np.float64)}
    found = {"probabilities": table[chances].to_numpy(np.float32)}
    return {"label": table["prediction"].to_numpy(), **found} if "prediction" in table else found


if __name__ == "__main__":
    main(sys.argv[1:], open_artifact)
