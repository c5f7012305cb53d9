"""Make a run that begins with the state of another one: a fork of it, or one that continues after it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Literal

from trainwright import plugins
from trainwright.config import Resolved
from trainwright.engine.checkpoint import RunCheckpoints
from trainwright.engine.rules import NOTHING_INHERITED, Inherited, Rules
from trainwright.errors import CheckpointError, InputError
from trainwright.frameworks.base import Plan
from trainwright.order import START, Cursor, SampleOrder
from trainwright.records.checkpoint_names import step_of
from trainwright.records.commit import Commit
from trainwright.records.creation import Creation
from trainwright.records.lineage import FOLDER, Lineage
from trainwright.records.manifest import InitialState
from trainwright.records.run_dir import RunDir, write_config
from trainwright.records.status import FINAL
from trainwright.redact import redacted_value
from trainwright.runs.children.compatibility import advice, longer, refusal
from trainwright.runs.children.config import (
    changed_computation,
    changed_settings,
    child_settings,
    differing,
)
from trainwright.runs.children.origin import (
    CONFIG_FILE,
    Origin,
    available_best,
    copy_state,
    loop_sha256,
)
from trainwright.runs.children.passed_weights import copy_passed
from trainwright.runs.data.sampling import epoch_samples
from trainwright.runs.frameworks import framework_name
from trainwright.runs.wiring import order_and_rules, run_checkpoints
from trainwright.storage.copies import download_all

log = logging.getLogger("trainwright")
Relation = Literal["fork", "continue"]
_TRIES = 3  # to copy a checkpoint of a run that is training


@dataclass(frozen=True)
class ChildRequest:
    """The request for a child run.

    `own` is the config of the parent, `resolved` that of the child; `step` is where the child's config begins
    to hold (None: at the newest state of the parent); `model` is the model object, if the parent was given
    one.
    """

    parent: RunDir
    own: Resolved
    resolved: Resolved
    relation: Relation
    step: int | None = None
    model: Any = None


def create_child(request: ChildRequest) -> RunDir:
    """Make the run, with a copy of the state that it begins with.

    Raises:
        InputError: The parent has no such step, or its state does not fit the config.
        CheckpointError: A record of the parent is damaged.
    """
    download_all(request.parent)
    runs_dir, experiment = request.parent.path.parent.parent, request.resolved.config.experiment.name
    for left in reversed(range(_TRIES)):
        try:
            start = _ParentState(request)
            start.check()
            settings = child_settings(request.parent, request.resolved)
            parent = request.parent.creation()
            created = Creation(
                settings=settings,
                data_paths=request.resolved.data_paths(),
                code_folder=parent.code_folder if parent else "",
            )
            return RunDir.create(runs_dir, experiment, request.resolved.dump(), start.fill, created)
        except CheckpointError as error:  # it is pruned while it is copied
            if not left or request.parent.status() != "running":
                raise InputError(f"run {request.parent.id} cannot be forked: {error}") from error
    raise AssertionError("the loop returns or raises")


class _ParentState:
    """The state of a parent that a child begins with."""

    def __init__(self, request: ChildRequest) -> None:
        self._request = request
        self._parent, self._config = request.parent, request.own.config
        self._manifest = self._parent.require_manifest()
        self._lineage = self._parent.lineage()
        self._checkpoints = run_checkpoints(self._parent)
        self._framework = plugins.adapter("framework", framework_name(self._config, request.model))
        self._rows = self._train_rows()
        self._plan: Plan = self._framework.plan(
            self._config, epoch_samples(self._config, self._rows), request.model
        )
        self._order, self._rules = self._own_order()
        self._reached = self._last_step()
        self._step = self._chosen_step()
        self._commit, self._source = self._base()
        saved = self._source.resume.state(self._commit) if self._commit else {}
        self._saved: dict[str, Any] = saved

    def _train_rows(self) -> int:
        split = self._manifest.data.splits.get("train")
        if split is None or split.rows is None:
            raise InputError(f"run {self._parent.id} does not record its data; train a new run")
        return split.rows

    def _own_order(self) -> tuple[SampleOrder, Rules]:
        """Return the order and the rules of the parent."""
        begin, past = START, NOTHING_INHERITED
        if self._lineage is not None and self._lineage.initial is not None:
            begin = self._own_begin()
            past = Inherited(begin.step, frozenset(self._lineage.irregular))
        return order_and_rules(self._config, self._plan, self._rows, begin, past)

    # -- which state

    def _last_step(self) -> int:
        """Return the last step that is known of the parent."""
        result, names = self._parent.result(), self._checkpoints.resume.names(published=True)
        return max([result.steps if result else 0, *map(step_of, names)])

    def _chosen_step(self) -> int:
        """Return the step at which the child's own config begins to hold.

        Raises:
            InputError: The parent has no such step, or cannot be continued exactly from it.
        """
        id_, boundary, step = self._parent.id, self._plan.boundary, self._request.step
        reached = self._reached
        if step is None and self._parent.status() in FINAL:
            return reached // boundary * boundary
        if step is None:
            newest = self._newest(reached)
            if newest is None:
                raise InputError(f"run {id_} is {self._parent.status()}, and has no checkpoint yet")
            return newest.step
        if not 0 <= step <= reached:
            raise InputError(f"--step: run {id_} has no step {step}; its last one is {reached}")
        if step % boundary:
            below = step // boundary * boundary
            raise InputError(
                f"--step: {step} given, but this model can go on exactly only from multiples of {boundary}; "
                f"take {below} or {below + boundary}"
            )
        return step

    def _newest(self, step: int) -> Commit | None:
        """Return the newest valid checkpoint, at or before a step, that a run can resume from exactly."""
        for name in self._checkpoints.resume.names():
            at = step_of(name)
            if at <= step and at % self._plan.boundary == 0:
                try:
                    return self._checkpoints.resume.load(name)
                except CheckpointError as error:
                    log.warning("%s", error)
        return None

    def _base(self) -> tuple[Commit | None, RunCheckpoints]:
        """Return the checkpoint that the child begins with (None: step 0), and where it is.

        Raises:
            InputError: There is none, and the parent did not begin at step 0.
        """
        origin, id_ = Origin(self._parent), self._parent.id
        first = origin.initial.step if origin.initial else 0
        if self._step < first:
            assert origin.initial is not None
            raise InputError(
                f"--step: run {id_} begins with step {first} of run {origin.initial.run_id}; fork that one"
            )
        commit = self._newest(self._step)
        if commit is not None and commit.step >= first:
            return commit, self._checkpoints
        if origin.initial is None:
            return None, self._checkpoints
        return origin.first_own(), origin.checkpoints

    @property
    def _at(self) -> int:
        return self._commit.step if self._commit else 0

    # -- whether it fits

    def check(self) -> None:
        """Refuse a config that the state does not fit.

        Raises:
            InputError: The state does not fit the config.
        """
        self._check_config()
        self._check_length()
        if self._step == 0:
            return
        for key in changed_computation(self._request.own, self._request.resolved):
            if reason := refusal(key, self._request.resolved.config, self._framework):
                raise InputError(f"{key}: {reason}; {advice(self._parent.id, self._framework)}")

    def _check_config(self) -> None:
        """Refuse a parent whose config file is not what it was trained with."""
        own, known = self._request.own, self._manifest.computation
        now = self._manifest.model_copy(update={"computation": own.computation()})
        if edited := differing(known, type(now).model_validate(now.to_json()).computation):
            raise InputError(
                f"config.yaml of run {self._parent.id} is not what the run was trained with: {edited[0]} has "
                "changed; put it back"
            )

    def _check_length(self) -> None:
        """Refuse a run that continues after another one, but would not be longer."""
        if self._request.relation == "fork":
            return
        total, reached = self._length(), self._reached
        if total <= reached:
            raise InputError(
                f"there is nothing to train: the run would have {total} steps, and run {self._parent.id} has "
                f"{reached}; {longer(total)}"
            )

    def _length(self) -> int:
        """Return the number of steps of the child, if its data are those of the parent."""
        config = self._request.resolved.config
        rows = epoch_samples(config, self._rows)
        plan: Plan = self._framework.plan(config, rows, self._request.model)
        return order_and_rules(config, plan, self._rows, self._own_begin())[1].total_steps

    # -- what the child keeps

    def fill(self, child: RunDir) -> None:
        """Copy the state into a child that does not exist yet, and write where it comes from.

        Raises:
            CheckpointError, OSError: A file of the parent is gone, or the copy cannot be written.
        """
        folder = child.path / FOLDER
        folder.mkdir()
        if self._commit is not None:
            copy_state(self._source, self._commit, folder)
        else:
            copy_passed(self._parent, child.path)
        write_config(folder / CONFIG_FILE, self._request.own.dump())
        child.write(Lineage.FILE, self._lineage_of_child())

    def _lineage_of_child(self) -> Lineage:
        changed = changed_settings(self._request.own, self._request.resolved)
        texts = {key: [redacted_value(key, value) for value in pair] for key, pair in changed.items()}
        past = self._lineage.irregular if self._lineage else []
        return Lineage(
            run_id=self._parent.id,
            relation=self._request.relation,
            step=self._step,
            changed=[f"{key}: {now} (was {before})" for key, (before, now) in texts.items()],
            initial=self._initial() if self._step else None,
            data=self._manifest.data,
            begin=self._own_begin(),
            irregular=self._irregular(),
            inherited_irregular=past,
            init_from=None if self._at else self._manifest.init_from,
        )

    def _own_begin(self) -> Cursor:
        return Cursor(*self._lineage.own_begin(self._manifest.data)) if self._lineage else START

    def _initial(self) -> InitialState:
        _, epoch, consumed = self._order.cursor(self._step)
        return InitialState(
            run_id=self._parent.id,
            relation=self._request.relation,
            step=self._step,
            epoch=epoch,
            consumed=consumed,
            checkpoint_step=self._at,
            state_digest=self._commit.state_digest if self._commit else None,
            loop_sha256=loop_sha256(self._saved) if self._commit else None,
            replays=self._manifest.computation_hash if self._at < self._step else None,
            differs=self._differs() if self._request.relation == "continue" else [],
        )

    def _irregular(self) -> list[int]:
        """Return the steps of evaluations that a run of another length would not have made."""
        steps = {step for step, _ in self._saved.get("evaluations", [])} | {self._step}
        past = self._lineage.initial.step if self._lineage and self._lineage.initial else 0
        known = set(self._lineage.irregular) if self._lineage else set()
        return sorted(
            step for step in steps if (step in known if step <= past else not self._rules.on_cadence(step))
        )

    def _lost_best(self) -> list[int]:
        """Return the steps of best models that were removed when the parent was completed, or are damaged."""
        if self._commit is None or self._plan.cumulative:
            return []
        return sorted(self._commit.best - available_best(self._source, self._commit).keys())

    def _differs(self) -> list[str]:
        """Return why going on does not lead to the bits of a run that had its length from the start."""
        config, schedule = self._request.resolved.config, self._config.training.scheduler
        rows = epoch_samples(config, self._rows)
        plan: Plan = self._framework.plan(config, rows, self._request.model)
        has_rate = self._plan.scheduled and self._plan.learning_rate is not None
        reasons = []
        if schedule.depends_on_length and has_rate:
            reasons.append(f"the learning rate of `{schedule.type}` depends on the length")
        evaluated = [step for step, _ in self._saved.get("evaluations", [])]
        evaluated += [self._step] if self._rules.evaluates(self._step) else []
        if odd := [step for step in self._irregular() if step in evaluated]:
            at = f"the evaluation after step {odd[-1]}"
            reasons.append(f"{at} is off the cadence, and may be of the best model")
        if lost := self._lost_best():
            reasons.append(f"the best model, of step {lost[0]}, is not kept any more")
        if self._plan._replace(total_steps=0) != plan._replace(total_steps=0):
            reasons.append("the length changes the plan of the model")
        if self._framework.has_smaller_end(self._config):
            reasons.append("the last step has added fewer iterations than the others")
        if (tier := self._manifest.determinism).tier != "bitwise":
            reasons.append(f"run {self._parent.id} is {tier.tier}: {tier.reason}")
        return reasons


def copy_origin(original: RunDir, repetition: RunDir) -> None:
    """Give a run that repeats another one the same initial state.

    Raises:
        CheckpointError: The initial state of the other run is damaged.
    """
    origin = Origin(original)
    if "model" in original.require_manifest().objects:
        download_all(original)
        copy_passed(original, repetition.path)
    lineage = Lineage(run_id=original.id, relation="reproduce")
    if origin.lineage is not None and origin.initial is not None:
        download_all(original)
        folder = repetition.path / FOLDER
        folder.mkdir(exist_ok=True)
        if origin.commit is not None:
            copy_state(origin.checkpoints, origin.commit, folder)
        write_config(folder / CONFIG_FILE, (original.path / FOLDER / CONFIG_FILE).read_text())
        update = {"run_id": original.id, "relation": "reproduce", "step": None}
        lineage = origin.lineage.model_copy(update=update)
    repetition.write(Lineage.FILE, lineage)
