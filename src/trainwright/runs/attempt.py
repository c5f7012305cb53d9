"""One process life of a run: its start (see `startup.py`), the loop, and its end."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from os import F_OK, access
from typing import Any, TypeVar

from trainwright.config.schema import RunConfig
from trainwright.datasets.samples.file_hashes import hash_of
from trainwright.engine.journal import Journal
from trainwright.engine.loop import Loop
from trainwright.engine.outside import Outside
from trainwright.engine.signals import Signals, Stopped
from trainwright.engine.state import RunState
from trainwright.errors import (
    CheckpointError,
    DataError,
    DivergedError,
    InputError,
    ModelError,
    RunGoneError,
    RunLostError,
    TrainingError,
)
from trainwright.process.global_random import preserved_generators
from trainwright.process.module_sources import imported_so_far
from trainwright.process.observation.observing import observing
from trainwright.process.observation.record import attempt_of, current
from trainwright.records.manifest import Manifest
from trainwright.records.result import Result
from trainwright.records.status import TESTED, Ended, Status
from trainwright.runs.cleanup import discard_run
from trainwright.runs.decisions import repeats
from trainwright.runs.lookup import refuse_compressed
from trainwright.runs.manifest import lower_tier, unsaved_reason
from trainwright.runs.observed import gather_inputs, unseen_reason, with_later_inputs
from trainwright.runs.outcome import EVALUATED, evaluate_outcome, result_so_far
from trainwright.runs.processes.isolation import keeping_freed_memory, one_at_a_time
from trainwright.runs.processes.placement import placed_config
from trainwright.runs.processes.ranks import is_launched, launch, lead
from trainwright.runs.processes.state import weights_digest
from trainwright.runs.request import Request
from trainwright.runs.session import open_session
from trainwright.runs.startup import Ready, Startup
from trainwright.runs.wiring import Components, build_loop, run_checkpoints, run_view, warn_unjudged
from trainwright.types import SplitName
from trainwright.world import ALONE, World

log = logging.getLogger("trainwright")
_NAMED = 20  # changed files, in the journal


def run_attempt(request: Request) -> Result:
    """Train a run, or continue it, and return its result.

    If the config asks for several processes, they are started here, unless a launcher has started them.

    Raises:
        InputError: Something that the user gave is wrong. A run whose first attempt fails before its journal
            is opened is removed, unless the request keeps it.
        TrainingError: The training failed; `resume` continues from the last commit.
        Stopped: A signal came before there was a step to finish.
    """
    refuse_compressed(request.run, "resume")
    config = placed_config(request, request.run.manifest())
    world = request.world
    if world is ALONE and is_launched():
        world = lead(request, config)
    elif world is ALONE and (config.distributed.nproc != 1 or config.distributed.nnodes != 1):
        return launch(request, config)
    if world.is_main:
        request.run.acquire()
    try:
        with (
            observing(hash_of),  # a process that was launched begins to observe here
            one_at_a_time(),
            preserved_generators(),
            attempt_of(current()),
            Signals() as signals,
        ):
            result = _Attempt(request, signals, world).go()
    finally:
        request.run.release()
    world.barrier()  # the others return when the result is written
    world.leave()
    return result


class _Attempt:
    """One attempt: its start, the loop, and its end.

    All processes of the attempt go through all phases; the main one alone writes, and reads files that are
    written meanwhile.
    """

    def __init__(self, request: Request, signals: Signals, world: World) -> None:
        self._request = request
        self._run = request.run
        self._signals = signals
        self._world = world
        self._before = request.run.status_on_disk()
        self._session = open_session(request.run, world, request.resolved.config.checkpoint)
        self._startup = Startup(request, self._session, world)
        self._noted: tuple[Any, ...] = ()  # what was imported and read at the last check
        self._result: Result | None = None  # set when the training has ended

    def go(self) -> Result:
        """Run all phases; however they end, the attempt's record says so.

        A resume that is refused leaves the run with the status that it had.
        """
        run, message, is_ready = self._run, "", False
        status: Status = "failed"
        try:
            ready = in_owner(self._startup.prepare)
            if self._world.is_main:  # nothing can refuse the attempt any more
                self._startup.origin.announce(self._session.number, ready.step)
            is_ready = True
            result = self._train(ready)
            status = result.status
            return result
        except Stopped as stopped:
            status, stopped.run = stopped.status, run
            raise
        except Exception as error:
            message = self._message_of(error)
            is_refused = isinstance(error, InputError) and not is_ready
            if is_refused and self._before != "created":
                status = self._before
            is_new = self._session.number == 1 and not run.journal.exists() and not self._request.keep
            if isinstance(error, InputError) and is_new and self._session.lease is not None:
                discard_run(run, self._session.lease)  # nothing was computed, and nobody has seen it before
            raise
        finally:
            self._session.close(status, message)
            if self._session.lease is not None:
                self._session.lease.release()

    def _message_of(self, error: Exception) -> str:
        """Return an error's message without the values of `${env:NAME}` and passwords in URIs."""
        return self._request.resolved.hide(str(error) or type(error).__name__)

    def _train(self, ready: Ready) -> Result:
        """Repeat the steps of the parent that are due, and train the run's own."""
        journal = self._session.open_journal(ready.step)
        components, state, replay = ready.components, ready.state, ready.replay
        ready.replay = None  # so that its memory is free for the run's own steps
        self._session.feed([item.type for item in components.config.tracking])
        try:
            if replay is not None:
                result = self._run_loop(*replay, journal, self._startup.origin.step, replays=True)
                if not self._has_replayed(result):
                    return result
                del replay
                state = self._startup.begin_own_steps(components)
            assert state is not None, "the steps of the parent lead to it"
            pause_at = components.rules.pause(self._request.until)
            if self._request.verdict is not None and self._request.parent is None:
                warn_unjudged(components, state.step)
            return self._run_loop(components, state, journal, pause_at, replays=False)
        finally:
            with contextlib.suppress(OSError):
                journal.close()

    def _run_loop(
        self,
        components: Components,
        state: RunState,
        journal: Journal,
        pause_at: int | None,
        *,
        replays: bool,
    ) -> Result:
        """Train, pausing at step `pause_at` if given, and end the attempt.

        A loop that `replays` the steps of the parent does not end it: the loop of the run's own steps
        follows.
        """
        loop = build_loop(
            components,
            state,
            journal,
            self._startup.checkpoints,
            self._signals,
            self._request.objects.callbacks,
            self._outside(components.config),
            pause_at,
        )
        loop.parts.recorder.started(run_view(components, self._run, state, self._session.number))
        try:
            result = in_owner(lambda: self._train_and_evaluate(loop, components, replays=replays))
            if not (replays and self._has_replayed(result)):
                self._end(result, loop)
        except Exception as error:
            self._record_failure(error, loop, components)
            raise
        finally:
            loop.parts.close()
        return result

    def _has_replayed(self, result: Result) -> bool:
        """Return whether all steps of the parent have been repeated, so that the run's own follow."""
        return result.steps == self._startup.origin.step and result.status in ("completed", "paused")

    def _outside(self, config: RunConfig) -> Outside:
        """Return what may end this run from outside; a repetition ends where the run that it repeats did."""
        stop, lease = self._run.stop_request(self._session.number), self._session.lease
        limit, verdict = config.training.max_minutes, self._request.verdict
        if repeats(self._startup.manifest.parent):
            limit, verdict = None, None
        if lease is None:  # the main process alone watches the clock and the request to stop
            return Outside(verdict=verdict)
        return Outside(limit, lambda: access(stop, F_OK) or lease.is_asked_to_stop, verdict)

    def _train_and_evaluate(self, loop: Loop, components: Components, *, replays: bool) -> Result:
        """Train, and evaluate the model if the training was completed or stopped."""
        saver, state = loop.parts.saver, loop.state
        for decision in state.decisions:
            if decision not in self._startup.journalled:
                loop.parts.recorder.decided(decision)
        saver.resume_from(state, components.rules.best_steps(state.evaluations))
        before = components.learner.unsaved_state()
        with keeping_freed_memory():
            status = loop.run(lambda: self._check_unsaved(components, before), self._note_inputs)
        self._note_inputs()
        self._check_files(components, loop)
        # The digest is computed while the last save is written.
        result = self._result = self._result_so_far(components, state, status)
        self._world.main_only(lambda: self._finish_saves(loop))
        if replays and self._has_replayed(result):
            return result
        if status == "completed":
            saver.drop_superseded_best()
        if status in TESTED:
            self._startup.files.share(lambda name: name.startswith("best/"))
            try:
                parent, best = self._startup.manifest.parent, run_checkpoints(self._run).best
                splits: tuple[SplitName, ...] = ("val",) if parent and parent.untested else EVALUATED
                outcome = evaluate_outcome(
                    self._run, components, state, best, self._signals.check, splits=splits
                )
                result = result.with_values(**outcome)
            except Stopped as stopped:
                result = result.with_values(status=stopped.status)
        return result

    def _finish_saves(self, loop: Loop) -> None:
        """Wait until all saves are written.

        Raises:
            CheckpointError: The newest save has failed.
        """
        saver = loop.parts.saver
        saver.drain()
        failures = saver.failures()
        for step, message in failures:
            loop.parts.recorder.event(loop.state.step, "checkpoint_failed", saved_step=step, message=message)
        if failures and not saver.newest_is_committed:
            raise CheckpointError(
                f"{failures[-1][1]}; earlier checkpoints are untouched: fix this, then resume the run"
            )

    def _result_so_far(self, components: Components, state: RunState, status: Ended) -> Result:
        result = result_so_far(self._startup.manifest, components, state, status, self._session.number)
        try:
            return result.with_values(digest=weights_digest(components.learner, self._world))
        except DivergedError:
            if self._world.is_main:  # a resume would go on with the state of one of them
                reason = "the processes ended with different states"
                self._startup.manifest = lower_tier(self._run, self._startup.manifest, reason)
            raise

    def _failed_result(self, components: Components, state: RunState) -> Result:
        """Return the result of an attempt that failed; without a digest if the model cannot be read."""
        if self._result is not None:  # the model may hold the weights of the best step by now
            return self._result.with_values(status="failed")
        with contextlib.suppress(Exception):
            if self._world.size == 1:  # the others take no part in a digest any more
                return self._result_so_far(components, state, "failed")
        return result_so_far(self._startup.manifest, components, state, "failed", self._session.number)

    def _note_inputs(self) -> None:
        """Record what the user's code has imported and read since the inputs of the run were recorded."""
        gather_inputs(self._world)
        if not self._world.is_main:
            return
        observation = current()
        now: tuple[Any, ...] = imported_so_far()
        if observation is not None:
            observation.renew_listings()
            now += (dict(observation.files), dict(observation.variables), dict(observation.unseen))
        if now != self._noted:
            self._noted, startup = now, self._startup
            manifest = with_later_inputs(startup.manifest, startup.imported, self._run)
            if manifest is not startup.manifest:
                startup.manifest = manifest
                self._run.write(Manifest.FILE, manifest)

    def _check_unsaved(self, components: Components, before: Mapping[str, str]) -> bool:
        """Lower the determinism tier if training has changed state that no checkpoint holds; return whether.

        Raises:
            ModelError: The config demands `bitwise`.
        """
        after, hint = components.learner.unsaved_state(), components.framework.unsaved_hint
        own = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        changed = list(dict.fromkeys(name for names in self._world.gather(own) for name in names))
        if not changed:
            return False
        reason = unsaved_reason(changed)
        if components.config.training.determinism == "bitwise":
            raise ModelError(f"training.determinism: bitwise was requested, but {reason}; {hint}")
        if self._world.is_main:
            log.warning("determinism: statistical, since %s: a resume is not exact; %s", reason, hint)
            self._startup.manifest = lower_tier(self._run, self._startup.manifest, reason)
        return True

    def _check_files(self, components: Components, loop: Loop) -> None:
        """Lower the determinism tier if what was read has changed, or what was used cannot be observed.

        Raises:
            DataError: The config demands `bitwise`.
        """
        observation = current()
        read = [*components.files.changed(), *(observation.changed() if observation else [])]
        unseen = unseen_reason()
        found = self._world.gather((read, [] if unseen is None else [unseen]))
        changed = sorted({name for names, _ in found for name in names})
        reasons = [reason for _, reasons in found for reason in reasons][:1]
        if changed:
            more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
            reasons.insert(0, f"files that are read were changed during the training: {changed[0]}{more}")
        if not reasons or (not changed and self._startup.manifest.determinism.tier == "statistical"):
            return
        if self._world.is_main:
            if changed:
                loop.parts.recorder.event(loop.state.step, "data_changed", files=changed[:_NAMED])
            log.warning("determinism: statistical, since %s", reasons[0])
            self._startup.manifest = lower_tier(self._run, self._startup.manifest, reasons[0])
        if components.config.training.determinism == "bitwise":
            raise DataError(f"training.determinism: bitwise was requested, but {reasons[0]}")

    def _end(self, result: Result, loop: Loop) -> None:
        recorder = loop.parts.recorder
        loop.parts.learner.close()
        if changed := loop.parts.learner.changed_definition():
            manifest = self._startup.manifest = self._startup.manifest.model_copy(
                update={"changed_model": dict(changed)}
            )
            if self._world.is_main:
                self._run.write(Manifest.FILE, manifest)

        def end_journal() -> None:
            if result.metrics and result.status in TESTED:
                recorder.final(result.steps, result.metrics)
            recorder.ended(result.steps, result.status, result.metrics)
            recorder.journal.close()

        self._session.publish(result, end_journal, page=self._has_page)

    @property
    def _has_page(self) -> bool:
        """True if the run writes its report when it ends.

        A trial of a search does so only for its trackers: few pages of hundreds are ever opened, and
        `trainwright report RUN` writes one that is.
        """
        parent = self._startup.manifest.parent
        return parent is None or parent.relation != "tune" or bool(self._request.resolved.config.tracking)

    def _record_failure(self, error: Exception, loop: Loop, components: Components) -> None:
        """Record how the attempt failed, as far as the disk permits.

        Raises:
            TrainingError: The disk failed, or the run directory is gone.
        """
        message, run = self._message_of(error), self._run
        if isinstance(error, RunLostError) or not self._world.is_main:
            return  # nothing more is written
        loop.parts.saver.drain()
        if isinstance(error, RunGoneError) or not run.path.is_dir():
            raise RunGoneError(run.path) from error
        if not self._session.has_ended and not loop.parts.recorder.journal.is_closed:
            with contextlib.suppress(OSError):  # it may be the disk or the store that failed
                loop.parts.recorder.event(loop.state.step, "failed", message=message)
                self._end(self._failed_result(components, loop.state).with_values(error=message), loop)
        if isinstance(error, OSError):
            raise TrainingError(
                f"{error}; what was committed is untouched: fix this, then resume run {run.id}"
            ) from error


T = TypeVar("T")


def in_owner(phase: Callable[[], T]) -> T:
    """Run a phase of an attempt; a forked child that comes out of it, however it does, ends here.

    The run belongs to the parent. A child must not write to it, and cannot wait for threads that only its
    parent has.
    """
    owner = os.getpid()
    try:
        return phase()
    finally:
        if os.getpid() != owner:
            _end_child(sys.exc_info()[1])


def _end_child(error: BaseException | None) -> None:
    """End this process as Python would, but run no handlers of its parent."""
    code = 0
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    elif error is not None:
        traceback.print_exception(error)
        code = 1
    sys.stderr.flush()
    os._exit(code)
