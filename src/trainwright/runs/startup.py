"""The start of an attempt: build everything, record or compare the inputs, restore the newest checkpoint."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from trainwright import plugins
from trainwright.config.schema import RunConfig
from trainwright.digest import digest, sha256_bytes
from trainwright.engine.checkpoint import RunCheckpoints
from trainwright.engine.state import RunState
from trainwright.errors import CheckpointError
from trainwright.process.global_random import seed_global_random
from trainwright.records.commit import Commit
from trainwright.records.decision import Decision, Decisions, journalled_decisions
from trainwright.records.manifest import DeterminismRecord, InitialWeights, Manifest
from trainwright.redact import redacted
from trainwright.require import import_paths, open_process
from trainwright.runs.children.origin import Origin
from trainwright.runs.children.passed_weights import keep_passed
from trainwright.runs.code_identity import with_modules
from trainwright.runs.decisions import (
    known_decisions,
    note_processes,
    note_resume,
    note_skips,
    replayed_skips,
)
from trainwright.runs.frameworks import copied_model, framework_name
from trainwright.runs.manifest import checked_determinism, make_manifest
from trainwright.runs.observed import gather_inputs, note_unrepeatable, unseen_reason, with_later_inputs
from trainwright.runs.processes.nodes import SharedFiles
from trainwright.runs.processes.placement import config_and_threads, say_threads
from trainwright.runs.processes.ranks import require_same_state
from trainwright.runs.processes.state import state_records, weights_digest
from trainwright.runs.recorded_inputs import check_alike, check_manifest, compare_inputs, record_inputs
from trainwright.runs.request import Request
from trainwright.runs.session import FollowerSession, Session
from trainwright.runs.weights import file_hashes, initial_source, initialize, named_source
from trainwright.runs.wiring import Components, build, run_checkpoints
from trainwright.safe_files import read_regular
from trainwright.storage.run_files import is_no_checkpoint
from trainwright.types import Determinism
from trainwright.world import World

log = logging.getLogger("trainwright")


class Replay(NamedTuple):
    """The components that repeat the parent's steps, and the state before the first of them."""

    components: Components
    state: RunState


@dataclass
class Ready:
    """The parts that an attempt trains with.

    `state` is the state before the run's next own step. If steps of the parent are repeated first, it is
    None, and `replay` has what repeats them; `Startup.begin_own_steps` then restores the state that they lead
    to.
    """

    components: Components
    state: RunState | None = None
    replay: Replay | None = None

    @property
    def step(self) -> int:
        """The step that the attempt continues from."""
        state = self.replay.state if self.replay is not None else self.state
        assert state is not None, "one of them is there"
        return state.step


@dataclass(frozen=True)
class _Earlier:
    """The remains of earlier attempts of a run: none, before the first one.

    `saved` is the state of the loop in the newest valid checkpoint; `decisions` are those of the journals.
    """

    manifest: Manifest | None
    commit: Commit | None
    saved: dict[str, Any]
    decisions: Decisions

    def has_lost(self, source: Path) -> bool:
        """Return whether the initial weights are gone, and no longer needed."""
        return self.commit is not None and not source.exists()


class Startup:
    """The phases before the first step of an attempt, and what they find out about its run.

    `files`, `origin`, `checkpoints`, `manifest` and `journalled` (the decisions of earlier attempts) are set
    by `prepare`.
    """

    files: SharedFiles
    origin: Origin
    checkpoints: RunCheckpoints
    manifest: Manifest
    journalled: Decisions

    def __init__(self, request: Request, session: Session | FollowerSession, world: World) -> None:
        self._request = request
        self._run = request.run
        self._session = session
        self._world = world
        self.imported = frozenset(sys.modules)  # before the run imported anything

    def prepare(self) -> Ready:
        """Build everything, and restore the newest checkpoint, or prepare to repeat the parent's steps."""
        self._open_files()
        past = self._world.from_main(self._survey)
        self.journalled = past.decisions
        parent = past.manifest.parent if past.manifest else self._request.parent
        decisions = known_decisions(past.saved, past.decisions, parent)
        components, determinism = self._build(past, decisions)
        try:
            with self._unchanged_if_refused(components, is_new=past.manifest is None):
                return self._begin(past, components, determinism, decisions)
        except BaseException:
            components.learner.close()  # it gives back an object that was passed in Python
            raise

    def _begin(
        self, past: _Earlier, components: Components, determinism: Determinism, decisions: Decisions
    ) -> Ready:
        """Initialize the model, record or compare the inputs, and restore the newest checkpoint."""
        source = self.files.source(self._world.from_main(lambda: self._first_weights(components, past)))
        begun = None
        if source is not None and not past.has_lost(source):
            begun = initialize(components, source)
        is_in_place = components.framework.capabilities.trains_objects
        if is_in_place and self._request.objects.model is not None and self.origin.initial is None:
            keep_passed(self._run, components, self._world, is_new=past.manifest is None)
        initial = weights_digest(components.learner, self._world)
        gather_inputs(self._world)

        def recorded() -> Manifest:
            weights = InitialWeights(initial=initial, files=file_hashes(source), loaded=begun)
            return self._record_or_compare(past, components, determinism, source, weights)

        self.manifest = self._world.from_main(recorded)
        self.checkpoints = self._own_checkpoints()
        seed_global_random(components.config.experiment.seed)  # building may have drawn from them
        return self._restore_newest(past, components, decisions)

    @contextmanager
    def _unchanged_if_refused(self, components: Components, *, is_new: bool) -> Iterator[None]:
        """Give an object that is trained in place its own weights back if the block fails.

        Other processes have copies of it. A new run without a parent gives it no weights.
        """
        in_place = components.framework.capabilities.trains_objects and self._world.size == 1
        is_given = self._request.objects.model is not None
        if not (in_place and is_given) or (is_new and self.origin.lineage is None):
            yield
            return
        own = components.learner.snapshot(weights_only=True)
        try:
            yield
        except BaseException:
            with TemporaryDirectory(prefix="trainwright-") as folder:
                own.write(Path(folder))
                components.learner.restore(Path(folder), weights_only=True)
            raise
        finally:
            own.release()

    def begin_own_steps(self, components: Components) -> RunState:
        """Restore the state that the steps of the parent led to, and record it as the initial state."""

        def replayed() -> tuple[Manifest, Commit, dict[str, Any], Decisions]:
            commit = self.checkpoints.resume.load_step(self.origin.step)
            manifest = self.origin.record_replayed(self.manifest, self.checkpoints, commit)
            saved = self.checkpoints.resume.state(commit)
            return manifest, commit, saved, journalled_decisions(self._run.journal)

        self.manifest, commit, saved, self.journalled = self._world.from_main(replayed)
        self.files.share(is_no_checkpoint)
        decisions = known_decisions(saved, self.journalled, self.manifest.parent)
        components.framework.pin(components.config, components.inputs.threads)  # the parent's is pinned now
        seed_global_random(components.config.experiment.seed)
        state = self._restore(components, commit, saved)
        self.origin.enter(components, state)
        self._add_decisions(components, state, decisions)
        if self._world.is_main:
            log.info("resuming run %s from step %d", self._run.id, state.step)
        return state

    def _open_files(self) -> None:
        """Bring the run's files here, and see where the run begins."""
        run, lease, config = self._run, self._session.lease, self._request.resolved.config
        self.files = SharedFiles(run, self._world, lease)
        self.files.share(is_no_checkpoint)
        self.origin, self.checkpoints = Origin(run), run_checkpoints(run, lease=lease)
        if any(import_paths(self._request.resolved.nested)):
            open_process()  # before anything is imported for the config
        seed_global_random(config.experiment.seed)  # a module of the user's may draw when it is imported

    def _survey(self) -> _Earlier:
        """Return what earlier attempts have left."""
        self.checkpoints.resume.sweep()
        before, commit = self._run.manifest(), self._newest_commit()
        saved = self.checkpoints.resume.state(commit) if commit else self.origin.saved()
        check_manifest(self._request, before, commit)
        return _Earlier(before, commit, saved, journalled_decisions(self._run.journal))

    def _build(self, past: _Earlier, decisions: Decisions) -> tuple[Components, Determinism]:
        """Build the components of the run, and determine its tier."""
        request = self._request
        config, threads = self._world.from_main(lambda: config_and_threads(request, past.manifest))
        framework = plugins.adapter("framework", framework_name(config, request.objects.model))
        determinism = checked_determinism(config, framework.determinism(config))
        seed_global_random(config.experiment.seed)
        choices, begin = decisions.choices(), self.origin.begin
        settle = replayed_skips(decisions, self._world)
        components = build(config, threads, request.objects, choices, begin, self._world, settle)
        if reason := components.bundle.unrepeatable or components.learner.why_inexact():
            determinism = checked_determinism(config, Determinism("statistical", reason))
        if self._world.is_main:
            say_threads(config, components.inputs.threads)
        return components, determinism

    def _restore_newest(self, past: _Earlier, components: Components, decisions: Decisions) -> Ready:
        """Restore the newest checkpoint (of a new run: its parent's), or prepare to repeat steps first."""
        commit = past.commit
        if commit is None:
            commit = self._world.from_main(lambda: self.origin.adopt(self.checkpoints))
        if self.origin.replays(commit.step if commit else 0, past.saved):
            return Ready(components, replay=self._prepare_replay(commit, past.saved, decisions, components))
        if (newest := commit) is not None:
            self.manifest = self._world.from_main(
                lambda: self.origin.record_replayed(self.manifest, self.checkpoints, newest)
            )
        state = RunState() if commit is None else self._restore(components, commit, past.saved)
        self.origin.enter(components, state)
        self._add_decisions(components, state, decisions)
        require_same_state(components)
        return Ready(components, state)

    def _record_or_compare(
        self,
        past: _Earlier,
        components: Components,
        determinism: Determinism,
        source: Path | None,
        initial: InitialWeights,
    ) -> Manifest:
        """Record the inputs of the run, or compare them with the recorded ones; return the manifest."""
        before, request = past.manifest, self._request
        now = make_manifest(
            self._run, request.resolved, request.objects, components, determinism, initial, before
        )
        init_from = redacted(str(source)) if source else None
        now = _with_unseen(now, components.config)
        now = now.model_copy(update={"init_from": init_from, "parent": request.parent})
        if before and source and past.has_lost(source):  # the checkpoint was trained from the initial weights
            now = now.model_copy(update={"weights": before.weights})
        now = self.origin.record(now)
        environment, differs = now.environment.numeric(), False
        if before is None:
            now = with_later_inputs(now, self.imported, self._run)
            check_alike(request, now)
            now = self.origin.check_new(now, components, allow_change=request.allow_change)
            manifest = record_inputs(self._run, now, components.bundle, provable=past.commit is None)
        else:
            if differs := environment != before.environment.numeric():
                self._session.complete_earlier(before.environment.numeric())
            manifest = self._compare(before, now, components)
        manifest = self._with_strategy(manifest, components)
        self._session.note_environment(environment, differs=differs)
        return manifest

    def _compare(self, before: Manifest, now: Manifest, components: Components) -> Manifest:
        """Compare the inputs with the recorded ones, and return the manifest with the accepted changes."""
        neutral = components.framework.neutral_changes(components.config)
        file = f"data-{self._session.number:04d}.json"
        return compare_inputs(self._request, before, now, components.bundle, neutral=neutral, data_file=file)

    def _with_strategy(self, manifest: Manifest, components: Components) -> Manifest:
        """Return the manifest with the code of this attempt's strategy, if that is the user's.

        Another attempt may have another strategy, but none that the run has had may change.
        """
        if self._world.size == 1:
            return manifest
        strategy = plugins.adapter("strategy", components.config.distributed.strategy)
        code = with_modules(manifest.code, [strategy.__module__])
        if code is manifest.code:
            return manifest
        manifest = manifest.model_copy(update={"code": code})
        self._run.write(Manifest.FILE, manifest)
        return manifest

    def _own_checkpoints(self) -> RunCheckpoints:
        """Return the checkpoints of the run, for this attempt to add to."""
        run = self._run
        files = (run.config_file.name, self.manifest.data_file)
        hashes = {
            name: sha256_bytes(read_regular(run.path / name)) for name in files if (run.path / name).exists()
        }
        return self.checkpoints.covering(hashes)

    def _add_decisions(self, components: Components, state: RunState, decisions: Decisions) -> None:
        """Give a state the decisions of earlier attempts, and those that this attempt begins with."""
        if choices := components.learner.choices():
            decisions.add(Decision(0, "choice", dict(choices)))
        note_skips(decisions, components.bundle)
        note_resume(self._run, decisions, state)
        if self._world.is_main:  # only the main process keeps them
            note_processes(self._run, decisions, state.step, self._world.size, self._session.number)
        state.decisions = decisions

    def _prepare_replay(
        self, commit: Commit | None, saved: dict[str, Any], decisions: Decisions, own: Components
    ) -> Replay:
        """Build what repeats the parent's steps, and restore the newest checkpoint.

        The data are not read again if parent and child share them.
        """
        config = self.origin.parent_config().with_placement(self.manifest.placement).config
        objects = self._request.objects
        if config.data == own.config.data:
            objects = replace(objects, data=own.bundle)
        objects = replace(objects, model=copied_model(objects.model))  # it is trained in the run's own steps
        seed_global_random(config.experiment.seed)
        components = build(
            config,
            own.inputs.threads,
            objects,
            decisions.choices(),
            lambda _: self.origin.parent_begin(),
            self._world,
        )
        named = self.origin.source(None)
        if (source := self.files.source(Path(named) if named else None)) is not None:
            initialize(components, source)
        seed_global_random(config.experiment.seed)
        state = RunState() if commit is None else self._restore(components, commit, saved)
        self.origin.exclude_lost(components, self.origin.commit)
        self._add_decisions(components, state, decisions)
        return Replay(components, state)

    def _newest_commit(self) -> Commit | None:
        """Return the newest valid checkpoint; damaged ones are named in warnings."""
        commit, complaints = self.checkpoints.newest()
        for complaint in complaints:
            log.warning("%s", complaint)
        if commit is None and self._session.number > 1:
            log.warning(
                "%s: run %s starts again %s",
                "no checkpoint is valid" if complaints else "there is no checkpoint",
                self._run.id,
                "at step 0" if self.origin.initial is None else "from its initial state",
            )
        return commit

    def _first_weights(self, components: Components, past: _Earlier) -> Path | None:
        """Return the source of the initial weights; a run with a parent's state has none."""
        if self.origin.initial is not None:
            return None
        named = self.origin.source(named_source(self._run, past.manifest, self._request.parent))
        return Path(named) if named else initial_source(components.config, self._run)

    def _restore(self, components: Components, commit: Commit, saved: dict[str, Any]) -> RunState:
        """Restore a checkpoint; the digest of what was restored must be that of what was saved."""
        self.files.share(lambda name: name.startswith((f"checkpoints/{commit.name}/", "initial/")))
        with self.origin.fitting(commit.step):
            components.learner.restore(self.checkpoints.resume.folder(commit))
        restored = digest(state_records(components.learner, self._world))
        if restored != commit.state_digest and not self.origin.adapts(commit.step):
            raise CheckpointError(
                f"checkpoint {commit.name} was restored with digest {restored}, not {commit.state_digest}"
            )
        return RunState.from_json(saved)


def _with_unseen(manifest: Manifest, config: RunConfig) -> Manifest:
    """Return the manifest with a lower tier where the user's code uses what cannot be observed.

    Raises:
        InputError: The config demands `bitwise`.
    """
    note_unrepeatable(manifest.code)
    reason = unseen_reason()
    if reason is None or manifest.determinism.tier == "statistical":
        return manifest
    lowered = checked_determinism(config, Determinism("statistical", reason))
    return manifest.model_copy(update={"determinism": DeterminismRecord(**lowered._asdict())})
