"""A process that loads a run's model and uses it from many threads, for the contract suite of frameworks.

    python -m trainwright.testing.loader RUN

It prints JSON: what loading and predicting changed in the process; how many calls from threads gave other
outputs than a single thread; how far these outputs are from those of a pinned process; and the metrics of
`evaluate`.
"""

from __future__ import annotations

import json
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from trainwright import api
from trainwright.inference.predictor import Predictor
from trainwright.records.run_dir import RunDir
from trainwright.runs.predictor import open_predictor
from trainwright.testing.process_state import process_state
from trainwright.types import Array, SplitName

_THREADS, _CALLS = 8, 3


def _with_other_settings() -> None:
    """Give the process settings that no run has, so that a change shows."""
    random.seed(1)
    np.random.seed(1)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(3)
        torch.set_deterministic_debug_mode("default")
        torch.manual_seed(1)


def _outputs(predictor: Predictor, split: Any) -> Array:
    """Return the outputs for a split, (rows, ...)."""
    return np.concatenate([part.outputs for part in predictor.model.predict(split)])


def _in_threads(run: str, split: Any, expected: Array) -> int:
    """Predict with two models of a run from many threads at once; return how many outputs differ."""
    models = [api.load(run), api.load(run)]
    with ThreadPoolExecutor(_THREADS) as pool:
        outputs = pool.map(lambda i: _outputs(models[i % 2], split), range(_THREADS * _CALLS))
        return sum(not np.array_equal(one, expected) for one in outputs)


def main(run: str) -> None:
    """Load the model, predict, and print what happened."""
    _with_other_settings()
    bundle = api.load(run).load_data()  # reading data may import libraries, which is not what is compared
    name: SplitName = "test" if "test" in bundle.splits else "val"
    split = bundle.splits[name]
    before = process_state()
    alone = _outputs(api.load(run), split)
    others = _in_threads(run, split, alone)
    after = process_state()
    metrics = api.evaluate(run, split=name)
    pinned = _outputs(open_predictor(RunDir(Path(run)), pinned=True), split)
    answer = {
        "changed": [key for key in before | after if before.get(key) != after.get(key)],
        "others": others,
        "distance": float(np.abs(alone - pinned).max() / np.abs(pinned).max()),
        "metrics": dict(metrics),
    }
    sys.stdout.write(f"{json.dumps(answer)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
