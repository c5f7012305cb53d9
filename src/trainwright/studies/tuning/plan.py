"""The plan of a search: what its config asks for, checked, and what is fixed when it is created."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainwright.config import Config, Overrides
from trainwright.config.tuning import HalvingPruner, TuningConfig
from trainwright.datasets.base import DataBundle
from trainwright.errors import ConfigError, InputError, Problem
from trainwright.process.environ import asked_threads
from trainwright.records.tuning_result import SETTINGS
from trainwright.samplers.base import Sampler, Space
from trainwright.studies.configs import StudyConfig, with_metric
from trainwright.studies.study import Json, Study, StudyRequest
from trainwright.studies.tuning.checks import check_tuning, located, make_sampler
from trainwright.studies.tuning.goals import MEASURES, Goals, check_task
from trainwright.studies.tuning.optuna_storage import storable
from trainwright.studies.tuning.trial_configs import most_threads, overrides_of, shares_of_gpus, with_length
from trainwright.types import Mode

log = logging.getLogger("trainwright")
FROM = "from"  # in the question of a study: the study that it started from
# In the settings of a study that repeats one in free order: for each trial, which others had not ended.
RECORDED = "recorded"
DEFAULT_TRIALS = 20
NO_VALIDATION = (
    'there are no validation rows to tune by; give data.split.val or data.val_path, or data={"train": ..., '
    '"val": ...} in Python'
)


@dataclass(frozen=True)
class SearchPlan:
    """The inputs that the trials of a study are a function of, besides the config that they share.

    `horizon` and `threads` are fixed when the study is created; with `threads_by_step`, a trial of small
    steps has one thread. In free order there is no horizon; if the study repeats another one, `recorded` says
    for each trial which others had not ended.
    """

    tuning: TuningConfig
    space: Space
    sampler: Sampler
    goals: Goals
    horizon: int | None
    threads: int
    threads_by_step: bool = False
    recorded: Sequence[Sequence[int]] | None = None

    @property
    def metric(self) -> str:
        """The first metric, which decides the model that a trial keeps."""
        return self.goals.metrics[0]

    @property
    def mode(self) -> Mode:
        """The mode of the first metric."""
        return self.goals.modes[0]

    @property
    def trials(self) -> int:
        """The number of trials, if nothing ends the study early."""
        return _length(self.tuning, self.sampler)


@dataclass(frozen=True)
class SearchConfig:
    """A config that was read for a search: as it was written, that of the trials, and what is sought."""

    given: StudyConfig
    base: StudyConfig
    tuning: TuningConfig
    goals: Goals
    space: Space
    sampler: Sampler
    trusted: bool = False  # by the user, though the study may be someone else's
    objects: Json = field(default_factory=dict)  # the part of the question that is not in the config

    @property
    def text(self) -> str:
        """The text of the config, as the folder of the study keeps it."""
        return storable(self.given)

    def check_data(self, bundle: DataBundle) -> None:
        """Check that there is a validation split, and that the metrics are those of the task of the data.

        Raises:
            InputError: There is none.
            ConfigError: A metric is not.
        """
        resolved = self.given.resolved
        if self.tuning.folds is None and not bundle.splits.get("val"):
            raise InputError(NO_VALIDATION)
        with located(resolved):
            check_task(self.goals, bundle.info.task, resolved.config)

    @property
    def trials(self) -> int:
        """The number of trials, if nothing ends the study early."""
        return _length(self.tuning, self.sampler)

    @property
    def question(self) -> Json:
        """The inputs that make two studies the same; they may differ in the number of trials."""
        return self.base.question() | self.objects | {"tuning": self.tuning.asked()}


def read_search(config: Config, overrides: Overrides, request: StudyRequest) -> SearchConfig:
    """Read the config of a search, and check it.

    Raises:
        InputError: Config, space or data are wrong.
    """
    base = StudyConfig.read(config, overrides, request.runs_dir, objects=request.data is not None)
    (goals, space), given, tuning = check_tuning(base), base, base.resolved.config.tuning
    assert tuning is not None
    sampler = make_sampler(goals, space, base, tuning)
    base = _for_trials(base, goals, tuning, request)
    if isinstance(tuning.pruner, HalvingPruner):
        base = with_length(base, tuning.pruner, space)
    _check_objects(tuning, space, request)
    if tuning.tuner is None:  # which has machines of its own
        shares_of_gpus(tuning)
    base.resolved.log_notes()
    return SearchConfig(given, base, tuning, goals, space, sampler, objects=request.question())


def _check_objects(tuning: TuningConfig, space: Space, request: StudyRequest) -> None:
    """Check that a search can be made of what was given as objects.

    Raises:
        InputError: Other processes would need them, or the space has options of the model.
    """
    given = " and ".join(request.given)
    if given and tuning.parallel > 1:
        instead = "data.path or data.type" if request.model is None else "a class, data.path or data.type"
        raise InputError(
            f"tuning.parallel: {tuning.parallel} given, but {given} given as objects stay in this process; "
            f"give {instead}, or leave parallel at 1"
        )
    if request.model is None:
        return
    if tuning.tuner is not None:
        raise InputError(
            "tuning.tuner: its workers are other processes, which a model given as an object cannot reach; "
            "give its class"
        )
    for parameter in space:
        if parameter.key.startswith("model."):
            raise InputError(
                f"tuning.space: {parameter.key} has no effect on a model that is given as an object; give "
                "its class, or a function that makes it, or search other keys"
            )


def _length(tuning: TuningConfig, sampler: Sampler) -> int:
    """Return how many trials a config asks for; a grid has no more than its points."""
    wanted, size = tuning.trials, sampler.size
    return min(wanted or size or DEFAULT_TRIALS, size or wanted or DEFAULT_TRIALS)


def _for_trials(base: StudyConfig, goals: Goals, tuning: TuningConfig, request: StudyRequest) -> StudyConfig:
    """Return the config that the trials share: it keeps the models that are best by the first metric."""
    if tuning.folds is None and base.excludes("val"):
        raise InputError(NO_VALIDATION)
    for metric in goals.measured:
        base = base if metric in MEASURES else with_metric(base, metric, request)
    return base.with_overrides(
        {"tuning": None, "checkpoint.metric": goals.metrics[0], "checkpoint.mode": goals.modes[0]}
        | overrides_of(tuning)
    )


def plan_of(study: Study, asked: SearchConfig) -> SearchPlan:
    """Return the plan of a study, and write what it fixes into the study's folder when that is created.

    Raises:
        ConfigError: More trials are to be trained at once than the horizon of the study permits.
    """
    tuning, config = asked.tuning, asked.base.resolved.config
    settings = study.settings(SETTINGS) or {
        "working_directory": str(Path.cwd()),
        "horizon": None if tuning.order == "free" else tuning.horizon or 2 * tuning.parallel,
        "threads": most_threads(tuning, config),
        "threads_by_step": (config.training.threads or tuning.resources.cpu or asked_threads()) is None,
        "metrics": dict(zip(asked.goals.metrics, asked.goals.modes, strict=True)),
    }
    if tuning.order == "free":
        log.warning(
            "tuning.order: free: the trials depend on which end first, so another study of this config makes "
            "others; each is reproducible by itself, and `trainwright reproduce STUDY` keeps "
            "the recorded order"
        )
    elif tuning.parallel > settings["horizon"]:
        raise ConfigError(
            [
                Problem(
                    f"{tuning.parallel} is more than the horizon of {settings['horizon']}, which is "
                    "how many trials may run at once; lower tuning.parallel, or raise tuning.horizon",
                    "tuning.parallel",
                )
            ]
        )
    study.write(SETTINGS, settings)
    return SearchPlan(
        tuning,
        asked.space,
        asked.sampler,
        asked.goals,
        settings["horizon"],
        settings["threads"],
        settings["threads_by_step"],
        settings.get(RECORDED),
    )
