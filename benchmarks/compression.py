"""Compression, and compiled code, measured: `python benchmarks/compression.py`.

- Three runs (a network and LightGBM on a table, a CNN on digits, a small GPT), compressed in some ways: size,
  latency for 1 and 64 rows, memory and a metric, each child beside its parent in one process.
- The modules of the three networks in PyTorch alone, for 1 and 64 rows: eager, by `torch.compile`, and as a
  package of AOTInductor, with the seconds that it takes to compile.
- The network and the CNN in ONNX, as they are and quantized: size, and latency of raw rows.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from harness import machine, table, temporary_folder

import trainwright
from trainwright.runs.run import Run

BATCHES, REPEATS, WARM = (1, 64), 30, 5
ROWS, COLUMNS = 6000, 20
WORDS, LENGTH = 120_000, 64
Config = dict[str, Any]
WAYS: Mapping[str, list[dict[str, Any]]] = {
    "mlp": [
        {"quantize": "int8-dynamic"},
        {"quantize": "int8-static"},
        {"quantize": "bf16"},
        {"prune": 0.5},
        {"prune": 0.5, "structured": True},
    ],
    "lightgbm": [{"prune": 0.25}, {"prune": 0.5}],
    "cnn": [{"quantize": "int8-static"}, {"quantize": "int8-dynamic"}, {"quantize": "bf16"}],
    "gpt": [
        {"quantize": "int8-dynamic"},
        {"quantize": "int8-weight-only"},
        {"quantize": "int4-weight-only"},
        {"quantize": "bf16"},
    ],
}
HEAD = ["module", "", "ms, 1 row", "ms, 64 rows", "seconds to compile"]
ONNX_HEAD = ["model", "quantize", "MB", "mean difference", "equal labels", "ms, 1 row", "ms, 64 rows"]
METRIC = {"mlp": "test_f1", "lightgbm": "test_f1", "cnn": "test_accuracy", "gpt": "test_loss"}


def configs(folder: Path) -> dict[str, Config]:
    """Return the configs of the runs; their data are written into a folder."""
    random = np.random.default_rng(0)
    frame = pd.DataFrame(random.normal(size=(ROWS, COLUMNS)), columns=[f"x{i}" for i in range(COLUMNS)])
    score = frame.x0 * frame.x1 + frame.x2 + np.sin(3 * frame.x3) + random.normal(size=ROWS) * 0.5
    frame.assign(label=np.where(score > 0, "yes", "no")).to_csv(folder / "rows.csv", index=False)
    words = [f"w{i}" for i in range(300)]
    odds = 1 / np.arange(1, len(words) + 1)
    text = " ".join(random.choice(words, WORDS, p=odds / odds.sum()))
    (folder / "text.txt").write_text(text, encoding="utf-8")
    rows = {"path": str(folder / "rows.csv"), "target": "label"}
    training = {"threads": 1, "batch_size": 64}
    return {
        "mlp": {
            "data": rows,
            "model": {"type": "mlp", "params": {"hidden": [512, 512]}},
            "training": {**training, "epochs": 8},
        },
        "lightgbm": {"data": rows, "model": {"type": "lightgbm"}, "training": {"threads": 1, "epochs": 200}},
        "cnn": {
            "data": {"type": "digits"},
            "model": {"type": "cnn", "params": {"filters": [32, 64], "normalization": "batch"}},
            "training": {**training, "epochs": 10},
        },
        "gpt": {
            "data": {"type": "text", "path": str(folder / "text.txt"), "length": LENGTH},
            "model": {
                "type": "gpt",
                "params": {"hidden_size": 256, "num_layers": 4, "num_heads": 4, "tie_embeddings": False},
            },
            "training": {**training, "batch_size": 16, "max_steps": 150, "learning_rate": 1e-3},
        },
    }


def compressed(name: str, parent: Run) -> None:
    """Compress a run in each way, and print a table."""
    metric, lines = METRIC[name], []
    for how in WAYS[name]:
        found = trainwright.compress(parent, **how).compression
        one, other = found["parent"], found["child"]
        words = " ".join(str(value) if key != "structured" else key for key, value in how.items())
        cells = [f"{one[key]:.3g} -> {other[key]:.3g}" for key in ("latency_1", "latency_64", metric)]
        sizes = [
            f"{one[key] / 1e6:.3g} -> {other[key] / 1e6:.3g}" if key in other else ""
            for key in ("bytes", "memory")
        ]
        lines.append([words, sizes[0], *cells[:2], sizes[1], cells[2]])
    print(f"\n{name}, parent -> child\n")
    print(table(["", "MB", "ms, 1 row", "ms, 64 rows", "MB of memory", metric], lines))


def milliseconds(call: Callable[[], Any]) -> float:
    """Return the median time of a call."""
    times = []
    for repeat in range(WARM + REPEATS):
        start = time.perf_counter()
        call()
        times += [1000 * (time.perf_counter() - start)] if repeat >= WARM else []
    return statistics.median(times)


def packaged(module: torch.nn.Module, inputs: torch.Tensor, path: Path) -> Any:
    """Return a module as a package of AOTInductor, for any number of rows."""
    rows = torch.export.Dim("rows", min=1, max=4096)
    twice = torch.cat([inputs, inputs])  # an example of one row would fix their number
    program = torch.export.export(module, (twice,), dynamic_shapes=({0: rows},))
    package: Any = torch._inductor
    made = package.aoti_compile_and_package(program, package_path=str(path))
    return package.aoti_load_package(made)


def compiled(name: str, parent: Run, folder: Path) -> list[list[str]]:
    """Return the latencies of a module: eager, compiled, packaged."""
    predictor = trainwright.load(parent)
    module, split = predictor.native.eval(), predictor.load_data().splits["test"]
    (key,) = predictor.model.input_names or ("features",)
    inputs = {
        count: torch.from_numpy(split.take(np.resize(np.arange(len(split)), count))[key]) for count in BATCHES
    }
    ways: dict[str, tuple[Callable[[torch.Tensor], Any], float]] = {"eager": (module, 0.0)}
    start = time.perf_counter()
    by_compile: Any = torch.compile(module, dynamic=True)
    with torch.no_grad():
        for one in inputs.values():
            by_compile(one)
    ways["torch.compile"] = by_compile, time.perf_counter() - start
    start = time.perf_counter()
    try:
        with torch.no_grad():
            package = packaged(module, inputs[64], folder / f"{name}.pt2")
        ways["AOTInductor"] = package, time.perf_counter() - start
    except Exception as error:  # a module that fixes the number of rows, say
        print(f"{name} cannot be packaged for any number of rows: {str(error).splitlines()[0]}")
    lines = []
    with torch.no_grad():
        for way, (call, seconds) in ways.items():
            times = [milliseconds(partial(call, one)) for one in inputs.values()]
            lines.append([name, way, *(f"{one:.3g}" for one in times), f"{seconds:.0f}" if seconds else ""])
    return lines


def in_onnx(name: str, parent: Run, folder: Path) -> list[list[str]]:
    """Return size, latencies and differences of a run's artifacts of ONNX, quantized in each way."""
    import onnxruntime

    from trainwright.exporters.certificates.inputs import inputs_of
    from trainwright.exporters.certificates.samples import real_rows
    from trainwright.records.artifact import read_certificate

    predictor = trainwright.load(parent)
    inputs = inputs_of(predictor)
    sample = real_rows(predictor.load_data(), predictor, inputs)
    assert sample is not None
    one_thread = onnxruntime.SessionOptions()
    one_thread.intra_op_num_threads = 1
    sessions, lines = {}, {}
    for way in ("none", "int8-dynamic", "int8-static", "int8-weight-only"):
        path = folder / f"{name}-{way}.onnx"
        tolerance = None if way == "none" else 0.9
        trainwright.export(parent, path, options={"quantize": way}, tolerance=tolerance)
        sessions[way] = onnxruntime.InferenceSession(path.read_bytes(), one_thread)
        known = read_certificate(path)
        found = [f"{known.compared['mean_difference']:.2g}", f"{known.compared['equal_labels']:.1%}"]
        lines[way] = [name, way, f"{path.stat().st_size / 1e6:.3g}", *found]
    for count in BATCHES:
        feeds = sample.take(np.resize(np.arange(len(sample)), count).tolist()).feeds(inputs)
        times: dict[str, list[float]] = {way: [] for way in sessions}
        for repeat in range(WARM + 10 * REPEATS):
            for way, session in sessions.items():
                start = time.perf_counter()
                session.run(None, feeds)
                times[way] += [1000 * (time.perf_counter() - start)] if repeat >= WARM else []
        for way, own in times.items():
            lines[way].append(f"{statistics.median(own):.3g}")
    return list(lines.values())


def main() -> None:
    """Train, compress, compile and export, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", choices=["compressed", "compiled", "onnx"])
    only = parser.parse_args().only
    torch.set_num_threads(1)
    print(machine())
    with temporary_folder() as folder:
        made = configs(folder)
        for name, config in made.items() if only in (None, "compressed") else ():
            compressed(name, trainwright.train(config, runs_dir=folder / "runs", quiet=True))
        for name in ("mlp", "cnn") if only in (None, "onnx") else ():
            run = trainwright.train(made[name], runs_dir=folder / "runs", quiet=True)
            print(table(ONNX_HEAD, in_onnx(name, run, folder)), flush=True)
        if only in (None, "compiled"):
            print("\nin PyTorch alone, one thread\n", flush=True)
        for name in ("mlp", "cnn", "gpt") if only in (None, "compiled") else ():
            short = {"training.max_steps": 2, "training.epochs": None}  # what is learned takes no time
            run = trainwright.train(made[name], short, runs_dir=folder / "runs", quiet=True)
            print(table(HEAD, compiled(name, run, folder)), flush=True)


if __name__ == "__main__":
    main()
