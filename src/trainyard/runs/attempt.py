"""One process life of a run: start-up, loop, end."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import F_OK, access
from pathlib import Path
from typing import Any

from trainyard import registry
from trainyard.config.schema import RunConfig
from trainyard.digest import digest, sha256_bytes, tensor_records
from trainyard.engine.checkpoint import RunCheckpoints
from trainyard.engine.journal import Journal
from trainyard.engine.loop import Loop
from trainyard.engine.outside import Outside
from trainyard.engine.signals import Signals, Stopped
from trainyard.engine.state import RunState, seed_global_random
from trainyard.errors import (
    CheckpointError,
    InputError,
    ModelError,
    RunGoneError,
    RunLostError,
    TrainingError,
)
from trainyard.records.commit import Commit
from trainyard.records.decision import Decision, Decisions, journalled_decisions
from trainyard.records.manifest import Manifest
from trainyard.records.result import Result
from trainyard.records.run_files import is_no_checkpoint
from trainyard.records.status import TESTED, Ended
from trainyard.redact import redacted
from trainyard.require import import_paths, open_process
from trainyard.runs.cleanup import discard_run
from trainyard.runs.decisions import (
    go_on,
    known_decisions,
    note_processes,
    note_skips,
    repeats,
    replaying_skips,
)
from trainyard.runs.manifest import (
    checked_determinism,
    lower_tier,
    make_manifest,
    unsaved_reason,
)
from trainyard.runs.nodes import SharedFiles
from trainyard.runs.origin import Origin
from trainyard.runs.outcome import evaluate_outcome, result_so_far, weights_digest
from trainyard.runs.placement import place, placed, say_threads
from trainyard.runs.process import keeping_freed_memory
from trainyard.runs.process_forks import in_owner
from trainyard.runs.ranks import is_launched, launch, lead, require_same_state
from trainyard.runs.recorded_inputs import check_manifest, compare_inputs, record_inputs
from trainyard.runs.request import Request
from trainyard.runs.session import open_session
from trainyard.runs.weights import initial_source, initialize, named_source
from trainyard.runs.wiring import (
    Components,
    build,
    build_loop,
    framework_name,
    run_checkpoints,
    run_view,
    warn_unjudged,
)
from trainyard.safe_open import read_regular
from trainyard.semantics import computing_by, older_versions
from trainyard.types import Determinism
from trainyard.world import ALONE, World

log = logging.getLogger("trainyard")


def run_attempt(request: Request) -> Result:
    """Train, or continue to train, and return the run's result.

    Where the config asks for several processes, they are started here, unless a launcher has started them.

    Raises:
        InputError: Something that the user gave is wrong. A run whose first attempt fails before its journal
            is opened is removed, unless the request keeps it.
        TrainingError: The training failed; `resume` continues from the last commit.
        Stopped: A signal came before there was a step to finish.
    """
    config = placed(request, request.run.manifest())
    world = request.world
    if world is ALONE and is_launched():
        world = lead(request, config)
    elif world is ALONE and (config.distributed.nproc != 1 or config.distributed.nnodes != 1):
        return launch(request, config)
    if world.is_main:
        request.run.acquire()
    try:
        with Signals() as signals:
            result = _Attempt(request, signals, world).go()
    finally:
        request.run.release()
    world.barrier()  # the others return when the result is written
    world.leave()
    return result


@dataclass(frozen=True)
class _Earlier:
    """What earlier attempts of a run have left: nothing, before the first one.

    `saved` is the state of the loop in the newest valid checkpoint; `decisions` are those of the journals.
    """

    manifest: Manifest | None
    commit: Commit | None
    saved: dict[str, Any]
    decisions: Decisions

    def has_lost(self, source: Path) -> bool:
        """Return whether initial weights that are no longer needed are gone."""
        return self.commit is not None and not source.exists()


class _Attempt:
    """The phases of one attempt, and what they hand on to each other.

    All processes go through all of them; what is written, and what depends on files that are written
    meanwhile, is for the main one.
    """

    def __init__(self, request: Request, signals: Signals, world: World) -> None:
        self._request = request
        self._run = request.run
        self._signals = signals
        self._world = world
        self._session = open_session(request.run, world, request.resolved.config.checkpoint)
        self._files: SharedFiles  # these five: from `_prepare` on
        self._origin: Origin
        self._checkpoints: RunCheckpoints
        self._replay: tuple[Components, RunState] | None = None  # to repeat steps of the parent, if any
        self._manifest: Manifest
        self._journalled: Decisions  # by earlier attempts
        self._result: Result | None = None  # from the end of the training on

    def go(self) -> Result:
        """Run all phases; however they end, the attempt's record says so."""
        run, message = self._run, ""
        status: Ended = "failed"
        try:
            components, state = in_owner(self._prepare)
            if self._world.is_main:  # nothing refuses it any more
                first = self._replay[1] if self._replay else state
                self._origin.announce(self._session.number, first.step)
            result = self._train(components, state)
            status = result.status
            return result
        except Stopped as stopped:
            status, stopped.run_id = stopped.status, run.id
            raise
        except Exception as error:
            message = self._message_of(error)
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

    # -- start-up

    def _prepare(self) -> tuple[Components, RunState]:
        """Build everything, and restore the newest checkpoint.

        Where steps of the parent are to be repeated first, they are made ready, and the state is empty.
        """
        self._open_files()
        past = self._world.from_main(self._survey)
        self._journalled = past.decisions
        parent = past.manifest.parent if past.manifest else self._request.parent
        decisions = known_decisions(past.saved, past.decisions, parent)
        components, determinism = self._build(past, decisions)
        source = self._files.source(self._world.from_main(lambda: self._first_weights(components, past)))
        if source is not None and not past.has_lost(source):
            initialize(components, source)
        self._manifest = self._world.from_main(
            lambda: self._record_or_compare(past, components, determinism, source)
        )
        self._checkpoints = self._own_checkpoints()
        seed_global_random(components.config.experiment.seed)  # building may have drawn from them
        return self._restore_newest(past, components, decisions)

    def _open_files(self) -> None:
        """Bring the run's files here, and see where the run begins."""
        run, lease, config = self._run, self._session.lease, self._request.resolved.config
        self._files = SharedFiles(run, self._world, lease)
        self._files.share(is_no_checkpoint)
        self._origin, self._checkpoints = Origin(run), run_checkpoints(run, lease=lease)
        if any(import_paths(config.model_dump())):
            open_process()  # before anything is imported for the config
        seed_global_random(config.experiment.seed)  # a module of the user's may draw when it is imported

    def _survey(self) -> _Earlier:
        """Return what earlier attempts have left."""
        self._checkpoints.resume.sweep()
        before, commit = self._run.manifest(), self._newest_commit()
        saved = self._checkpoints.resume.state(commit) if commit else self._origin.saved()
        check_manifest(self._request, before, commit)
        return _Earlier(before, commit, saved, journalled_decisions(self._run.journal))

    def _build(self, past: _Earlier, decisions: Decisions) -> tuple[Components, Determinism]:
        """Build what the run is computed with; return it with how exactly it can be repeated."""
        request = self._request
        config, threads = self._world.from_main(lambda: place(request, past.manifest))
        framework = registry.adapter("framework", framework_name(config, request.objects.model))
        determinism = checked_determinism(config, framework.determinism(config))
        seed_global_random(config.experiment.seed)
        choices, begin = decisions.choices(), self._origin.begin
        older = self._world.from_main(lambda: older_versions(self._run.versions()))
        with computing_by(older), replaying_skips(decisions, self._world):
            components = build(config, threads, request.objects, choices, begin, self._world)
        if reason := components.bundle.unrepeatable:
            determinism = checked_determinism(config, Determinism("statistical", reason))
        if self._world.is_main:
            say_threads(config, components.inputs.threads)
        return components, determinism

    def _restore_newest(
        self, past: _Earlier, components: Components, decisions: Decisions
    ) -> tuple[Components, RunState]:
        """Restore the newest checkpoint, the parent's for a new run; or make its steps ready first."""
        commit = past.commit
        if commit is None:
            commit = self._world.from_main(lambda: self._origin.adopt(self._checkpoints))
        if self._origin.replays(commit.step if commit else 0, past.saved):
            self._replay = self._prepare_replay(commit, past.saved, decisions, components)
            return components, RunState()
        if (newest := commit) is not None:
            self._manifest = self._world.from_main(
                lambda: self._origin.record_replayed(self._manifest, self._checkpoints, newest)
            )
        state = RunState() if commit is None else self._restore(components, commit, past.saved)
        self._origin.enter(components, state)
        self._add_decisions(components, state, decisions)
        require_same_state(components)
        return components, state

    def _record_or_compare(
        self, past: _Earlier, components: Components, determinism: Determinism, source: Path | None
    ) -> Manifest:
        """Record the inputs of the run, or compare them with those of before; return the manifest."""
        before, request = past.manifest, self._request
        now = make_manifest(self._run, request.resolved, request.objects, components, determinism)
        init_from = redacted(str(source)) if source else None
        now = now.model_copy(update={"init_from": init_from, "parent": request.parent})
        if before and source and past.has_lost(source):  # the checkpoint was trained from the initial weights
            now = now.model_copy(update={"weights": before.weights})
        now = self._origin.record(now)
        if before is None:
            now = self._origin.check_new(now, components, allow_change=request.allow_change)
            manifest = record_inputs(self._run, now, components.bundle, provable=past.commit is None)
        else:
            manifest = self._compare(before, now, components)
        self._session.record_environment(now.environment.numeric())
        return manifest

    def _compare(self, before: Manifest, now: Manifest, components: Components) -> Manifest:
        """Compare the inputs with those of before, and return the manifest of both."""
        neutral = components.framework.neutral_changes(components.config)
        file = f"data-{self._session.number:04d}.json"
        return compare_inputs(self._request, before, now, components.bundle, neutral=neutral, data_file=file)

    def _own_checkpoints(self) -> RunCheckpoints:
        """Return the checkpoints of the run, as this attempt makes them."""
        run = self._run
        files = (run.config_file.name, self._manifest.data_file)
        hashes = {
            name: sha256_bytes(read_regular(run.path / name)) for name in files if (run.path / name).exists()
        }
        return run_checkpoints(run, hashes, self._session.lease)

    def _add_decisions(self, components: Components, state: RunState, decisions: Decisions) -> None:
        """Give a state the decisions that were made before this attempt, and those to go on."""
        if choices := components.learner.choices():
            decisions.add(Decision(0, "choice", dict(choices)))
        note_skips(decisions, components.bundle)
        go_on(self._run, decisions, state)
        if self._world.is_main:  # which alone keeps them
            note_processes(self._run, decisions, state.step, self._world.size, self._session.number)
        state.decisions = decisions

    def _prepare_replay(
        self, commit: Commit | None, saved: dict[str, Any], decisions: Decisions, own: Components
    ) -> tuple[Components, RunState]:
        """Build what the steps of the parent are repeated with, and restore the newest checkpoint.

        Data that are the same are not read again.
        """
        config = self._origin.parent_config().with_placement(self._manifest.placement).config
        objects = self._request.objects
        if config.data == own.config.data:
            objects = replace(objects, data=own.bundle)
        seed_global_random(config.experiment.seed)
        with computing_by(own.bundle.info.semantics):
            components = build(
                config,
                own.inputs.threads,
                objects,
                decisions.choices(),
                lambda _: self._origin.parent_begin(),
                self._world,
            )
        named = self._origin.source(None)
        if (source := self._files.source(Path(named) if named else None)) is not None:
            initialize(components, source)
        seed_global_random(config.experiment.seed)
        state = RunState() if commit is None else self._restore(components, commit, saved)
        self._origin.exclude_lost(components, self._origin.commit)
        self._add_decisions(components, state, decisions)
        return components, state

    def _newest_commit(self) -> Commit | None:
        """Return the newest valid checkpoint; damaged ones are named in warnings."""
        commit, complaints = self._checkpoints.newest()
        for complaint in complaints:
            log.warning("%s", complaint)
        if commit is None and complaints:
            log.warning(
                "no checkpoint is valid: run %s starts again at step 0 and reaches the same bits",
                self._run.id,
            )
        return commit

    def _first_weights(self, components: Components, past: _Earlier) -> Path | None:
        """Return the source of the initial weights; a run with a parent's state has none."""
        if self._origin.initial is not None:
            return None
        named = self._origin.source(named_source(self._run, past.manifest, self._request.parent))
        return Path(named) if named else initial_source(components.config, self._run)

    def _restore(self, components: Components, commit: Commit, saved: dict[str, Any]) -> RunState:
        """Restore a checkpoint; the digest of what was restored must be that of what was saved."""
        self._files.share(lambda name: name.startswith((f"checkpoints/{commit.name}/", "initial/")))
        with self._origin.fitting(commit.step):
            components.learner.restore(self._checkpoints.resume.folder(commit))
        # A checkpoint of an earlier version may lack a file of this one's.
        files = tuple(f"{Path(file.name).stem}." for file in commit.files)
        records = tensor_records(components.learner.state())
        restored = digest(record for record in records if record.name.startswith(files))
        if restored != commit.state_digest and not self._origin.adapts(commit.step):
            raise CheckpointError(
                f"checkpoint {commit.name} was restored with digest {restored}, not {commit.state_digest}"
            )
        return RunState.from_json(saved)

    # -- loop and end

    def _train(self, components: Components, state: RunState) -> Result:
        """Repeat the steps of the parent that are due, and train the run's own."""
        replay, self._replay = self._replay, None
        journal = self._session.open_journal((replay[1] if replay else state).step)
        self._session.feed([item.type for item in components.config.tracking])
        try:
            if replay is not None:
                result = self._run_loop(*replay, journal, self._origin.step, replays=True)
                if not self._has_replayed(result):
                    return result
                del replay
                state = self._begin_own_steps(components)
            pause_at = components.rules.pause(self._request.until)
            if self._request.verdict is not None and self._request.parent is None:
                warn_unjudged(components, state.step)
            return self._run_loop(components, state, journal, pause_at, replays=False)
        finally:
            with contextlib.suppress(OSError):
                journal.close()

    def _begin_own_steps(self, components: Components) -> RunState:
        """Restore the state that the steps of the parent led to, and record what it is."""

        def replayed() -> tuple[Manifest, Commit, dict[str, Any], Decisions]:
            commit = self._checkpoints.resume.load_step(self._origin.step)
            manifest = self._origin.record_replayed(self._manifest, self._checkpoints, commit)
            saved = self._checkpoints.resume.state(commit)
            return manifest, commit, saved, journalled_decisions(self._run.journal)

        self._manifest, commit, saved, self._journalled = self._world.from_main(replayed)
        self._files.share(is_no_checkpoint)
        decisions = known_decisions(saved, self._journalled, self._manifest.parent)
        components.framework.pin(components.config, components.inputs.threads)  # the parent's is pinned now
        seed_global_random(components.config.experiment.seed)
        state = self._restore(components, commit, saved)
        self._origin.enter(components, state)
        self._add_decisions(components, state, decisions)
        if self._world.is_main:
            log.info("resuming run %s from step %d", self._run.id, state.step)
        return state

    def _run_loop(
        self,
        components: Components,
        state: RunState,
        journal: Journal,
        pause_at: int | None,
        *,
        replays: bool,
    ) -> Result:
        """Train, and end the attempt, which pauses at the step `pause_at`, if given.

        If it `replays` steps of the parent, it goes on there instead: another loop follows.
        """
        loop = build_loop(
            components,
            state,
            journal,
            self._checkpoints,
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
        """Return whether the steps of the parent are repeated, so that the run's own are due."""
        return result.steps == self._origin.step and result.status in ("completed", "paused")

    def _outside(self, config: RunConfig) -> Outside:
        """Return what may end this run from outside; a repetition is ended where the repeated run was."""
        stop, lease = self._run.stop_request(self._session.number), self._session.lease
        limit, verdict = config.training.max_minutes, self._request.verdict
        if repeats(self._manifest.parent):
            limit, verdict = None, None
        if lease is None:  # the main process alone watches the clock and the request to stop
            return Outside(verdict=verdict)
        return Outside(limit, lambda: access(stop, F_OK) or lease.is_asked_to_stop, verdict)

    def _train_and_evaluate(self, loop: Loop, components: Components, *, replays: bool) -> Result:
        """Train and, if the training is completed or was stopped, evaluate."""
        saver, state = loop.parts.saver, loop.state
        for decision in state.decisions:
            if decision not in self._journalled:
                loop.parts.recorder.decided(decision)
        saver.resume_from(state, components.rules.best_steps(state.evaluations))
        before = components.learner.unsaved_state()
        with keeping_freed_memory():
            status = loop.run(lambda: self._check_unsaved(components, before))
        self._world.main_only(lambda: self._finish_saves(loop))
        result = self._result = self._result_so_far(components, state, status)
        if replays and self._has_replayed(result):
            return result
        if status == "completed":
            saver.drop_superseded_best()
        if status in TESTED:
            self._files.share(lambda name: name.startswith("best/"))
            try:
                outcome = evaluate_outcome(
                    self._run, components, state, run_checkpoints(self._run).best, self._signals.check
                )
                result = result.with_values(**outcome)
            except Stopped as stopped:
                result = result.with_values(status=stopped.status)
        return result

    def _finish_saves(self, loop: Loop) -> None:
        """Wait for the saves.

        Raises:
            CheckpointError: The newest one has failed.
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
        result = result_so_far(self._manifest, components, state, status, self._session.number)
        return result.with_values(digest=weights_digest(components))

    def _failed_result(self, components: Components, state: RunState) -> Result:
        """Return the result of an attempt that failed; without a digest if the model cannot be read."""
        if self._result is not None:  # the model may hold the weights of the best step by now
            return self._result.with_values(status="failed")
        try:
            return self._result_so_far(components, state, "failed")
        except Exception:
            return result_so_far(self._manifest, components, state, "failed", self._session.number)

    def _check_unsaved(self, components: Components, before: Mapping[str, str]) -> bool:
        """Lower the determinism tier if training has changed what no checkpoint holds; return whether it has.

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
            self._manifest = lower_tier(self._run, self._manifest, reason)
        return True

    def _end(self, result: Result, loop: Loop) -> None:
        recorder = loop.parts.recorder

        def end_journal() -> None:
            if result.metrics and result.status in TESTED:
                recorder.final(result.steps, result.metrics)
            recorder.ended(result.steps, result.status, result.metrics)
            recorder.journal.close()

        self._session.publish(result, end_journal, page=self._has_page)

    @property
    def _has_page(self) -> bool:
        """Whether the run writes its report when it ends.

        A trial of a search does so only for its trackers: few pages of hundreds are ever opened, and
        `trainyard report RUN` writes one that is.
        """
        parent = self._manifest.parent
        return parent is None or parent.relation != "tune" or bool(self._request.resolved.config.tracking)

    def _record_failure(self, error: Exception, loop: Loop, components: Components) -> None:
        """Write down how the attempt failed, as far as the disk permits.

        Raises:
            TrainingError: The disk failed, or the run directory is gone.
        """
        message, run = self._message_of(error), self._run
        if isinstance(error, RunLostError) or not self._world.is_main:
            return  # nothing more is written
        loop.parts.saver.drain()
        if isinstance(error, RunGoneError) or not run.path.is_dir():
            raise RunGoneError(run.path) from error
        if not self._session.has_ended:
            with contextlib.suppress(OSError):  # it may be the disk or the store that failed
                loop.parts.recorder.event(loop.state.step, "failed", message=message)
                self._end(self._failed_result(components, loop.state).with_values(error=message), loop)
        if isinstance(error, OSError):
            raise TrainingError(
                f"{error}; what was committed is untouched: fix this, then resume run {run.id}"
            ) from error
