"""Runs whose layers are computed in slices: one digest on every mesh, also across kills."""

import subprocess
from pathlib import Path
from typing import ClassVar

import pytest

from trainwright.testing.strategy_suite import StrategySuite

PLAN = ['distributed.plan={"colwise": ["blocks.*.1.0"], "rowwise": ["blocks.*.1.3"]}']


@pytest.mark.services
class TestTensor(StrategySuite):
    """Two processes, each with a slice of each block."""

    strategy = "ddp"
    model = "staged_net:Net"
    virtual: ClassVar = {"tensor": 2}
    passes: ClassVar = {1: 8, 2: 8}  # of a process in a step: 4 virtual ranks of 2 microbatches

    def _call(self, rank: int, processes: int, step: int) -> str:
        first = 2 if "pipeline" in self.virtual else 1  # after the pass that finds the stages
        return f"{rank}@{step * self.passes[processes] + first}"

    def _train(
        self, folder: Path, processes: int, *words: str, kill: str = ""
    ) -> subprocess.CompletedProcess[str]:
        virtual = [f"distributed.virtual.{axis}={size}" for axis, size in self.virtual.items()]
        mesh = [f"distributed.{axis}={size}" for axis, size in self.virtual.items() if processes > 1]
        return super()._train(folder, processes, *PLAN, *virtual, *mesh, *words, kill=kill)


@pytest.mark.services
class TestTensorAndPipeline(TestTensor):
    """Four processes: two stages, of two slices each."""

    processes = 4
    virtual: ClassVar = {"tensor": 2, "pipeline": 2}
    passes: ClassVar = {1: 16, 4: 8}  # of each stage
