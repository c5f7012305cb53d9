"""Verbs that use the model of a run in several processes: each has a part of it, and makes the same calls."""

from __future__ import annotations

import os
import pickle
import signal
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainwright.config import Overrides
from trainwright.config.distributed import bounds
from trainwright.config.schema import RunConfig
from trainwright.datasets.samples.files import require_file
from trainwright.engine.signals import Stopped
from trainwright.errors import InputError
from trainwright.frameworks.base import Processes
from trainwright.records.run_dir import RunDir
from trainwright.runs.lookup import mesh_of_overrides
from trainwright.runs.processes.started import packed, processes_of, start
from trainwright.runs.run_config import read_config
from trainwright.runs.workdir import working_for
from trainwright.world import ALONE, RANK_VARIABLES, World, ranks_of_environment

_VALUE = "value"


@dataclass(frozen=True)
class Members:
    """The processes that use a run's model.

    Attributes:
        world: The processes.
        mesh: Their part of the placement, by dotted key: it replaces that of the run.
    """

    world: World = ALONE
    mesh: Mapping[str, Any] = field(default_factory=dict)


ONE = Members()  # this process, in the placement of the run


@dataclass(frozen=True)
class Call:
    """A function that each of several processes calls with the processes, and the same arguments."""

    config: RunConfig
    processes: Processes
    mesh: Mapping[str, Any]
    function: Callable[..., Any]
    arguments: tuple[Any, ...]

    def make(self, folder: Path) -> None:
        """Make the call as one of the processes; the main one leaves the value in a folder."""
        for signum in (signal.SIGTERM, signal.SIGINT):  # nothing is to be saved, and others may be gone
            signal.signal(signum, signal.SIG_DFL)
        world = self.processes.join(self.config)
        for name in RANK_VARIABLES:  # else configs that are read would have the launcher's number
            del os.environ[name]
        value = self.function(Members(world, self.mesh), *self.arguments)
        if world.is_main:
            (folder / _VALUE).write_bytes(pickle.dumps(value))
        world.barrier()
        world.leave()


def over_mesh(
    run: RunDir,
    overrides: Overrides,
    verb: str,
    function: Callable[..., Any],
    *arguments: Any,
    file: Any = None,
    trust: bool = False,
) -> Any:
    """Call a function in the processes that overrides ask for, and return its value in the main one.

    All make the same calls, so the function must depend on its arguments and files alone. Without overrides,
    or for one process, it is called here.

    Args:
        run: The run whose model is used.
        overrides: `distributed.nproc=2` and the like; the rest is as in the run's last attempt.
        verb: What is done with the run, for messages.
        function: Takes `Members`, and the arguments; it can be imported from its module.
        arguments: Its arguments.
        file: The path of a file that it reads, so that processes only start if it is there; data that are
            no path need no file.
        trust: Whether the user trusts the run.

    Raises:
        DataError: There is no such file.
        ConfigError: The mesh does not divide the virtual one of the run.
        InputError: An override is about more than the mesh, or the framework knows no meshes.
        TrainwrightError: What the function raises.
    """
    if not overrides:
        return function(ONE, *arguments)
    with working_for(run, trust=trust):
        own, manifest = read_config(run), run.manifest()
        asked = mesh_of_overrides(run, own, overrides, verb)
    known = manifest.placement if manifest else {}
    mesh = {**known, "distributed.nnodes": 1, **asked}
    mesh = {key: value for key, value in mesh.items() if key.startswith("distributed.")}
    config = own.with_placement({**known, **mesh, "distributed.max_restarts": 0}).config
    if config.distributed.nnodes > 1 or ranks_of_environment() is not None:
        raise InputError(
            f"distributed: {verb} starts its own processes, on one machine; give distributed.nproc, and call "
            "it once, without a launcher"
        )
    if bounds(config.distributed.nproc)[1] == 1:
        return function(Members(mesh=mesh), *arguments)
    if isinstance(file, str | Path):
        require_file(str(file))
    with working_for(run, trust=trust):  # where the code of a model of the user's is found
        processes = processes_of(config)
    content = packed(Call(config, processes, mesh, function, arguments))
    with tempfile.TemporaryDirectory(prefix="trainwright-") as name:
        signum = start(processes, config, content, Path(name))
        if signum == signal.SIGINT:
            raise KeyboardInterrupt
        if signum is not None:
            signal.raise_signal(signum)  # which ends this process, unless the caller handles it
            raise Stopped("preempted")
        return pickle.loads((Path(name) / _VALUE).read_bytes())
