"""Train the config of a run again on other data, and compare both models."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trainwright.api.forking import attempted
from trainwright.api.progress import interruptible, shown, unless_interrupted
from trainwright.api.results import warn_of_files
from trainwright.config import Overrides, Resolved
from trainwright.config.file_types import FILE_TYPES, ending_of, file_type
from trainwright.config.overrides import keys_of, with_settings
from trainwright.errors import GateError, InputError, TrainwrightError
from trainwright.integrations.foreign import refuse_foreign_run
from trainwright.records.creation import Creation
from trainwright.records.lineage import RETRAINING, Lineage
from trainwright.records.listing import has_model
from trainwright.records.run_dir import RunDir
from trainwright.records.status import FINAL
from trainwright.redact import redacted_value
from trainwright.runs.data.bundles import make_objects
from trainwright.runs.lookup import RunName, find, refuse_compressed
from trainwright.runs.objects import passed_objects
from trainwright.runs.run import Run
from trainwright.runs.run_config import check_usable, read_config
from trainwright.runs.workdir import working_directory, working_for
from trainwright.world import is_follower

if TYPE_CHECKING:
    from trainwright.callbacks.base import Callback
    from trainwright.evaluation.gates import Gate
    from trainwright.inference.predictor import Predictor
    from trainwright.runs.retraining import Seen

log = logging.getLogger("trainwright")


@interruptible
def retrain(
    run: RunName,
    overrides: Overrides = (),
    *,
    data: Path | str,
    warm_start: bool = False,
    gate: str | None = None,
    runs_dir: Path | str | None = None,
    callbacks: Sequence[Callback] = (),
    trust: bool = False,
    quiet: bool = False,
) -> Run:
    """Train the config of a run on other data, as a child run of it, and compare both models.

    They are compared on test and validation rows of the new data that the first model has not learned from:
    with `data.split: {by: hash}` these are all of them; otherwise rows are recognised by their content, and a
    warning says how many are left out. The attribute `retraining` of the child has both side by side.

    Args:
        run: The run whose config is trained: a run, a path, an id, a unique prefix, or `last`.
        overrides: Other settings that differ from those of the run.
        data: The file, folder or version to train on; it takes the place of `data.path`, or of
            `data.train_path`.
        warm_start: Begin with the weights of the run (`model.init_from`).
        gate: What the child has to pass, such as `test_f1 >= parent - 0.01`.
        runs_dir: The folder of the runs.
        callbacks: Observers of the child.
        trust: Import all that the run's config names; each import is announced in the log.
        quiet: Show no progress.

    Raises:
        RunNotFoundError: There is no such run.
        InputError: The run was given objects, the model cannot begin with other weights, or there is a gate,
            and the models cannot be compared.
        GateError: The child does not pass the gate; it is kept.
        TrainingError: The training failed; `resume` continues from the last commit.
        Interrupted: Ctrl-C has ended the run, as in `fork`.
    """
    from trainwright.evaluation.gates import Gate

    asked = None if gate is None else Gate.parse(gate)
    parent = find(run, runs_dir, has_model)
    _refuse(parent)
    settings = _settings(parent, data, warm_start=warm_start)
    settings |= _positive(parent) if "evaluation.positive" not in keys_of(overrides) else {}
    with (
        shown(callbacks, quiet=quiet) as observers,
        working_for(parent, working_directory(parent), resume=True, trust=trust),
    ):
        work = _Work.of(parent, with_settings(overrides, settings), asked)
        return unless_interrupted(work.run(observers))


def _refuse(parent: RunDir) -> None:
    """Refuse runs that have no config that could be trained on files.

    Raises:
        InputError: The run has none.
    """
    refuse_foreign_run(parent, "retrain")
    refuse_compressed(parent, "retrain")
    if objects := passed_objects(parent):
        raise InputError(
            f"run {parent.id} was given {' and '.join(sorted(objects))} as objects, which its config does "
            "not name: train a new run, with model.init_from if it is to begin with its weights"
        )


def _settings(parent: RunDir, data: Path | str, *, warm_start: bool) -> dict[str, Any]:
    """Return the settings of the child that differ from those of its parent.

    A path is that from here, while others in the config are those from the folder of the parent.

    Raises:
        InputError: The parent was not trained on files.
    """
    own = read_config(parent).config.data
    if own is None or not (own.path or own.train_path):
        raise InputError(
            f"run {parent.id} was not trained on files: its data are {own.type if own else 'none'}"
        )
    text = str(data)
    here = Path(text).expanduser()
    is_local = "://" not in text and (here.exists() or len(here.parts) > 1 or ending_of(text) in FILE_TYPES)
    settings: dict[str, Any] = {
        "data.path" if own.path else "data.train_path": str(here.absolute()) if is_local else text
    }
    kind = file_type(text)
    if kind is not None and kind != own.type and own.type in {*FILE_TYPES.values(), "requests"}:
        settings["data.type"] = kind
    start: dict[str, Any] = {"source": str(parent.path), "skip": [], "rename": None, "strict": True}
    return settings | ({"model.init_from": start} if warm_start else {})


def _positive(parent: RunDir) -> dict[str, Any]:
    """Return the class that was positive for the parent as the rarer one: of other rows, it may not be."""
    from trainwright.tasks.support.positive import by_label

    data = parent.require_manifest().data
    labels = data.classes or []
    if data.positive is None or len(labels) != 2 or by_label(labels) is not None:
        return {}
    return {"evaluation.positive": data.positive}


class _Work(NamedTuple):
    """A retraining: `seen` are the rows that the parent learned from; None if the two are not compared."""

    parent: RunDir
    own: Resolved
    resolved: Resolved
    gate: Gate | None
    seen: Seen | None

    @classmethod
    def of(cls, parent: RunDir, overrides: Overrides, gate: Gate | None) -> _Work:
        """Return what is to be done, before anything is trained.

        Raises:
            InputError: There is a gate, and the models cannot be compared, or lack its metrics.
        """
        from trainwright.evaluation.gates import PARENT
        from trainwright.runs.children.config import child_config

        own, resolved = read_config(parent), child_config(parent, overrides)
        check_usable(parent, resolved)
        for note in resolved.notes:
            log.warning("config: %s", note)
        if gate is not None:
            known = parent.require_result().metrics
            bare = {name.partition("_")[2] for name in known}
            gate.check_names({f"{split}_{name}" for split in ("val", "test") for name in bare}, [PARENT])
        seen, reason = _seen(parent, resolved)
        if reason and gate is not None:
            raise InputError(f"the gate cannot be judged: {reason}")
        if reason:
            log.warning("the models will not be compared: %s", reason)
        return cls(parent, own, resolved, gate, seen)

    def run(self, callbacks: Sequence[Callback]) -> Run:
        """Train the child, and compare it with its parent.

        Raises:
            GateError: It does not pass the gate.
        """
        from trainwright.runs.children.config import child_placement
        from trainwright.runs.request import Request

        objects = make_objects(self.resolved, None, None, callbacks)
        placement = child_placement(self.own, self.resolved, self.parent)
        made = attempted(Request(self.resolved, self._child(), objects, placement=placement))
        if made.status in FINAL and self.seen is not None and not is_follower():
            self._compare(RunDir(made.path), self.seen)
        return made

    def _child(self) -> RunDir:
        """Make the run, before its first attempt."""
        from trainwright.runs.children.config import changed_settings, child_settings

        changed = changed_settings(self.own, self.resolved)
        texts = {key: [redacted_value(key, value) for value in pair] for key, pair in changed.items()}
        lineage = Lineage(
            run_id=self.parent.id,
            relation="retrain",
            changed=[f"{key}: {now} (was {before})" for key, (before, now) in texts.items()],
            data=self.parent.require_manifest().data,
        )
        parent = self.parent.creation()
        created = Creation(
            settings=child_settings(self.parent, self.resolved),
            data_paths=self.resolved.data_paths(),
            code_folder=parent.code_folder if parent else "",
        )
        return RunDir.create(
            self.parent.path.parent.parent,
            self.resolved.config.experiment.name,
            self.resolved.dump(),
            lambda run: run.write(Lineage.FILE, lineage),
            created,
        )

    def _compare(self, child: RunDir, seen: Seen) -> None:
        from trainwright.evaluation.gates import judged
        from trainwright.reports.html import write_report
        from trainwright.runs.retraining import compare

        try:
            warn_of_files(self.parent)
            table = compare(_opened(self.parent), _opened(child), seen)
        except TrainwrightError as error:
            if self.gate is None:
                log.warning("run %s and run %s are not compared: %s", self.parent.id, child.id, error)
                return
            raise GateError(f"the gate cannot be judged: {error}; run {child.id} is kept") from error
        missed = judged(self.gate, table, f"the gate is not passed by run {child.id}")
        child.write_json(RETRAINING, table)
        write_report(child.path)
        if missed is not None:
            raise missed


def _opened(run: RunDir) -> Predictor:
    from trainwright.runs.predictor import open_predictor

    return open_predictor(run, pinned=True)


def _seen(parent: RunDir, resolved: Resolved) -> tuple[Seen | None, str]:
    """Return the rows that a parent learned from; or None, and why they are not known."""
    from trainwright.runs.predictor import open_predictor
    from trainwright.runs.retraining import seen_by

    data = resolved.config.data
    assert data is not None, "`_settings` has set its path"
    try:
        return seen_by(open_predictor(parent, pinned=False), data.split), ""
    except TrainwrightError as error:
        return None, str(error)
