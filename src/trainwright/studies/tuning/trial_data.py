"""What a study knows of the data of its trials before it begins one."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from trainwright.config import Resolved
from trainwright.datasets.base import DataBundle
from trainwright.errors import TrainwrightError
from trainwright.samplers.base import Space
from trainwright.types import DataInfo

Known = tuple[DataInfo, int]


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
