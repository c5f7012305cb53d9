"""One process life of a run: start-up, loop, end."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainyard import registry
from trainyard.config import Resolved
from trainyard.config.schema import RunConfig
from trainyard.digest import digest, tensor_records
from trainyard.engine.checkpoint import Commit
from trainyard.engine.journal import Journal
from trainyard.engine.loop import Loop
from trainyard.engine.signals import Signals, Stopped
from trainyard.engine.state import RunState, seed_global_random
from trainyard.errors import CheckpointError, InputError, ModelError, TrainingError
from trainyard.records.journal import number
from trainyard.records.rundir import RunDir
from trainyard.require import import_paths, open_process
from trainyard.runs import manifest
from trainyard.runs.objects import Objects
from trainyard.runs.outcome import evaluate_outcome, standing, write_report
from trainyard.runs.wiring import (
    Parts,
    build,
    build_loop,
    default_threads,
    framework_name,
    initial_source,
    initialize,
    run_checkpoints,
    run_view,
)
from trainyard.trackers.feed import Feeders
from trainyard.types import Determinism

log = logging.getLogger("trainyard")
_LISTED = 5  # attributes that a message names
Json = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """What an attempt is asked to do. `parent` says which run this one repeats; `threads` are that run's."""

    resolved: Resolved
    run: RunDir
    objects: Objects = field(default_factory=Objects)
    parent: Json | None = None
    threads: int | None = None
    allow_change: bool = False


def run_attempt(request: Request) -> Json:
    """Trains, or goes on training, and returns the content of `result.json`.

    Raises:
        InputError: something that the user gave is wrong; a run that made no step yet is removed.
        TrainingError: the training failed; `resume` goes on from the last commit.
        Stopped: a signal came before there was a step to finish.
    """
    request.run.acquire()
    try:
        with Signals() as signals:
            return _Attempt(request, signals).go()
    finally:
        request.run.release()


class _Attempt:
    """What the phases of one attempt hand on to each other."""

    def __init__(self, request: Request, signals: Signals) -> None:
        self._request = request
        self._run = request.run
        self._signals = signals
        self._number = request.run.next_attempt()
        self._started = time.time()
        self._place = run_checkpoints(request.run, self._number)

    def go(self) -> Json:
        """All phases; however they end, the attempt's record says so."""
        run, status, error = self._run, "failed", ""
        try:
            self._record(None)
            parts, state = self._prepare()
            result = self._train(parts, state)
            status = result["status"]
            return result
        except Stopped as stopped:
            status, stopped.run_id = stopped.status, run.id
            raise
        except Exception as raised:
            error = self._hidden(raised)
            if isinstance(raised, InputError) and self._number == 1 and not run.journal.exists():
                self._discard()  # nothing was computed, and nobody has seen it before
            raise
        finally:
            if run.path.exists():
                self._record(status, error)

    def _hidden(self, error: Exception) -> str:
        """What an error says, fit to be kept: without what `${env:NAME}` stands for, and without passwords in URIs."""
        return self._request.resolved.hide(str(error) or type(error).__name__)

    def _discard(self) -> None:
        """Leaves nothing behind, not even the experiment's folder if this would have been its first run."""
        shutil.rmtree(self._run.path, ignore_errors=True)
        with contextlib.suppress(OSError):
            self._run.path.parent.rmdir()

    # -- start-up

    def _prepare(self) -> tuple[Parts, RunState]:
        """Builds everything, and puts it where the newest checkpoint left off."""
        request, run, config = self._request, self._run, self._request.resolved.config
        if any(import_paths(config.model_dump())):
            open_process()  # before anything is imported on its behalf
        self._place.resume.sweep()
        before = run.read(manifest.NAME)
        commit, complaints = self._place.resume.newest()
        for complaint in complaints:
            log.warning("%s", complaint)
        determinism = self._determinism()
        seed_global_random(config.experiment.seed)
        threads = (
            before.get("environment", {}).get("threads")
            or request.threads
            or config.training.threads
            or default_threads()
        )
        parts = build(config, threads, request.objects)
        source = self._initial_source(config, before)
        gone = source is not None and commit is not None and not source.exists()
        if source is not None and not gone:
            initialize(parts, source)
        now = manifest.make_manifest(run, request.resolved, request.objects, parts, determinism)
        now["init_from"] = str(source) if source else None
        if gone:
            now["weights"] = before["weights"]  # the checkpoint holds what became of them
        if before:
            manifest.check_unchanged(run, before, now, allow_change=request.allow_change)
        else:
            for warning in parts.bundle.warnings:
                log.warning("data: %s", warning)
            self._write_data_description(parts)
            run.write(manifest.NAME, now | {"parent": request.parent})
        seed_global_random(config.experiment.seed)  # whatever was drawn while building
        if commit is None and complaints:
            log.warning(
                "no checkpoint is whole: run %s begins again at step 0, and will come to the same bits",
                run.id,
            )
        return parts, RunState() if commit is None else self._restore(parts, commit)

    def _determinism(self) -> Determinism:
        config = self._request.resolved.config
        cls = registry.adapter("framework", framework_name(config, self._request.objects.model))
        found: Determinism = cls.determinism(config)
        if config.training.determinism == "bitwise" and found.tier != "bitwise":
            raise InputError(
                f"training.determinism: bitwise was asked for, but this run gives {found.tier}: {found.reason}"
            )
        if found.tier != "bitwise":
            log.warning("determinism: %s (%s)", found.tier, found.reason)
        return found

    def _initial_source(self, config: RunConfig, before: Json) -> Path | None:
        """Where the initial weights come from; found once, so that a resume or a repetition takes them from there again."""
        known = before
        if not known and self._request.parent is not None:
            known = RunDir(self._run.path.parent / self._request.parent["run_id"]).read(manifest.NAME)
        if known.get("init_from"):
            return Path(known["init_from"])
        return initial_source(config, self._run)

    def _write_data_description(self, parts: Parts) -> None:
        """What turns raw rows into features, and outputs into classes: `predict` needs no training data."""
        preparation = parts.bundle.preparation
        described = {
            "info": parts.bundle.info.to_json(),
            "preparation": preparation.to_json() if preparation else None,
        }
        self._run.write("data.json", described)

    def _restore(self, parts: Parts, commit: Commit) -> RunState:
        """Takes up a checkpoint; what comes of it must have the digest of what was saved."""
        parts.framework.restore(self._place.resume.folder(commit))
        # A checkpoint of an earlier version may lack a file of this one's.
        files = tuple(f"{Path(file.name).stem}." for file in commit.files)
        records = tensor_records(parts.framework.state())
        found = digest(record for record in records if record.name.startswith(files))
        if found != commit.state_digest:
            raise CheckpointError(
                f"checkpoint {commit.name}: what was restored has digest {found}, not {commit.state_digest}"
            )
        log.info("resuming run %s from step %d", self._run.id, commit.step)
        return RunState.from_json(self._place.resume.state(commit))

    # -- loop and end

    def _train(self, parts: Parts, state: RunState) -> Json:
        config, run = parts.config, self._run
        journal = Journal(run.journal, self._number, state.step)
        feeders = Feeders(run.path, [item.type for item in config.tracking])
        feeders.start()
        loop = build_loop(parts, state, journal, self._place, self._signals, self._request.objects.callbacks)
        loop.parts.recorder.started(run_view(parts, run, state, self._number))
        try:
            result = self._loop(loop, parts)
            self._end(result, loop, feeders)
        except Exception as error:
            loop.parts.saver.drain()
            with contextlib.suppress(OSError):  # it may be the disk that failed
                loop.parts.recorder.event(state.step, "failed", message=self._hidden(error))
                self._end(
                    standing(run, parts, state, "failed", self._number) | {"error": self._hidden(error)},
                    loop,
                    feeders,
                )
            if isinstance(error, OSError):
                raise TrainingError(
                    f"{error}; what was committed is untouched: mend this, then resume run {run.id}"
                ) from error
            raise
        finally:
            loop.parts.saver.close()
            with contextlib.suppress(OSError):
                journal.close()
        return result

    def _loop(self, loop: Loop, parts: Parts) -> Json:
        """Trains and, if it came to the end, evaluates."""
        saver, state = loop.parts.saver, loop.state
        saver.resumed(state, parts.rules.best_steps(state.evaluations))
        before = parts.framework.unsaved_state()
        loop.after_first_step = lambda: self._check_unsaved(parts, before)
        status = loop.run()
        saver.drain()
        for step, message in saver.failures():
            loop.parts.recorder.event(state.step, "checkpoint_failed", saved_step=step, message=message)
            if step == saver.newest:
                raise CheckpointError(
                    f"{message}; earlier checkpoints are untouched: make room, then resume the run"
                )
        result = standing(self._run, parts, state, status, self._number)
        if status == "completed":
            try:
                result |= evaluate_outcome(self._run, parts, state, self._place.best, self._signals.check)
            except Stopped as stopped:
                result["status"] = stopped.status
        return result

    def _check_unsaved(self, parts: Parts, before: Mapping[str, str]) -> None:
        """Lower the determinism tier if the first step has changed what no checkpoint holds.

        Raises:
            ModelError: the config demands `bitwise`.
        """
        after, hint = parts.framework.unsaved_state(), parts.framework.unsaved_hint
        changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        if not changed:
            return
        more = [f"{len(changed) - _LISTED} more"] if len(changed) > _LISTED else []
        listed = ", ".join([*changed[:_LISTED], *more])
        reason = f"training changes {listed} of the model, which no checkpoint holds"
        if parts.config.training.determinism == "bitwise":
            raise ModelError(f"training.determinism: bitwise was asked for, but {reason}; {hint}")
        log.warning("determinism: statistical, since %s: a resume is not exact; %s", reason, hint)
        manifest.lower_tier(self._run, reason)

    def _end(self, result: Json, loop: Loop, feeders: Feeders) -> None:
        self._run.write("result.json", result)
        write_report(self._run)
        metrics = {name: number(value) for name, value in result["metrics"].items()}
        if metrics and result["status"] == "completed":
            loop.parts.recorder.final(result["steps"], metrics)
        loop.parts.recorder.ended(result["steps"], result["status"], metrics)
        loop.parts.recorder.journal.close()
        for warning in feeders.finish():
            log.warning("%s", warning)

    def _record(self, status: str | None, error: str = "") -> None:
        record = {
            "attempt": self._number,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "working_directory": str(Path.cwd()),
            "started": self._started,
            "status": status,
            "ended": time.time() if status else None,
        }
        self._run.write(f"attempts/{self._number:04d}.json", record | ({"error": error} if error else {}))
