"""Models that train on a transformed target, seen in the target's original units."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainwright.datasets.base import ArraySplit, Split
from trainwright.datasets.samples.arrays import Arrays
from trainwright.errors import InputError
from trainwright.frameworks.base import Model
from trainwright.tasks.support.transforms import TargetTransform, transform_of
from trainwright.types import TARGET, Array, DataInfo, Predictions, SplitName


def transformed(split: Split, transform: TargetTransform) -> Split:
    """Return a split with its targets on the transformed scale.

    Raises:
        InputError: The split is not in memory.
    """
    if not isinstance(split, ArraySplit):
        raise InputError("data.target_transform: the rows are not in memory; leave it out")
    return Arrays({**split.arrays, TARGET: transform.forward(split.arrays[TARGET])})


class OriginalUnitsModel(Model):
    """A model whose predictions and targets are in the target's original units.

    Its loss is on the transformed scale.

    Args:
        model: The model, which trains and predicts on the transformed scale.
        transform: The transformation.
        known: The splits of the run with transformed targets, by the id of the split with original ones. The
            learner caches what it derives from them.
    """

    def __init__(self, model: Model, transform: TargetTransform, known: Mapping[int, Split]) -> None:
        self._model = model
        self._transform = transform
        self._known = known

    @property
    def input_names(self) -> Sequence[str] | None:
        """The arrays of a batch that the model is called with."""
        return self._model.input_names

    @property
    def rows_together(self) -> int:
        """The number of rows that are predicted together."""
        return self._model.rows_together

    @property
    def native(self) -> Any:
        """The model as its library's own object; its outputs are on the transformed scale."""
        return self._model.native

    @property
    def parameter_count(self) -> int | None:
        """The number of trained parameters."""
        return self._model.parameter_count

    def predict(self, split: Split) -> Iterator[Predictions]:
        """Yield the outputs for all rows of a split, in order."""
        assert isinstance(split, ArraySplit), "a learner has refused other splits"
        targets = split.arrays[TARGET]
        inner = self._known.get(id(split)) or transformed(split, self._transform)
        for part in self._model.predict(inner):
            values = self._transform.inverse(part.outputs)
            yield part._replace(outputs=values, targets=targets[part.ids])

    @property
    def link(self) -> str:
        """The function that maps outputs of the native model to the transformed scale."""
        return self._model.link

    def importance(self) -> Mapping[str, Array]:
        """Return the library's own feature importances."""
        return self._model.importance()


def in_original_units(
    model: Model,
    info: DataInfo,
    splits: Mapping[SplitName, Split] | None = None,
    learner_splits: Mapping[SplitName, Split] | None = None,
) -> Model:
    """Return a model that predicts in the target's original units.

    Args:
        model: The model, as its framework makes it.
        info: The description of the data.
        splits: The splits of the run.
        learner_splits: The same splits, as the learner got them.
    """
    transform = transform_of(info)
    if transform is None:
        return model
    known = {id(split): (learner_splits or {})[name] for name, split in (splits or {}).items()}
    return OriginalUnitsModel(model, transform, known)
