"""Studies of a Python function: `objective(trial)`, as Optuna's users write it.

The function gets Optuna's own trial, of a study in memory that holds what the log knows. Its `suggest_*`
define the space as the function runs. Trials are made one after the other, each from all before it, so a
study that is killed goes on with the same trials if the function gives the same values.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from trainwright import plugins
from trainwright.config import Overrides
from trainwright.config import load as load_config
from trainwright.config.overrides import keys_of
from trainwright.config.schema import RunConfig
from trainwright.config.tuning import HalvingPruner, NoPruner, Pruner, TuningConfig
from trainwright.engine.signals import Signals, Stopped
from trainwright.errors import (
    ConfigError,
    InputError,
    Interrupted,
    Problem,
    TrainwrightError,
    is_from_outside,
)
from trainwright.records.trials import Ending, LoggedTrial
from trainwright.records.tuning_result import SETTINGS
from trainwright.redact import redacted
from trainwright.require import require
from trainwright.runs.catalog import Catalog
from trainwright.studies.driver import drive
from trainwright.studies.study import Json, Study, StudyRequest, open_study
from trainwright.studies.tuning.checks import limit
from trainwright.studies.tuning.goals import Goals
from trainwright.studies.tuning.optuna_storage import check_storage
from trainwright.studies.tuning.pruning import pruning_rule
from trainwright.studies.tuning.results import LoggedPlan
from trainwright.studies.tuning.tuning_view import KIND, Tuning, going_on
from trainwright.types import Mode

Objective = Callable[[Any], Any]  # from Optuna's trial to a number, or one for each metric
_TRIALS = 100  # if nothing says how many, as nothing is known of their cost
_VALUE = "value"  # the name of the metric
_PRUNERS = "none, median, percentile, asha, patient"
# Keys of `tuning` that a function cannot have, and what to do instead.
_INSTEAD = {
    "space": "a function defines its space itself, by trial.suggest_float and others",
    "constraints": "return a worse value where the function breaks one",
    "folds": "cross-validate within the function",
    "repeats": "average within the function",
    "refit": "train again with best_params",
    "resources": "a function computes in this process",
    "tuner": "leave it out",
}
_ATTRIBUTES = "user_attributes"  # the kind of the log's notes that hold them


def tune_function(objective: Objective, overrides: Overrides, request: StudyRequest) -> Tuning:
    """Search for the parameters with which a function has the best value; see `trainwright.tune`."""
    name = getattr(objective, "__name__", type(objective).__name__).strip("<>_") or "objective"
    config, unset = _config(name, overrides), _config(name, ()).tuning
    tuning = config.tuning
    assert tuning is not None
    assert unset is not None
    _check_keys(tuning, unset)
    check_storage(tuning)
    if request.data is not None or request.callbacks:
        raise InputError("a function has its own data: leave data and callbacks out")
    goals = _goals(tuning)
    sampler = _sampler(tuning, goals, config.experiment.seed)
    options = {key: value for key, value in tuning.asked().items() if key != "space"}
    question = {"function": name, "source": _source(objective), "seed": config.experiment.seed}
    question |= {"tuning": options}
    study = open_study(request, config.experiment.name, KIND, question, completed=True)
    study.write(SETTINGS, {"metrics": dict(zip(goals.metrics, goals.modes, strict=True))})
    with going_on(
        study, tuning.trials or _TRIALS, "for more trials: trainwright.tune(..., trials=..., resume=True)"
    ):
        drive(_FunctionPlan(study, objective, tuning, goals, sampler, request))
    return Tuning(study.path)


def _config(name: str, overrides: Overrides) -> RunConfig:
    """Return the config of a study of a function, of which only `experiment` and `tuning` are used."""
    for key in keys_of(overrides):
        if key.partition(".")[0] not in ("tuning", "experiment"):
            raise InputError(f"{key}: a function has keys of tuning and experiment alone; leave it out")
    plain = {
        "experiment": {"name": name},
        "model": {"type": "mlp"},
        "tuning": {"metric": _VALUE, "space": {}},
    }
    return load_config(plain, overrides, Catalog(), objects=True).config


def _goals(tuning: TuningConfig) -> Goals:
    """Return the goals: as in Optuna, what nothing is said of is minimized."""
    modes: list[Mode] = [
        "max" if mode == "max" else "min"
        for mode in (tuning.mode if isinstance(tuning.mode, list) else [tuning.mode])
    ]
    names = [tuning.metric] if isinstance(tuning.metric, str) else list(tuning.metric)
    if names == [_VALUE] and len(modes) > 1:
        names = [f"{_VALUE}_{i}" for i in range(len(modes))]
    if len(names) != len(modes):
        raise ConfigError([Problem(f"{len(modes)} modes for {len(names)} metrics", "tuning.mode")])
    if isinstance(tuning.pruner, HalvingPruner):
        what = f"{tuning.pruner.type} pauses runs, which a function has not; of a function: {_PRUNERS}"
        raise ConfigError([Problem(what, "tuning.pruner")])
    if not isinstance(tuning.pruner, NoPruner) and len(modes) > 1:
        raise ConfigError([Problem("a pruner judges by one metric; give none with several", "tuning.pruner")])
    if tuning.parallel > 1 or tuning.horizon not in (None, 1) or tuning.order != "horizon":
        what = "the trials of a function are made one after the other, in this process"
        raise ConfigError([Problem(what, "tuning.parallel")])
    return Goals(names, modes)


def _check_keys(tuning: TuningConfig, unset: TuningConfig) -> None:
    """Refuse keys that have a meaning for configs alone.

    Raises:
        ConfigError: Some are set; all are listed.
    """
    given = [key for key in _INSTEAD if getattr(tuning, key) != getattr(unset, key)]
    if given:
        raise ConfigError([Problem(f"is of a config; {_INSTEAD[key]}", f"tuning.{key}") for key in given])


def _sampler(tuning: TuningConfig, goals: Goals, seed: int) -> Any:
    kind, params = tuning.sampler.type, dict(tuning.sampler.params)
    if kind == "random":  # as Optuna's: parameters are drawn as they are asked for
        kind, params = "tpe", {"n_startup_trials": 10**9}
    cls = plugins.adapter("sampler", kind)
    if not hasattr(cls, "ask"):
        what = f"{kind} needs a space that is known before; of a function: tpe, gp, cmaes, nsga2, random"
        raise ConfigError([Problem(what, "tuning.sampler")])
    modes = goals.modes if len(goals.modes) > 1 else goals.modes[0]
    if (problem := limit(kind, cls.limits, goals)) is not None:
        raise ConfigError([Problem(problem, "tuning.sampler")])
    return cls(cls.Params(**params), [], modes, seed)


def _source(objective: Objective) -> str | None:
    """Return the hash of a function's source, where Python knows it."""
    try:
        return hashlib.sha256(inspect.getsource(objective).encode()).hexdigest()
    except (OSError, TypeError):
        return None


class _FunctionPlan(LoggedPlan[int, int]):
    """The trials of a function, and how they end."""

    def __init__(
        self,
        study: Study,
        objective: Objective,
        tuning: TuningConfig,
        goals: Goals,
        sampler: Any,
        request: StudyRequest,
    ) -> None:
        super().__init__(study, tuning, goals, tuning.trials or _TRIALS, request)
        self._optuna: Any = require("optuna", "tuning")
        self._objective, self._sampler = objective, sampler
        self._frozen: list[Any] = []  # the trials as Optuna's, with what its sampler wrote into them
        self._began = time.monotonic()

    def begin(self, signals: Signals, stack: ExitStack) -> None:
        """Read the trials that have ended; see `StudyPlan.begin`."""
        super().begin(signals, stack)
        self._began = time.monotonic()
        self._progress.resumed(self._log.trials)
        for trial in self._log.trials:
            if trial.ending is not None:  # else a kill came between the two lines of the last one
                self._frozen.append(self._restored(trial))

    def ask(self) -> int | None:
        """Return the number of the next trial; see `StudyPlan.ask`."""
        if len(self._frozen) >= self._count or self._reached_target():
            return None
        limit = self._tuning.max_minutes
        if limit is not None and time.monotonic() - self._began >= 60 * limit:
            return None
        return len(self._frozen)

    def _restored(self, trial: LoggedTrial) -> Any:
        """Return a trial of the log as Optuna's; a sampler that keeps a state in trials makes it again."""
        load = self._optuna.distributions.json_to_distribution
        distributions = {name: load(text) for name, text in (trial.distributions or {}).items()}
        state: Mapping[str, Any] = {}
        if self._sampler.keeps_state:
            again = self._sampler.ask(trial.number, self._frozen, distributions=distributions)
            state = again.study.get_trials(deepcopy=False)[-1].system_attrs
        return self._freeze(trial, distributions, state)

    def _freeze(self, trial: LoggedTrial, distributions: Mapping[str, Any], state: Mapping[str, Any]) -> Any:
        end, states = trial.ending, self._optuna.trial.TrialState
        assert end is not None
        named = {"completed": states.COMPLETE, "pruned": states.PRUNED, "failed": states.FAIL}
        return self._optuna.trial.create_trial(
            state=named[end.status],
            values=list(self._goals.values(end)) if end.status == "completed" else None,
            params=dict(trial.params),
            distributions=dict(distributions),
            intermediate_values=dict(end.curve),
            system_attrs=dict(state),
            user_attrs=self._attributes(trial.number),
        )

    def _attributes(self, number: int) -> dict[str, Any]:
        """Return what the function set by `trial.set_user_attr`."""
        notes = [note for note in self._log.notes if note["kind"] == _ATTRIBUTES and note["trial"] == number]
        return dict(notes[-1]["values"]) if notes else {}

    def run(self, number: int) -> int:
        """Call the function with a new trial, and record how it ended; see `StudyPlan.run`."""
        trial = self._sampler.ask(number, self._frozen, pruner=self._pruner())
        began = time.perf_counter()
        try:
            ending = self._completed(self._objective(trial))
        except self._optuna.TrialPruned:
            ending = Ending("pruned")
        except Interrupted as error:  # of a training in it; the trial is made again
            raise Stopped("interrupted") from error
        except Exception as error:
            if isinstance(error, TrainwrightError) and is_from_outside(error):
                raise  # as of a training in it whose file is gone: no result of the parameters
            ending = Ending("failed", error=redacted(f"{type(error).__name__}: {error}"))
        seen = trial.study.get_trials(deepcopy=False)[-1]
        if seen.constraints:
            raise InputError(
                "set_constraint: a study of a Python function takes no constraints; return a worse value"
            )
        curve = tuple((int(step), float(value)) for step, value in seen.intermediate_values.items())
        ending = ending._replace(curve=curve, seconds=time.perf_counter() - began)
        self._record(number, seen, ending)
        return number

    def _record(self, number: int, seen: Any, ending: Ending) -> None:
        """Log a trial, whose parameters are known when the function has returned."""
        dump = self._optuna.distributions.distribution_to_json
        distributions = {name: dump(one) for name, one in seen.distributions.items()}
        params = json.loads(json.dumps(seen.params))
        if seen.user_attrs:
            self._log.note(kind=_ATTRIBUTES, trial=number, values=seen.user_attrs)
        if number == len(self._log.trials):
            self._log.begin(LoggedTrial(number, params, "", distributions=distributions))
        self._log.end(number, ending)
        self._frozen.append(self._freeze(self._log.trials[-1], seen.distributions, seen.system_attrs))

    def _completed(self, returned: Any) -> Ending:
        """Return the ending of a trial whose function returned."""
        values = list(returned) if isinstance(returned, Sequence) else [returned]
        if len(values) != len(self._goals.metrics):
            raise ValueError(f"{len(values)} values returned for {len(self._goals.metrics)} metrics")
        numbers = [float(value) for value in values]
        if any(map(math.isnan, numbers)):
            raise ValueError("the function returned NaN")
        if len(numbers) == 1:
            return Ending("completed", numbers[0])
        return Ending("completed", numbers[0], values=dict(zip(self._goals.metrics, numbers, strict=True)))

    def _pruner(self) -> Any:
        """Return a pruner for Optuna's `should_prune` that judges as ours does."""
        curves = {
            status: [
                one.ending.curve for one in self._log.trials if one.ending and one.ending.status == status
            ]
            for status in ("completed", "pruned")
        }
        return _optuna_pruner(self._optuna, self._tuning.pruner, curves, self._goals.modes[0])

    def _reached_target(self) -> bool:
        best = self._best()
        value = best.ending.value if best is not None and best.ending is not None else None
        return self._goals.is_reached(self._tuning.target, value)

    def tell(self, number: int) -> None:
        """Tell the user of a trial that has ended; see `StudyPlan.tell`."""
        self._ended(number)

    def _frozen_trials(self) -> Sequence[Any]:
        return self._frozen

    def conclude(self) -> Json:
        """Return the result; see `StudyPlan.conclude`."""
        return self._result() | {"horizon": 1, "importance": {}}


def _optuna_pruner(optuna: Any, pruner: Pruner, curves: Mapping[str, Any], mode: Mode) -> Any:
    """Return a pruner of Optuna's that decides as `pruning_rule` does."""

    class Ours(optuna.pruners.BasePruner):  # type: ignore[misc]
        def prune(self, study: Any, trial: Any) -> bool:  # noqa: ARG002 - the curves are those of the study
            should_prune = pruning_rule(pruner, curves, mode)
            answers = [should_prune(step, value) for step, value in sorted(trial.intermediate_values.items())]
            return bool(answers) and answers[-1]

    return Ours()
