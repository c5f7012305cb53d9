"""The origin of a run: step 0, or the state of another run, of which it keeps a copy in `initial/`."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from trainwright import plugins
from trainwright.config import Resolved
from trainwright.config import load as load_resolved
from trainwright.config.env import filled_in
from trainwright.datasets.base import DataBundle
from trainwright.digest import sha256_json
from trainwright.engine.checkpoint import Checkpoints, RunCheckpoints, StoredCommit
from trainwright.engine.rules import NOTHING_INHERITED, Inherited
from trainwright.engine.state import RunState
from trainwright.errors import ChangedInputsError, CheckpointError, InputError, ModelError
from trainwright.order import START, Cursor
from trainwright.records.commit import Commit
from trainwright.records.data import DataDescription
from trainwright.records.lineage import FOLDER, Lineage
from trainwright.records.manifest import Difference, InitialState, Manifest, Parent
from trainwright.records.run_dir import RunDir
from trainwright.runs.catalog import Catalog
from trainwright.runs.children.compatibility import advice, longer, needs_same_rows
from trainwright.runs.data.identity import data_inputs
from trainwright.runs.data.input_meaning import other_meaning
from trainwright.runs.manifest import lower_tier
from trainwright.runs.wiring import Components
from trainwright.safe_files import open_regular
from trainwright.types import DataInfo

log = logging.getLogger("trainwright")
CONFIG_FILE = "config.yaml"  # in `initial/`: that of the parent
# What the weights of a model stand for, in words and as the manifest has it.
_MEANING = {"task": "task", "target": "target", "list of features": "features", "list of classes": "classes"}
_LOOP = ("step", "settled", "loss_sum", "loss_samples", "evaluations", "random")  # what bits depend on


def loop_sha256(saved: Mapping[str, Any]) -> str:
    """Return the SHA-256 of what bits depend on in a saved state of the loop."""
    return sha256_json({name: saved[name] for name in _LOOP})


_STATEFUL = ("training.ema", "training.precision")  # keys with which the state has, or lacks, some parts


class Origin:
    """The state in which a run begins, and its relation to the parent.

    Args:
        run: The run directory.

    Raises:
        CheckpointError: The record of its parent is damaged or missing.
    """

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self.lineage = run.lineage()
        if self.lineage is None and (manifest := run.manifest()) is not None and manifest.initial is not None:
            raise CheckpointError(f"{run.path / Lineage.FILE} is missing: what the run began with is unknown")
        self.initial: InitialState | None = self.lineage.initial if self.lineage else None

    def announce(self, attempt: int, step: int) -> None:
        """Log where an attempt begins, and what a child begins with; called after the last check.

        Args:
            attempt: The number of the attempt.
            step: The step that it goes on from; 0: it begins at the first one.
        """
        if attempt == 1 and self.lineage is not None and self.lineage.relation != "reproduce":
            log.info("run %s %s", self._run.id, self.lineage.in_words())
            at = self.initial.checkpoint_step if self.initial else 0
            if self.lineage.relation not in ("distill", "retrain") and (self.lineage.step != at or not at):
                id_ = self.lineage.run_id
                newest = f"the newest usable checkpoint of run {id_} is of step {at}"
                what = newest if at else f"run {id_} has no usable checkpoint"
                log.info("%s: training repeats its steps from step %d", what, at)
        if step:
            log.info("resuming run %s from step %d", self._run.id, step)

    @property
    def step(self) -> int:
        """The step at which the run's own config begins to hold."""
        return self.initial.step if self.initial else 0

    # -- the checkpoint in `initial/`

    @property
    def checkpoints(self) -> RunCheckpoints:
        """The checkpoint of the parent and its best models, as they were copied."""
        folder = self._run.path / FOLDER
        if folder.is_symlink():
            raise CheckpointError(f"{folder} is a symbolic link, which is not followed")
        store = plugins.adapter("store", "file")(folder)
        return RunCheckpoints(Checkpoints(store, "checkpoints"), Checkpoints(store, "best"))

    @cached_property
    def commit(self) -> Commit | None:
        """The verified checkpoint that the run begins with; None if it begins at step 0.

        Raises:
            CheckpointError: It is missing, damaged, or not what the run was created with.
        """
        if self.initial is None or self.initial.state_digest is None:
            return None
        try:
            kept = self.checkpoints.resume.load_step(self.initial.checkpoint_step)
        except CheckpointError as error:
            raise CheckpointError(
                f"the initial state of run {self._run.id} cannot be used: {error}; make the run again"
            ) from error
        loop = loop_sha256(self.checkpoints.resume.state(kept))
        if (kept.state_digest, loop) != (self.initial.state_digest, self.initial.loop_sha256):
            raise CheckpointError(f"the initial state of run {self._run.id} is not the one it was made with")
        return kept

    def saved(self) -> dict[str, Any]:
        """Return the state of the loop that the run begins with, empty at step 0.

        What was chosen by measuring is taken over, other decisions and the time spent are the parent's.
        """
        if self.commit is None:
            return {}
        saved = self.checkpoints.resume.state(self.commit)
        decisions = [one for one in saved.get("decisions", []) if one[1] == "choice"]
        return saved | {"decisions": decisions, "train_seconds": 0.0}

    def adopt(self, own: RunCheckpoints) -> Commit | None:
        """Commit the initial state and its best models as the run's own; return None at step 0.

        From then on the run can be resumed like any other.

        Raises:
            CheckpointError: The initial state is damaged, or the checkpoint cannot be written.
            RunLostError: Another attempt has taken the run over.
        """
        if (commit := self.commit) is None:
            return None
        kept, best = self.checkpoints, available_best(self.checkpoints, commit)
        for step, model in best.items():
            own.best.commit(step, StoredCommit(kept.best.folder(model), model))
        snapshot = StoredCommit(kept.resume.folder(commit), commit)
        adopted = own.resume.commit(commit.step, snapshot, self.saved(), frozenset(best))
        own.publish([adopted.name])
        return adopted

    # -- the steps of the parent

    def replays(self, step: int, saved: Mapping[str, Any]) -> bool:
        """Return whether a run at a step, with a saved state of the loop, has steps of its parent before it.

        The last of them is not over as long as its evaluation, which a signal cut short, is missing.
        """
        is_cut = self._has_replay and step == self.step and saved["settled"] < step
        return step < self.step or is_cut

    @property
    def _has_replay(self) -> bool:
        """True if the run begins with steps of its parent that are repeated."""
        return self.initial is not None and self.initial.checkpoint_step < self.initial.step

    def parent_config(self) -> Resolved:
        """Return the config of the parent."""
        path = self._run.path / FOLDER / CONFIG_FILE
        try:
            open_regular(path, depth=2).close()
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
        return load_resolved(path, adapters=Catalog(self._run.path.parent.parent))

    def parent_begin(self) -> tuple[Cursor, Inherited]:
        """Return where the parent's own steps began, and what it took over."""
        assert self.lineage is not None, "it has no parent"
        begin = Cursor(*self.lineage.begin)
        return begin, Inherited(begin.step, frozenset(self.lineage.inherited_irregular))

    def first_own(self) -> Commit | None:
        """Return the state with which the run's own steps began, in `initial/`; None if that is step 0.

        Raises:
            CheckpointError: It is damaged, or the steps before it are not repeated yet.
        """
        if not self._has_replay:
            return self.commit
        return self.checkpoints.resume.load_step(self.step)

    def record_replayed(self, manifest: Manifest, own: RunCheckpoints, commit: Commit) -> Manifest:
        """Keep the state that the parent's steps led to, and record its digest; do nothing at other commits.

        An attempt may have died between the commit and this.

        Returns:
            The run's manifest from here on.
        """
        initial, digest = manifest.initial, commit.state_digest
        if initial is None or not self._has_replay or commit.step != self.step:
            return manifest
        copy_state(own, commit, self._run.path / FOLDER)
        if initial.replayed == digest:
            return manifest
        if initial.replayed is not None:
            manifest = lower_tier(self._run, manifest, "the steps of its parent were not repeated to the bit")
        initial = initial.model_copy(update={"replayed": digest})
        manifest = manifest.model_copy(update={"initial": initial})
        self._run.write(Manifest.FILE, manifest)
        return manifest

    # -- the run's own steps

    def begin(self, bundle: DataBundle) -> tuple[Cursor, Inherited]:
        """Return where the run's own steps begin, and what they take over.

        With other training rows they begin at the start of an epoch.
        """
        initial = self.initial
        if initial is None or self.lineage is None:
            return START, NOTHING_INHERITED
        cursor = Cursor(*self.lineage.own_begin(bundle.once(data_inputs)))
        return cursor, Inherited(initial.step, frozenset(self.lineage.irregular))

    def source(self, known: str | None) -> str | None:
        """Return where the initial weights of the run come from, if it begins at step 0.

        Args:
            known: Where the manifest says they came from.
        """
        if known is None and self.lineage is not None and self.commit is None:
            known = self.lineage.init_from
        return filled_in(known) if known else None

    def record(self, now: Manifest) -> Manifest:
        """Return the inputs of the run, the initial state among them."""
        if self.lineage is None:
            return now
        parent = now.parent or Parent(run_id=self.lineage.run_id, relation=self.lineage.relation)
        now = now.model_copy(update={"parent": parent})
        if self.initial is None:
            return now
        both = {"config": now.computation_hash, **self.initial.identity()}
        return now.model_copy(update={"initial": self.initial, "computation_hash": sha256_json(both)})

    def check_new(self, now: Manifest, components: Components, *, allow_change: bool) -> Manifest:
        """Compare the inputs of a new run with those of its parent, and return them with what differs.

        Raises:
            ChangedInputsError: The data have changed, though the run was to have the parent's.
            InputError: The state of the parent does not fit the data, or there are no steps to train.
        """
        if self.initial is None or self.lineage is None or self.lineage.relation == "reproduce":
            return now
        if (total_steps := components.rules.total_steps) <= self.initial.step:
            raise InputError(
                f"there is nothing to train: the run would have {total_steps} steps, and begins with step "
                f"{self.initial.step} of run {self.initial.run_id}; {longer(total_steps)}"
            )
        self._check_data(now, components, allow_change)
        self._check_meaning(components.bundle)
        if self.lineage.relation == "fork":
            for difference in self._code_changes(now):
                log.warning("changed since run %s: %s", self.initial.run_id, difference)
            return now
        differs = [*self.initial.differs, *self._changes(now)]
        if differs:
            log.warning("the run does not continue exactly: %s", "; ".join(differs))
        else:
            log.info(
                "the run continues exactly: it will end with the bits of a run of this length from the start"
            )
        return now.model_copy(update={"initial": self.initial.model_copy(update={"differs": differs})})

    def _check_data(self, now: Manifest, components: Components, allow_change: bool) -> None:
        assert self.lineage is not None
        before, id_ = self.lineage.data, self.lineage.run_id
        for name, field in _MEANING.items():
            if getattr(before, field) != getattr(now.data, field):
                raise InputError(
                    f"data: the {name} is not that of run {id_}, so its state does not fit; train a new run"
                )
        changed = [name for name, split in before.splits.items() if now.data.splits.get(name) != split]
        if not changed:
            return
        config, listed = components.config, ", ".join(changed)
        if "train" in changed and (reason := needs_same_rows(config, components.framework)):
            raise InputError(f"data: the training rows differ from those of run {id_}: {reason}")
        if not allow_change and not any(one.startswith("data.") for one in self.lineage.changed):
            raise ChangedInputsError(
                f"the data are not those of run {id_} any more: other rows in {listed}\n"
                "put them back, or accept them with --allow-change"
            )
        log.warning("data: the rows differ from those of run %s in %s", id_, listed)

    def _check_meaning(self, bundle: DataBundle) -> None:
        """Refuse a state that learned other categories, or a target shifted otherwise.

        Outputs of a network whose target is standardized are not in its unit, so that no shift is in them.

        Raises:
            InputError: They differ.
        """
        assert self.lineage is not None
        id_ = self.lineage.run_id
        folder = next(self._run.path.parent.parent.glob(f"*/{id_}"), None)
        stored = None if folder is None else DataDescription.load(folder / DataDescription.FILE)
        if stored is not None and (reason := other_meaning(stored, bundle)):
            raise InputError(f"data: {reason}, so the state of run {id_} does not fit; train a new run")
        now = bundle.info
        if stored is None or (now.target_mean, now.target_scale) != (0.0, 1.0):
            return
        before = DataInfo.from_json(stored.info)
        if bool(before.target_offset) != bool(now.target_offset):
            offset = ", ".join(map(repr, before.target_offset or now.target_offset))
            said = f"was {'' if before.target_offset else 'not '}shifted by {offset} to be learned in float32"
            raise InputError(
                f"the state of run {id_} does not fit: its target {said}, and that of this run "
                f"{'is not' if before.target_offset else 'is'}; keep objective, loss and metric of the "
                "model, which decide that, or train a new run"
            )

    def _parent(self) -> Manifest | None:
        """Return the manifest of the parent; None if it is gone."""
        assert self.lineage is not None
        folders = self._run.path.parent.parent.glob(f"*/{self.lineage.run_id}")
        return next((RunDir(folder).manifest() for folder in folders), None)

    def _code_changes(self, now: Manifest) -> list[Difference]:
        """Return changes to the parent's code since it ran."""
        before = self._parent()
        return [one for one in before.shared_differences(now) if one.input == "code"] if before else []

    def _changes(self, now: Manifest) -> list[str]:
        """Return the inputs, other than the config, that have changed since the parent ran."""
        before = self._parent()
        if before is None:
            return ["the inputs of its parent are not known any more"]
        return [str(one) for one in before.differences(now) if one.input not in ("config", "weights")]

    @contextmanager
    def fitting(self, step: int) -> Iterator[None]:
        """Name the parent in the error, if its state does not fit the model of the run.

        Raises:
            InputError: It is that of the parent, and does not fit.
        """
        try:
            yield
        except ModelError as error:
            if self.initial is None or step != self.initial.step:
                raise
            id_ = self.initial.run_id
            raise InputError(f"the state of run {id_} does not fit: {error}; {advice(id_)}") from error

    def adapts(self, step: int) -> bool:
        """Return whether the state to restore is the parent's, and the config changes what a state contains.

        Options of the model may differ; an average of the weights or a loss scaler may be new, or be dropped.
        """
        if self.lineage is None or self.initial is None or step != self.initial.step:
            return False
        return any("model.params" in one or one.startswith(_STATEFUL) for one in self.lineage.changed)

    def _compares_evaluations(self, bundle: DataBundle) -> bool:
        """Return whether evaluations of the parent can be compared with those of the run."""
        assert self.lineage is not None, "it has no parent"
        of_loss = ("training.loss:", "training.label_smoothing:")
        has_own_loss = any(one.startswith(of_loss) for one in self.lineage.changed)
        return self.lineage.has_same(bundle.once(data_inputs), "val") and not has_own_loss

    def exclude_lost(self, components: Components, commit: Commit | None) -> None:
        """Exclude evaluations from the choice of the best model if their weights did not come with a state.

        Args:
            components: What the run, or a step of its parent, is computed with.
            commit: The state, in `initial/`.
        """
        if commit is None or components.plan.cumulative:  # such a model holds those of all earlier steps
            return
        evaluated = (step for step, _ in self.checkpoints.resume.state(commit)["evaluations"])
        components.rules.exclude(set(evaluated) - available_best(self.checkpoints, commit).keys())

    def enter(self, components: Components, state: RunState) -> None:
        """Prepare the state from which the run's own steps begin.

        Evaluations of other rows, or by another loss, cannot be compared with those to come, and are dropped.

        Raises:
            InputError: Early stopping leaves no steps to train.
        """
        initial, rules = self.initial, components.rules
        if initial is None:
            return
        self.exclude_lost(components, self.first_own())
        if state.step != initial.step:
            return
        if not self._compares_evaluations(components.bundle):
            state.evaluations.clear()
        if rules.last_step(state.evaluations) <= initial.step:
            raise InputError(
                f"there is nothing to train: training.early_stopping ends the run at step {initial.step}, as "
                f"run {initial.run_id} has not improved for so long; set "
                "training.early_stopping.patience, or training.early_stopping=null"
            )


def available_best(source: RunCheckpoints, commit: Commit) -> dict[int, Commit]:
    """Return the best models that a checkpoint needs, by step, so far as they are there.

    A run that is completed keeps only those that its last checkpoint needs.
    """
    models: dict[int, Commit] = {}
    for step in sorted(commit.best):
        with suppress(CheckpointError):
            models[step] = source.best.load_step(step)
    return models


def copy_state(source: RunCheckpoints, commit: Commit, folder: Path) -> None:
    """Copy a checkpoint and the best models that it needs into a folder, as they are.

    Raises:
        CheckpointError, OSError: A file is gone or damaged, or the copy cannot be written.
    """
    store = plugins.adapter("store", "file")(folder)
    try:
        for model in available_best(source, commit).values():
            source.best.copy_to(model, store)
        source.resume.copy_to(commit, store)
    except FileNotFoundError as error:
        raise CheckpointError(f"checkpoint {commit.name} was removed while it was copied") from error
