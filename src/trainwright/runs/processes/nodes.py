"""An attempt of processes on several machines: what they agree on first, and the files that each sees.

The main process writes to its run directory. A process that does not see it, as it is on another machine or
in another container, has a working copy of its own: the first process of each such node brings it up to date
from the run's store.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

from trainwright.errors import CheckpointError, InputError, TrainwrightError
from trainwright.records.run_dir import RunDir
from trainwright.records.whole_weights import is_weights
from trainwright.runs.objects import Objects
from trainwright.runs.request import Request
from trainwright.safe_files import TEMPORARY_SUFFIX, make_folders
from trainwright.storage.copies import download_all
from trainwright.storage.lease import Lease
from trainwright.storage.remote import RemoteRun
from trainwright.storage.urls import run_url, working_folder
from trainwright.world import World

_ANOTHER = "process {} does not see the run directory {} of the main process: "
_ADVICE = "give all nodes the URL of one store (--runs-dir s3://bucket/runs), or a folder that they share"


def agree(world: World, request: Request | None) -> Request:
    """Return the attempt that the main process makes, with the run as this process sees it; collective.

    Args:
        world: The processes.
        request: The attempt, as the main process has it; that of others is not used.

    Raises:
        InputError: The number of processes does not divide the virtual ranks.
    """

    def told() -> tuple[Request, str | None]:
        assert request is not None, "the main process knows"
        # The others must know that there is a verdict: they wait for it after each evaluation.
        verdict = None if request.verdict is None else _in_main_only
        return replace(request, objects=Objects(), verdict=verdict), run_url(request.run.path)

    agreed, url = world.from_main(told)
    virtual, mesh = agreed.resolved.config.distributed.virtual.sizes, world.mesh
    if virtual.data % (mesh.data * mesh.shard):
        raise InputError(
            f"distributed.nproc: {mesh.data * mesh.shard} processes on all nodes together do not divide "
            f"the {virtual.data} virtual ranks of the batch; start as many as divide them"
        )
    if world.is_main and request is not None:
        return request
    if url is not None:
        runs, experiment, run_id = url.rsplit("/", 2)
        agreed = replace(agreed, run=RunDir(working_folder(runs) / experiment / run_id))
    return agreed


def _in_main_only(*_: object) -> Literal["keep"]:
    raise AssertionError("only the main process calls this")


class SharedFiles:
    """The files of a run, as each of its processes sees them; all methods are collective.

    Args:
        run: The run, as this process sees it.
        world: The processes.
        lease: The lease of the main process.

    Raises:
        InputError: A process does not see the run directory, and there is no store.
    """

    def __init__(self, run: RunDir, world: World, lease: Lease | None) -> None:
        self._run, self._world, self._lease = run, world, lease
        self._runs = world.from_main(lambda: run.path.parent.parent)  # of the main process
        self._sees = self._all_see = True
        if world.size == 1:
            return
        token = world.from_main(self._put_token)
        self._sees = (run.path / token).exists()
        seen = world.gather(self._sees)
        world.main_only((run.path / token).unlink)
        self._all_see = all(seen)
        if not self._all_see and run_url(run.path) is None:
            main = world.from_main(lambda: str(run.path))
            raise InputError(_ANOTHER.format(seen.index(False), main) + _ADVICE)

    def _put_token(self) -> str:
        name = f".{secrets.token_hex(8)}{TEMPORARY_SUFFIX}"
        (self._run.path / name).touch()
        return name

    def share(self, wanted: Callable[[str], bool]) -> None:
        """Give every process the wanted files as the main one has them now.

        Args:
            wanted: Returns whether a file, by its name in the run directory, is wanted.

        Raises:
            CheckpointError: A file cannot be brought from the store.
        """
        if self._all_see:
            return
        self._world.main_only(lambda: self._lease.renew() if self._lease else None)  # of what it has now
        self._on_each_node(not self._sees, lambda: self._download(wanted))

    def _download(self, wanted: Callable[[str], bool]) -> None:
        make_folders(self._run.path)
        remote = RemoteRun.of(self._run.path)
        entry = remote.head() if remote else None
        if remote is None or entry is None:
            raise CheckpointError(f"run {self._run.id} is not in its store")
        remote.download(entry, wanted)

    def source(self, source: Path | None) -> Path | None:
        """Return the source of the initial weights, as this process sees it.

        Args:
            source: A file, or a run directory, as the main process sees it.

        Raises:
            CheckpointError: The run cannot be brought from the store.
        """
        if source is None or self._world.size == 1:
            return source
        if not self._sees and source.is_relative_to(self._runs):
            source = self._run.path.parent.parent / source.relative_to(self._runs)
        mine, is_run = source, not is_weights(source)
        self._on_each_node(
            is_run and (self._world.is_main or not self._sees), lambda: download_all(RunDir(mine))
        )
        return source

    def _on_each_node(self, is_concerned: bool, action: Callable[[], None]) -> None:
        """Call a function in the first process of each node that it concerns; the others wait."""
        problem = None
        if is_concerned and self._world.local_rank == 0:
            try:
                action()
            except (TrainwrightError, OSError) as error:
                problem = f"process {self._world.rank}: {error}"
        problems = [one for one in self._world.gather(problem) if one]
        if problems:
            raise CheckpointError(problems[0])
