"""Runs whose model is computed in stages: one digest on every mesh, also across kills."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from trainwright.testing.strategy_suite import StrategySuite

STAGES = ["distributed.virtual.pipeline=2", "training.max_grad_norm=null"]


@pytest.mark.services
class TestPipeline(StrategySuite):
    """Two processes, each with a stage; a run that goes on in two after one is copied instead."""

    strategy = "ddp"
    model = "staged_net:Net"

    def _call(self, rank: int, processes: int, step: int) -> str:
        """Return the pass of a process that is its first in a step, after the one that finds the stages."""
        return f"{rank}@{step * 8 * 2 // processes + 2}"  # 4 virtual ranks of 2 microbatches

    def _train(
        self, folder: Path, processes: int, *words: str, kill: str = ""
    ) -> subprocess.CompletedProcess[str]:
        pipeline = [f"distributed.pipeline={processes}"] if processes == 2 else []
        return super()._train(folder, processes, *STAGES, *pipeline, *words, kill=kill)

    @pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
    def test_stages_of_several_processes_each(
        self, strategy: str, alone: dict[str, Any], tmp_path: Path
    ) -> None:
        """Two processes that compute different samples have each stage."""
        words = ["distributed.pipeline=2", f"distributed.strategy={strategy}"]
        result = self._result(super()._train(tmp_path, 4, *STAGES, *words))
        self._compare(result, alone)
