"""What the processes of a trial compute with: threads, GPUs, and how many processes there are."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trainwright.config import Resolved
from trainwright.config.schema import RunConfig, power_of_two
from trainwright.config.tuning import HalvingPruner, NoPruner, TuningConfig
from trainwright.datasets.base import DataBundle
from trainwright.errors import ConfigError, InputError, Problem, TrainwrightError
from trainwright.runs.frameworks import framework_for
from trainwright.runs.processes.threads import SMALL_STEP, available_threads
from trainwright.samplers.base import Space
from trainwright.types import DataInfo

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_GPU = re.compile(r"nvidia\d+")
Known = tuple[DataInfo, int]


def check_resources(tuning: TuningConfig, config: RunConfig) -> None:
    """Check that what a trial is given goes with the rest of the config.

    Raises:
        ConfigError: It does not.
    """
    given, own, device = tuning.resources, config.distributed, config.training.device
    if given.nproc is not None and power_of_two(given.nproc) != given.nproc:
        what = f"{given.nproc} is not a power of two: 1, 2, 4, 8 ..."
        raise ConfigError([Problem(what, "tuning.resources.nproc")])
    if given.nproc is not None and own.nproc not in (1, given.nproc):
        what = f"is {given.nproc}, but distributed.nproc is {own.nproc}; leave one of them out"
        raise ConfigError([Problem(what, "tuning.resources.nproc")])
    if (given.nproc or own.nproc) != 1 and not isinstance(tuning.pruner, NoPruner | HalvingPruner):
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
    own = tuning.tuner is not None  # which trains as many trials at once as there are processors
    fair = 1 if own else max(1, available_threads(config) // tuning.parallel)
    return config.training.threads or tuning.resources.cpu or fair


@dataclass(frozen=True)
class Threads:
    """The threads of a trial's processes: one for small steps, where nobody has said how many.

    They are the same whenever the study is resumed or repeated: a function of the trial's config, of the
    data, and of what was fixed when the study was created.

    Args:
        most: The threads of one process.
        by_step: Whether a trial with small steps has one.
        data: What is known of the data.
    """

    most: int
    by_step: bool
    data: TrialData

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
            framework = framework_for(config, info)
            work = framework.step_work(config, info, framework.plan(config, rows))
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
