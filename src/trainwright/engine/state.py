"""The state of the loop: with the framework's tensors, all that a resume needs.

The rest is a function of it. The position in the data and the learning rate follow from the step number; the
best models, the early stop and the drops of a plateau schedule follow from the history of evaluations.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainwright.records.decision import Decisions, decisions_from_json
from trainwright.records.journal import finite, number
from trainwright.types import Evaluation


@dataclass
class RunState:
    """The state of the loop after `step` steps.

    `settled` is the last step that was evaluated, decided on and journalled as far as due; it is behind
    `step` only if a signal cut an evaluation short; then `measures` are what the framework measured in the
    last step, which a resume logs before it makes one. `logged` are the sums over rows, and the numbers of
    these, of what the model has logged itself. The next `train_loss` is `loss_sum` / `loss_samples`.
    """

    step: int = 0
    settled: int = 0
    loss_sum: float = 0.0
    loss_samples: int = 0
    evaluations: list[Evaluation] = field(default_factory=list)
    train_seconds: float = 0.0
    decisions: Decisions = field(default_factory=Decisions)
    measures: dict[str, float] = field(default_factory=dict)
    logged: dict[str, tuple[float, int]] = field(default_factory=dict)
    _encoded: list[Any] = field(default_factory=list, init=False, repr=False, compare=False)  # as JSON

    def to_json(self) -> dict[str, Any]:
        """Return the state, and that of the global generators, which users' code may draw from."""
        return {
            "step": self.step,
            "settled": self.settled,
            "loss_sum": finite(self.loss_sum),
            "loss_samples": self.loss_samples,
            "evaluations": self._encoded_evaluations(),
            "train_seconds": self.train_seconds,
            "decisions": self.decisions.to_json(),
            "measures": {name: finite(value) for name, value in self.measures.items()},
            "logged": {name: [finite(total), rows] for name, (total, rows) in self.logged.items()},
            "random": _global_random(),
        }

    def _encoded_evaluations(self) -> list[Any]:
        """Return the evaluations for JSON.

        Each is encoded once, as a long run has many and saves them often.
        """
        for evaluation in self.evaluations[len(self._encoded) :]:
            metrics = {name: finite(value) for name, value in evaluation.metrics.items()}
            self._encoded.append([evaluation.step, metrics])
        return self._encoded.copy()

    @staticmethod
    def from_json(data: dict[str, Any]) -> RunState:
        """Restore the global generators, and return the state."""
        _restore_global_random(data["random"])
        evaluations = evaluations_from_json(data["evaluations"])
        scalars = {key: data[key] for key in ("step", "settled", "loss_samples", "train_seconds")}
        return RunState(
            **scalars,
            loss_sum=number(data["loss_sum"]),
            evaluations=evaluations,
            decisions=decisions_from_json(data["decisions"]),
            measures={name: number(value) for name, value in data["measures"].items()},
            logged={name: (number(total), rows) for name, (total, rows) in data["logged"].items()},
        )


def evaluations_from_json(data: list[Any]) -> list[Evaluation]:
    """Return the history of evaluations that `RunState.to_json` wrote."""
    return [
        Evaluation(step, {name: number(value) for name, value in metrics.items()}) for step, metrics in data
    ]


def _global_random() -> dict[str, Any]:
    version, internal, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": [version, list(internal), gauss],
        "numpy": [str(name), np.asarray(keys).tolist(), int(position), int(has_gauss), float(cached)],
    }


def _restore_global_random(data: dict[str, Any]) -> None:
    version, internal, gauss = data["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = data["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
