"""Start the processes of a run, and let them find each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwright.config.schema import RunConfig, bounds
from trainwright.errors import InputError
from trainwright.frameworks.base import LearnerInputs, Processes
from trainwright.frameworks.torch.device import device_named, require_libraries
from trainwright.world import World, gpus, ranks_of_environment

if TYPE_CHECKING:
    from trainwright.records.mesh_estimate import Machines, MeshPlan


class TorchProcesses(Processes):
    """Processes that torch's elastic agent starts, as torchrun does, and that are one process group."""

    def join(self, config: RunConfig) -> World:
        """Return the world of torch's process group."""
        backend = config.distributed.backend
        if backend == "auto":
            backend = "nccl" if _on_gpus(config) else "gloo"
        from trainwright.frameworks.torch.parallel.world import join

        return join(backend, config.distributed.mesh)

    def launch(self, config: RunConfig, command: Sequence[str], folder: Path) -> int | None:
        """Start the processes, and wait for their end."""
        require_libraries()
        from trainwright.frameworks.torch.parallel.launch import launch

        if config.distributed.backend == "nccl" and not _on_gpus(config):
            raise InputError(
                "distributed.backend: nccl is for processes on GPUs, and these train on the CPU; leave it out"
            )
        is_cuda = _on_gpus(config) and config.distributed.backend != "gloo"
        if is_cuda and (least := bounds(config.distributed.nproc)[0]) > gpus():
            raise InputError(
                f"distributed.nproc: {least} processes need a GPU each, but this machine has {gpus()}; give "
                f"distributed.nproc={gpus()}, or set distributed.backend: gloo (they share a GPU), or "
                "training.device: cpu"
            )
        return launch(config.distributed, command, folder, gpus() if is_cuda else None)

    def check(self, nproc: int) -> Mapping[str, Any]:
        """Measure all-reduces over gloo."""
        require_libraries()
        from trainwright.frameworks.torch.parallel import check, launch

        return launch.check(nproc) if ranks_of_environment() is None else check.here()

    def plan(
        self, inputs: LearnerInputs, machines: Machines, *, is_free: bool, refusals: Sequence[str] = ()
    ) -> MeshPlan:
        """Estimate from the shapes of a model without memory."""
        require_libraries()
        from trainwright.frameworks.torch.planning.estimate import plan

        return plan(inputs, machines, is_free=is_free, refusals=refusals)


def _on_gpus(config: RunConfig) -> bool:
    """Return whether the processes train on GPUs."""
    return device_named(config.training.device).type == "cuda"
