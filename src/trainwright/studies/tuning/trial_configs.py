"""The runs of a trial: their configs and lengths, and what their processes compute with."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trainwright.config import Resolved
from trainwright.config.options import ROUNDS
from trainwright.config.schedules import PlateauSchedule
from trainwright.config.schema import RunConfig, power_of_two
from trainwright.config.tuning import HalvingPruner, NoPruner, TuningConfig
from trainwright.datasets.base import DataBundle
from trainwright.errors import ConfigError, InputError, Problem, TrainwrightError
from trainwright.process.environ import asked_threads
from trainwright.records.result import Result
from trainwright.records.run_dir import RunDir
from trainwright.records.trials import LoggedTrial
from trainwright.runs.frameworks import framework_for
from trainwright.runs.processes.threads import SMALL_STEP, available_threads
from trainwright.samplers.base import Space
from trainwright.studies.configs import StudyConfig
from trainwright.studies.tuning.goals import Goals
from trainwright.types import DataInfo

Params = Mapping[str, Any]
_ROUNDS = f"model.params.{ROUNDS}"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_GPU = re.compile(r"nvidia\d+")
Known = tuple[DataInfo, int]


@dataclass(frozen=True)
class TrialConfigs:
    """The configs of a study's runs, by the parameters of a trial."""

    base: StudyConfig
    tuning: TuningConfig
    threads: Threads

    @cached_property
    def _splits(self) -> Sequence[StudyConfig]:
        folds = self.tuning.folds
        if folds is None:
            return [self.base]
        return [self.base.with_val_fold(folds, fold) for fold in range(folds)]

    def of(self, params: Params) -> list[Resolved]:
        """Return the configs of the runs of a trial: of all folds with the first seed, and so on."""
        seed = params.get("experiment.seed", self.base.resolved.config.experiment.seed)
        return [
            self._config(split, params, {"experiment.seed": seed + repeat} if repeat else {})
            for repeat in range(self.tuning.repeats)
            for split in self._splits
        ]

    @property
    def has_final(self) -> bool:
        """True if the best configuration is trained once more."""
        return self.tuning.refit or self.tuning.folds is not None

    def final(self, best: LoggedTrial, runs: Path) -> Resolved:
        """Return the config of the run of the best configuration.

        With `refit`, it has no validation split, and the length that was best.
        """
        if not self.tuning.refit:
            return self._config(self.base, best.params, {})
        assert best.ending is not None, "the best trial has ended"
        assert best.ending.step is not None, "it has a value"
        whole = self._config(self.base, best.params, {}).config
        length = best_length(whole, RunDir(runs / best.run_id).require_result(), best.ending.step)
        changes = {"data.split.val": 0, "training.early_stopping": None, **length}
        return self._config(self.base, {**best.params, **changes}, {})

    def _config(self, split: StudyConfig, params: Params, more: Params) -> Resolved:
        resolved = split.with_overrides({**params, **more}).resolved
        return resolved.with_placement({"training.threads": self.threads.of(resolved)})


def check_trial_configs(base: StudyConfig, tuning: TuningConfig, goals: Goals) -> None:
    """Check that folds, repeats and the last training go with the rest of the config.

    Raises:
        ConfigError: One does not.
    """
    several = next((name for name in ("folds", "repeats") if getattr(tuning, name) not in (None, 1)), None)
    if several and not isinstance(tuning.pruner, NoPruner | HalvingPruner):
        message = (
            f"is {tuning.pruner.type}, which judges one run, but tuning.{several} makes several of each "
            "trial; allowed: none, halving, hyperband"
        )
        raise ConfigError([Problem(message, "tuning.pruner")])
    if several and goals.measured:
        key = "constraints" if goals.constraints else "metric"
        message = f"is of one run, but tuning.{several} makes several of each trial; leave one of them out"
        raise ConfigError([Problem(message, f"tuning.{key}")])
    config = base.resolved.config
    if not tuning.refit:
        return
    if config.data is not None and config.data.val_path is not None:
        message = (
            "also trains on the validation rows, but data.val_path has these; give all rows as data.path"
        )
        raise ConfigError([Problem(message, "tuning.refit")])
    if isinstance(config.training.scheduler, PlateauSchedule):
        message = "leaves no rows for validation, which training.scheduler: plateau needs; keep one"
        raise ConfigError([Problem(message, "tuning.refit")])


def with_length(base: StudyConfig, pruner: HalvingPruner, space: Space) -> StudyConfig:
    """Return the config of the trials of a study with rungs: of the length that the pruner gives, if any.

    Raises:
        ConfigError: The length is searched, too, or is too short for one rung before its end; or the model is
            not trained step by step.
    """
    key = length_key(base.resolved.config)
    if any(parameter.key == key for parameter in space):
        message = f"is searched, but pruner {pruner.type} decides how long a trial trains; keep one"
        raise ConfigError([Problem(message, f"tuning.space.{key}")])
    if pruner.max_resource is not None:
        base = base.with_overrides({key: pruner.max_resource})
    length, first = length_of(base.resolved.config), pruner.min_resource * pruner.reduction_factor
    if length < first:
        message = (
            f"the first of two rungs would end at {pruner.min_resource} and the second at {first}, but {key} "
            f"is {length}; train longer, or give a smaller min_resource or reduction_factor"
        )
        raise ConfigError([Problem(message, "tuning.pruner")])
    return base


def length_key(config: RunConfig) -> str:
    """Return the key that says how long a trial is.

    Raises:
        ConfigError: There is none.
    """
    if config.model.params.get(ROUNDS):
        return _ROUNDS
    for name in ("max_steps", "epochs"):
        if getattr(config.training, name) is not None:
            return f"training.{name}"
    message = f"{config.model.type} is trained in one step, which no rung divides; allowed: none"
    raise ConfigError([Problem(message, "tuning.pruner")])


def length_of(config: RunConfig) -> int:
    """Return the length of a trial, by its `length_key`.

    Raises:
        ConfigError: There is none.
    """
    section, _, name = length_key(config).rpartition(".")
    value = config.model.params[name] if section == "model.params" else getattr(config.training, name)
    return int(value)


def best_length(config: RunConfig, result: Result, step: int) -> dict[str, Any]:
    """Return the keys, with values, of a training that ends where another one was best.

    Args:
        config: The config of a whole training.
        result: The result of the other one.
        step: The step at which it was best.
    """
    try:
        key = length_key(config)
    except ConfigError:
        return {}  # one step
    epochs = result.epochs * step / max(1, result.steps)
    if key == "training.epochs":
        whole = round(epochs)
        is_end = abs(epochs - whole) < 1e-6 and whole > 0
        return {key: whole} if is_end else {key: None, "training.max_steps": step}
    return {} if step == result.steps and result.status == "completed" else {key: step}


def check_resources(tuning: TuningConfig, config: RunConfig) -> None:
    """Check that what a trial is given goes with the rest of the config.

    Raises:
        ConfigError: It does not.
    """
    given, distributed, device = tuning.resources, config.distributed, config.training.device
    if given.nproc is not None and power_of_two(given.nproc) != given.nproc:
        what = f"{given.nproc} is not a power of two: 1, 2, 4, 8 ..."
        raise ConfigError([Problem(what, "tuning.resources.nproc")])
    if given.nproc is not None and distributed.nproc not in (1, given.nproc):
        what = f"is {given.nproc}, but distributed.nproc is {distributed.nproc}; leave one of them out"
        raise ConfigError([Problem(what, "tuning.resources.nproc")])
    if (given.nproc or distributed.nproc) != 1 and not isinstance(tuning.pruner, NoPruner | HalvingPruner):
        what = (
            f"is {tuning.pruner.type}, which judges a trial within its process, but trials are of several "
            "processes; allowed: none, halving, hyperband"
        )
        raise ConfigError([Problem(what, "tuning.pruner")])
    if given.gpu and device not in ("auto", "cuda"):
        what = (
            f"is {given.gpu}, but training.device is {device}; leave the device out: a trial has its own GPU"
        )
        raise ConfigError([Problem(what, "tuning.resources.gpu")])
    if given.cpu is not None and config.training.threads not in (None, given.cpu):
        what = f"is {given.cpu}, but training.threads is {config.training.threads}; leave one of them out"
        raise ConfigError([Problem(what, "tuning.resources.cpu")])


def overrides_of(tuning: TuningConfig) -> dict[str, Any]:
    """Return what the config of each trial says of its resources, by dotted key."""
    given = tuning.resources
    nproc = {} if given.nproc is None else {"distributed.nproc": given.nproc}
    return nproc | ({"training.device": "cuda"} if given.gpu else {})


def shares_of_gpus(tuning: TuningConfig) -> list[str]:
    """Return which GPUs each worker sees, as CUDA_VISIBLE_DEVICES; empty where trials are given none.

    Raises:
        InputError: There are too few.
    """
    each = tuning.resources.gpu * (tuning.resources.nproc or 1)
    if not each:
        return []
    there, needed = _gpus(), each * tuning.parallel
    if len(there) < needed:
        trials = f"{tuning.parallel} trials at once need" if tuning.parallel > 1 else "a trial needs"
        seen = f", by {_VISIBLE}" if _VISIBLE in os.environ else ""
        raise InputError(
            f"tuning.resources.gpu: {trials} {needed} GPUs, but this machine has {len(there)}{seen}; lower "
            "tuning.parallel or tuning.resources.nproc, or leave gpu out to train on the CPU"
        )
    return [",".join(there[slot * each : (slot + 1) * each]) for slot in range(tuning.parallel)]


def _gpus() -> list[str]:
    """Return the GPUs that this process may use, by the names that CUDA gives them."""
    if (visible := os.environ.get(_VISIBLE)) is not None:
        names = [name.strip() for name in visible.split(",")]
        wrong = next((at for at, name in enumerate(names) if name in ("", "-1")), len(names))
        return names[:wrong]  # CUDA sees none from the first wrong one on
    devices = [path for path in Path("/dev").glob("nvidia*") if _GPU.fullmatch(path.name)]
    return [str(number) for number in range(len(devices))]


def visible_gpus(share: str | None) -> dict[str, str]:
    """Return the environment variable of a worker that has a share of the GPUs."""
    return {} if share is None else {_VISIBLE: share}


def most_threads(tuning: TuningConfig, config: RunConfig) -> int:
    """Return how many threads a process of a trial has, unless its steps are small."""
    has_tuner = tuning.tuner is not None  # which trains as many trials at once as there are processors
    fair = 1 if has_tuner else max(1, available_threads(config) // tuning.parallel)
    return config.training.threads or tuning.resources.cpu or asked_threads() or fair


@dataclass(frozen=True)
class Threads:
    """The threads of a trial's processes: one for small steps, where nobody has said how many.

    They are the same whenever the study is resumed or repeated: a function of the trial's config, of the
    data, and of what was fixed when the study was created.

    Args:
        most: The threads of one process.
        by_step: Whether a trial with small steps has one.
        data: What is known of the data.
        model: The model object, if one was given.
    """

    most: int
    by_step: bool
    data: TrialData
    model: Any = None

    def of(self, resolved: Resolved) -> int:
        """Return the threads of a trial.

        Raises:
            InputError: The data of all trials cannot be read, or have none of the metrics.
        """
        known = self.data.of(resolved)
        if not self.by_step or self.most == 1 or known is None:
            return self.most
        (info, rows), config = known, resolved.config
        try:
            framework, model = framework_for(config, info, self.model), self.model
            work = framework.step_work(config, info, framework.plan(config, rows, model), model)
        except TrainwrightError:
            return self.most  # the trial fails, and says why
        return 1 if work is not None and work < SMALL_STEP else self.most


class TrialData:
    """The description of the data, and the number of training rows.

    The data are read once, and checked, unless the space has keys of `data`: then those of each trial.

    Args:
        base: The config that the trials share.
        space: What is searched.
        load: Returns the data of a config.
        check: Raises an error where the study cannot be made of these data.
    """

    def __init__(
        self,
        base: Resolved,
        space: Space,
        load: Callable[[Resolved], DataBundle],
        check: Callable[[DataBundle], None],
    ) -> None:
        self._base, self._load, self._check = base, load, check
        self._is_searched = any(parameter.key.startswith("data.") for parameter in space)

    def of(self, resolved: Resolved) -> Known | None:
        """Return what is known of the data of a trial; None if they cannot be read, which fails this trial.

        Raises:
            InputError: The data of all trials cannot be read, or the study cannot be made of them.
        """
        if not self._is_searched:
            return self._of_all
        try:
            return _known(self._load(resolved))
        except TrainwrightError:
            return None

    @cached_property
    def _of_all(self) -> Known:
        bundle = self._load(self._base)
        self._check(bundle)
        return _known(bundle)


def _known(bundle: DataBundle) -> Known:
    return bundle.info, len(bundle.splits["train"])
