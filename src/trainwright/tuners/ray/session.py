"""The Ray cluster of a study: start or join it, search on it, and shut it down."""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.search import Searcher
from ray.tune.search.optuna import OptunaSearch

from trainwright.errors import OF_DISKS, CheckpointError, InputError, TrainingError
from trainwright.process.environ import temporary_environment
from trainwright.tuners.base import StartedTrial, Trials
from trainwright.tuners.ray import schedulers
from trainwright.tuners.ray.actor import ERROR, EVALUATION, OBJECTIVE, TrialActor, config_of, trial_of
from trainwright.tuners.ray.folders import own_folder
from trainwright.tuners.ray.params import HyperbandScheduler, PbtScheduler, RayParams
from trainwright.tuners.ray.space import decoded, domains, encoded

log = logging.getLogger("trainwright")
_OBJECT_STORE = 80 * 2**20  # bytes; what Ray passes on are paths and numbers
_STARTS = 3
_DISK_ERROR = re.compile(rf"\[Errno ({'|'.join(map(str, OF_DISKS))})\]")
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AIR_NEW_OUTPUT": "0",  # the new one prints a table even where it should be quiet
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # the study has its own
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_WARN_THRESHOLD_S": "600",
}


def run(params: RayParams, trials: Trials) -> None:
    """Make the trials of a study with Ray; see `Tuner.run`."""
    waiting = trials.begun()
    if not waiting and not trials.wanted:
        return
    storage = (trials.folder / "ray").absolute()
    settings = dict(_QUIET)
    if isinstance(params.scheduler, HyperbandScheduler):  # its rungs compare the trials that have begun
        settings["TUNE_MAX_PENDING_TRIALS_PG"] = str(len(waiting) + trials.wanted)
    with temporary_environment(settings), _joined(params), _removed(storage):
        hooks = _Hooks(trials)
        if isinstance(params.scheduler, PbtScheduler):  # its population is all there from the start
            while (started := trials.begin()) is not None:
                waiting.append(started)
        _search(params, trials, waiting, hooks, storage)
        hooks.finish()


def _search(
    params: RayParams, trials: Trials, waiting: list[StartedTrial], hooks: _Hooks, storage: Path
) -> None:
    count, evolves = len(waiting) + trials.wanted, isinstance(params.scheduler, PbtScheduler)
    scheduler = schedulers.made(params.scheduler, trials, waiting)
    actor = tune.with_parameters(TrialActor, trainer=trials.trainer)
    actor = tune.with_resources(actor, dict(trials.resources))
    tuner = tune.Tuner(
        actor,
        tune_config=tune.TuneConfig(
            num_samples=count,
            scheduler=scheduler,
            search_alg=None if evolves else _Proposals(params.search, trials, waiting, hooks),
            reuse_actors=True,
            **({"metric": OBJECTIVE, "mode": trials.mode} if params.scheduler.type == "fifo" else {}),
        ),
        run_config=tune.RunConfig(
            name="study",
            storage_path=str(storage),
            failure_config=tune.FailureConfig(max_failures=params.max_failures),
            callbacks=[hooks],
            stop=_Stop(hooks),
            verbose=0,
        ),
    )
    try:
        tuner.fit()
    except Exception as error:
        if hooks.error is None:
            raise TrainingError(f"Ray has failed: {type(error).__name__}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason given")


class _Unsaved:
    """Something that Ray may pickle for a restore, which is never done: the log of the study has it all."""

    def __reduce__(self) -> Any:
        return (object, ())


class _Hooks(_Unsaved, tune.Callback):  # type: ignore[misc]
    """Tell the study what Ray decides about its trials. An error of the study ends the search."""

    def __init__(self, trials: Trials) -> None:
        self.trials, self.is_over = trials, False
        self.error: BaseException | None = None

    def on_step_end(self, **info: Any) -> None:  # noqa: ARG002 - what Ray passes by name
        """Write down what has ended."""
        with self.caught():
            self.is_over = self.is_over or self.trials.tend()

    def on_trial_recover(self, *, trial: Any, **info: Any) -> None:  # noqa: ARG002
        """Say that Ray begins a trial again."""
        log.warning("trial %d begins again: %s", trial_of(trial.config).number, _reason(trial))

    def on_trial_complete(self, *, trial: Any, **info: Any) -> None:  # noqa: ARG002
        """Say that a trial has ended, unless all trials are being stopped."""
        if not self.is_over:
            with self.caught():
                self.trials.end(trial_of(trial.config).number)

    def on_trial_error(self, *, trial: Any, **info: Any) -> None:  # noqa: ARG002
        """Say that a trial has failed for good, or that the study cannot go on, as a disk is full."""
        if self.is_over:
            return
        number, reason = trial_of(trial.config).number, _reason(trial)
        with self.caught():
            if _is_of_inputs(trial):
                self.trials.cannot_go_on(number, reason, is_input=True)
            if _is_of_files(trial):
                self.trials.cannot_go_on(number, reason)
            self.trials.end(number, f"Ray has begun it {trial.num_failures} times, the last time {reason}")

    @contextlib.contextmanager
    def caught(self) -> Iterator[None]:
        """Keep an error of the study, which Ray must not swallow, and stop."""
        try:
            yield
        except BaseException as error:
            self.error, self.is_over = self.error or error, True

    def finish(self) -> None:
        """Raise the error that ended the search, if one did.

        Raises:
            BaseException: What the study has raised.
        """
        if self.error is not None:
            raise self.error


def _reason(trial: Any) -> str:
    """Return in one line why the process of a trial has ended."""
    name, message = _error(trial)
    told = name.startswith(TrainingError.__module__) or _DISK_ERROR.match(message)
    return message if told else "its process died"


def _is_of_files(trial: Any) -> bool:
    """Return whether a trial ended by something outside of it: its `CheckpointError`, or a disk of Ray's."""
    name, message = _error(trial)
    return name.endswith(f".{CheckpointError.__name__}") or _DISK_ERROR.match(message) is not None


def _is_of_inputs(trial: Any) -> bool:
    """Return whether a trial ended since its data or code are missing, or have changed."""
    return _error(trial)[0].endswith(f".{InputError.__name__}")


def _error(trial: Any) -> tuple[str, str]:
    """Return the class and the message of the error that ended the process of a trial.

    Ray keeps its traceback alone: in a file of this process, and in a copy in the folder of the study, which
    is late, and empty where the disk is full.
    """
    text = Path(trial.error_file).read_text(errors="replace") if trial.error_file else ""
    name, _, message = text.strip().rpartition("\n")[2].partition(": ")
    return name, message


class _Stop(_Unsaved, tune.Stopper):  # type: ignore[misc]
    """Stop all trials when the study is to stop."""

    def __init__(self, hooks: _Hooks) -> None:
        self._hooks = hooks

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:  # noqa: ARG002
        """Return False: no trial is stopped by itself."""
        return False

    def stop_all(self) -> bool:
        """Return whether the search is over."""
        return self._hooks.is_over


class _Proposals(Searcher):  # type: ignore[misc]
    """Propose trials to Ray: first those of an earlier process, then new ones."""

    def __init__(self, kind: str, trials: Trials, waiting: list[StartedTrial], hooks: _Hooks) -> None:
        super().__init__(metric=OBJECTIVE, mode=trials.mode)
        self._trials, self._waiting, self._hooks = trials, waiting, hooks
        self._optuna = _optuna(trials) if kind == "optuna" else None
        self._asked: set[str] = set()  # of Optuna, which does not know the trials of an earlier process

    def suggest(self, trial_id: str) -> Any:
        """Return the config of a trial; None: no trial begins any more."""
        started: StartedTrial | None = None
        with self._hooks.caught():
            if self._waiting:
                started = self._waiting.pop(0)
            elif self._optuna is None:
                started = self._trials.begin()
            elif self._trials.wanted:
                space = self._trials.space
                self._asked.add(trial_id)
                started = self._trials.begin(decoded(space, self._optuna.suggest(trial_id)))
        return config_of(started) if started is not None else Searcher.FINISHED

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Tell Optuna of an evaluation."""
        if self._optuna is not None and trial_id in self._asked:
            self._optuna.on_trial_result(trial_id, {**result, "training_iteration": result[EVALUATION]})

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        """Tell Optuna of the result of a trial."""
        if self._optuna is not None and trial_id in self._asked:
            failed = error or not result or ERROR in result
            self._optuna.on_trial_complete(trial_id, None if failed else result, error=failed)

    def save(self, checkpoint_path: str) -> None:
        """Save nothing; the log of the study is what is read again."""

    def restore(self, checkpoint_path: str) -> None:
        """Do nothing; see `save`."""

    def save_to_dir(self, checkpoint_dir: str, session_str: str = "default") -> None:
        """Save nothing; see `save`."""

    def __reduce__(self) -> Any:
        return (object, ())


def _optuna(trials: Trials) -> Any:
    """Return Ray's search of Optuna, which knows the trials that have ended.

    In a study that goes on, it does not draw once more what it drew at first.
    """
    ended = trials.ended()
    seed = trials.seed + len(ended) + len(trials.begun())
    search = OptunaSearch(space=domains(trials.space), metric=OBJECTIVE, mode=trials.mode, seed=seed)
    for one in ended:
        failed = one.status == "failed" or one.value is None
        search.add_evaluated_point(
            encoded(trials.space, one.params),
            one.value,
            error=failed,
            pruned=one.status == "pruned",
            intermediate_values=[value for _, value in one.curve],
        )
    return search


# --- Ray itself


@contextlib.contextmanager
def _joined(params: RayParams) -> Iterator[None]:
    """Start a Ray on this machine, or join the cluster of the address, and leave it.

    Raises:
        TrainingError: It cannot be started or reached.
    """
    for name in ("ray", "ray.tune", "ray.data", "ray.train"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # the study says what becomes of its trials
    quiet: dict[str, Any] = {
        "log_to_driver": False,
        "configure_logging": False,
        "logging_level": logging.CRITICAL,
    }
    if ray.is_initialized():  # by the program that calls us, which ends it
        yield
        return
    with contextlib.ExitStack() as stack:
        if params.address:
            options: dict[str, Any] = {"address": params.address}
        else:
            options = _alone(params, stack.enter_context(own_folder()))
        stack.callback(ray.shutdown)
        _start(lambda: ray.init(**quiet, **options), params)
        yield


def _alone(params: RayParams, folder: str) -> dict[str, Any]:
    """Return the options of a Ray of this machine alone."""
    return {
        "address": "local",
        "num_cpus": params.num_cpus,
        "include_dashboard": False,
        "object_store_memory": _OBJECT_STORE,
        "_node_ip_address": "127.0.0.1",
        "_temp_dir": folder,
    }


def _start(init: Callable[[], object], params: RayParams) -> None:
    """Start or join a Ray; one of this machine gives up after half a minute, and a busy machine takes longer.

    Raises:
        TrainingError: It cannot be started or reached.
    """
    for left in reversed(range(1 if params.address else _STARTS)):
        try:
            init()
            return
        except Exception as error:
            if not left:
                where = f"join {params.address}" if params.address else "start here"
                raise TrainingError(f"Ray cannot {where}: {_first_line(error)}{_hint(error)}") from error
            ray.shutdown()


def _hint(error: BaseException) -> str:
    """Return what to do about a cluster that asks for a token."""
    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(cause)
    if not any("InvalidAuthToken" in str(one) for one in causes):
        return ""
    return "; it asks for its token: set RAY_AUTH_MODE=token, and have the token in ~/.ray/auth_token"


@contextlib.contextmanager
def _removed(folder: Path) -> Iterator[None]:
    """Give Ray an empty folder, and remove it: nothing of it is read again."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)
