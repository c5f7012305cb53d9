"""The schedulers of Ray, and population based training whose exploits are forks of runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ray.tune import schedulers

from trainwright.samplers.base import Observation
from trainwright.tuners.base import StartedTrial, Trials
from trainwright.tuners.ray.actor import EVALUATION, OBJECTIVE, TRIAL, commit_of, config_of, trial_of
from trainwright.tuners.ray.params import AshaScheduler, HyperbandScheduler, PbtScheduler, Scheduler
from trainwright.tuners.ray.space import decoded, encoded, mutation
from trainwright.types import Mode


def made(options: Scheduler, trials: Trials, waiting: list[StartedTrial]) -> Any:
    """Return the scheduler that is asked for.

    Args:
        options: Its options.
        trials: The trials of the study.
        waiting: Those that go on from an earlier process, for a scheduler that begins trials by itself.
    """
    common: dict[str, Any] = {"time_attr": EVALUATION, "metric": OBJECTIVE, "mode": trials.mode}
    own = options.model_dump(exclude={"type"})
    if isinstance(options, AshaScheduler):
        scheduler = schedulers.ASHAScheduler(**common, **own, stop_last_trials=False)
        _teach(scheduler, trials.ended())
        return scheduler
    if isinstance(options, HyperbandScheduler):
        return schedulers.HyperBandScheduler(**common, **own, stop_last_trials=False)
    if isinstance(options, PbtScheduler):
        mutations = {one.key: mutation(one) for one in trials.space if one.key in trials.forkable}
        return Population(trials, waiting, **common, **own, hyperparam_mutations=mutations, log_config=False)
    return schedulers.FIFOScheduler()


def _teach(scheduler: Any, ended: list[Observation]) -> None:
    """Tell ASHA of the trials that an earlier process of the study has made: its rungs know them."""
    for number, one in enumerate(ended):
        trial = SimpleNamespace(trial_id=f"earlier_{number}", is_finished=lambda: True)
        scheduler.on_trial_add(None, trial)
        for evaluation, (_, value) in enumerate(one.curve, 1):
            scheduler.on_trial_result(None, trial, {EVALUATION: evaluation, OBJECTIVE: value})


class Population(schedulers.PopulationBasedTraining):  # type: ignore[misc]
    """Population based training: a trial that exploits another one becomes a fork of its run."""

    def __init__(self, trials: Trials, waiting: list[StartedTrial], mode: Mode, **options: Any) -> None:
        super().__init__(mode=mode, **options)
        self._study, self._waiting = trials, waiting

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """Make the run of a trial, or give it one of an earlier process."""
        started = self._waiting.pop(0) if self._waiting else self._study.begin()
        assert started is not None, "Ray is asked for as many trials as are wanted"
        trial.config.update(encoded(self._study.space, started.params), **config_of(started))
        super().on_trial_add(tune_controller, trial)

    def _get_new_config(self, trial: Any, trial_to_clone: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Fork the run of the other trial where Ray has saved it, with what Ray has explored."""
        new, operations = super()._get_new_config(trial, trial_to_clone)
        space, donor = self._study.space, trial_of(trial_to_clone.config)
        at = commit_of(self._trial_state[trial_to_clone].last_checkpoint)
        params = decoded(space, new)
        fork = self._study.fork(donor, at, params, trial_of(trial.config).number)
        config = {**new, **encoded(space, params), **config_of(fork)}
        assert TRIAL in config
        return config, operations

    def __reduce__(self) -> Any:
        """Leave out the study where Ray saves its own state, which is never read."""
        return (object, ())
