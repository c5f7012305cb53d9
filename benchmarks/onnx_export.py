"""Latency of models in ONNX against the same by hand, and the time to export: `onnx_export.py`.

By hand, a model of prepared features is made by `skl2onnx` or `torch.onnx.export`; its rows are prepared
beforehand, for nothing. Ours is measured whole, with raw columns, and its part that is the model alone: up to
the probabilities, and up to the labels where those by hand have them.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from harness import machine, table

import trainwright
from trainwright.inference.predictor import Predictor

SIZES = (1, 64)
MODELS = {
    "logistic_regression": {},
    "random_forest": {"n_estimators": 50},
    "gradient_boosting": {},
    "mlp": {},
}


def main() -> None:
    """Train, export, measure in turns and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    print(machine())
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "rows.csv")
        for kind, params in MODELS.items():
            config = {
                "data": {"type": "csv", "path": str(folder / "rows.csv"), "target": "y", "impute": "median"},
                "model": {"type": kind, "params": params},
                "training": {"threads": 1},
            }
            run = trainwright.train(config, runs_dir=folder / "runs", quiet=True)
            began = time.perf_counter()
            path = trainwright.export(run, folder / f"{kind}.onnx", "onnx")
            seconds = time.perf_counter() - began
            rows += measured(kind, trainwright.load(run), path, seconds, rounds)
    print(table(["model", "rows", "by hand us", "model us", "ratio", "raw columns us", "export s"], rows))


def write(path: Path) -> None:
    """Write a table of numbers, categories and dates."""
    import pandas as pd

    draw, rows = np.random.default_rng(0), 4000
    numbers = {f"x{i}": draw.standard_normal(rows).round(4) for i in range(10)}
    words = {f"c{i}": draw.choice([f"word {j}" for j in range(8)], rows) for i in range(3)}
    days = pd.Timestamp("2020-01-01") + pd.to_timedelta(draw.integers(0, 2000, rows), unit="D")
    frame = pd.DataFrame({**numbers, **words, "day": days.strftime("%Y-%m-%d")})
    frame.assign(y=np.where(frame["x0"] + frame["x1"] > 0, "yes", "no")).to_csv(path, index=False)


def measured(kind: str, predictor: Predictor, path: Path, seconds: float, rounds: int) -> list[list[str]]:
    """Return the rows of the table for a model."""
    features = int(np.prod(predictor.info.input_shape))
    hand = session(by_hand(predictor, features))
    whole, alone = (
        session(onnx.load(path).SerializeToString()),
        session(model_alone(path, features, len(hand.get_outputs()))),
    )
    rows = []
    for size in SIZES:
        draw = np.random.default_rng(1).standard_normal((size, features)).astype(np.float32)
        feeds, (given,) = raw(whole, size), (one.name for one in hand.get_inputs())
        calls = {
            "hand": partial(hand.run, None, {given: draw}),
            "alone": partial(alone.run, None, {FEATURES: draw}),
            "whole": partial(whole.run, None, feeds),
        }
        least = {name: float("inf") for name in calls}
        for _ in range(rounds):  # in turns
            for name, call in calls.items():
                least[name] = min(least[name], latency(call))
        micros = [f"{1e6 * least[name]:.1f}" for name in ("hand", "alone", "whole")]
        ratio = f"{least['hand'] / least['alone']:.2f}x"
        rows.append([kind, str(size), micros[0], micros[1], ratio, micros[2], f"{seconds:.1f}"])
    return rows


FEATURES = "/tw/features"


def session(model: bytes) -> onnxruntime.InferenceSession:
    """Open a model with one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def by_hand(predictor: Predictor, features: int) -> bytes:
    """Return the model of prepared features as its library's documentation exports it."""
    trained: Any = predictor.trained_model
    if hasattr(trained, "predicting"):
        import torch

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "model.onnx")
            batch = torch.export.Dim("batch")
            program: Any = torch.onnx.export(
                trained.predicting.cpu(),
                (torch.zeros(2, features),),
                dynamic_shapes=({0: batch},),
                dynamo=True,
                external_data=False,
                verbose=False,
            )
            program.save(path)
            return path.read_bytes()
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType

    estimator = trained.native
    made = to_onnx(
        estimator,
        initial_types=[("X", FloatTensorType([None, features]))],
        options={id(estimator): {"zipmap": False}},
    )
    return bytes(made.SerializeToString())


def model_alone(path: Path, features: int, outputs_by_hand: int) -> bytes:
    """Return our model without its preparation, and without labels if those by hand have none."""
    with tempfile.TemporaryDirectory() as folder:
        part = Path(folder, "part.onnx")
        outputs = [one.name for one in onnx.load(path).graph.output][-outputs_by_hand:]
        onnx.utils.extract_model(str(path), str(part), [FEATURES], outputs, check_model=False)
        model = onnx.load(part)
    shape = onnx.helper.make_tensor_value_info(FEATURES, onnx.TensorProto.FLOAT, ["rows", features])
    model.graph.input[0].CopyFrom(shape)
    return bytes(model.SerializeToString())


def raw(whole: onnxruntime.InferenceSession, size: int) -> dict[str, np.ndarray]:
    """Return raw columns."""
    kinds = {"tensor(string)": ("word 1", object), "tensor(int64)": (10**15, np.int64)}
    feeds = {}
    for one in whole.get_inputs():
        value, dtype = kinds.get(one.type, (0.5, np.float64))
        feeds[one.name] = np.full((size, 1), value, dtype)
    return feeds


def latency(call: Any, seconds: float = 0.05) -> float:
    """Return the median time of a call in seconds."""
    taken: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(taken) < 5:
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return float(np.median(taken))


if __name__ == "__main__":
    main()
