"""The contract suite of strategies: several processes end with the bits of one, also after one was killed.

    class TestMine(StrategySuite):
        strategy = "mine"

The contract is in `frameworks/torch/parallel/strategy.py`. The suite trains a model on scikit-learn's digits
in processes that it starts and kills.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from trainwright.testing.strategy_model import KILL

CONFIG: Mapping[str, Any] = {
    "experiment": {"name": "strategy", "seed": 5},
    "data": {"type": "digits"},
    "model": {"type": "trainwright.testing.strategy_model:Net"},
    "training": {
        "max_steps": 24,
        "batch_size": 39,
        "microbatch_size": 6,
        "learning_rate": 0.003,
        "max_grad_norm": 0.5,
        "threads": 1,
    },
    "evaluation": {"every_n_steps": 7, "batch_size": 16},
    "checkpoint": {"every_n_steps": 5, "every_n_minutes": None},
    "distributed": {"virtual": {"data": 4}},
}
_FORWARDS = 2  # passes of a virtual rank in a step: 39 samples in 4 parts, of at most 6 each


class StrategySuite:
    """Tests of the contract; subclass it in a test module of the adapter."""

    strategy: ClassVar[str]
    processes: ClassVar[int] = 2
    model: ClassVar[str] = "trainwright.testing.strategy_model:Net"  # or one that derives from it

    @pytest.fixture(scope="class")
    def alone(self, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
        """Return the result of the run in one process."""
        return self._result(self._train(tmp_path_factory.mktemp("alone"), 1))

    def test_the_bits_of_one_process_though_one_is_killed(
        self, alone: dict[str, Any], tmp_path: Path
    ) -> None:
        """Weights, best model, and the metrics of all evaluations."""
        last = self.processes - 1
        result = self._result(
            self._train(tmp_path, self.processes, kill=self._call(last, self.processes, 13))
        )
        assert result["attempts"] == 2
        self._compare(result, alone)

    @pytest.mark.parametrize("first_alone", [False, True])
    def test_a_run_goes_on_in_another_number_of_processes(
        self, first_alone: bool, alone: dict[str, Any], tmp_path: Path
    ) -> None:
        """From the newest commit, in one process after several, and the other way round."""
        first, second = (1, self.processes) if first_alone else (self.processes, 1)
        killed = self._train(tmp_path, first, "distributed.max_restarts=0", kill=self._call(0, first, 17))
        assert killed.returncode != 0, killed.stdout
        (run,) = (tmp_path / "runs" / "strategy").iterdir()
        assert sorted(path.name for path in (run / "checkpoints").iterdir()), (
            "there is something to go on from"
        )
        placement = [f"distributed.nproc={second}", f"distributed.strategy={self.strategy}"]
        words = ["resume", run.name, *placement, "--trust"]
        result = self._result(self._command(tmp_path, *words))
        self._compare(result, alone)

    def _call(self, rank: int, processes: int, step: int) -> str:
        """Return which forward pass of a process is its first in a step."""
        ranks = CONFIG["distributed"]["virtual"]["data"] // processes
        return f"{rank}@{step * ranks * _FORWARDS + 1}"

    def _train(
        self, folder: Path, processes: int, *words: str, kill: str = ""
    ) -> subprocess.CompletedProcess[str]:
        (folder / "config.yaml").write_text(json.dumps(CONFIG), encoding="utf-8")
        placement = [f"distributed.nproc={processes}", f"distributed.strategy={self.strategy}"]
        command = ["train", "config.yaml", f"model.type={self.model}", *placement, *words]
        return self._command(folder, *command, kill=kill)

    @staticmethod
    def _command(folder: Path, *words: str, kill: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command of Trainwright to its end."""
        paths = os.pathsep.join(path for path in sys.path if path)
        variables = {"PYTHONPATH": paths, **({KILL: f"{kill}@{folder / 'killed'}"} if kill else {})}
        return subprocess.run(
            [sys.executable, "-m", "trainwright", *words, "--json", "--quiet"],
            cwd=folder,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )

    @staticmethod
    def _result(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
        assert done.returncode == 0, done.stderr
        result: dict[str, Any] = json.loads(done.stdout)
        return result

    @staticmethod
    def _compare(result: Mapping[str, Any], alone: Mapping[str, Any]) -> None:
        assert result["status"] == alone["status"] == "completed"
        for key in ("digest", "metrics", "best"):
            assert result[key] == alone[key], key
