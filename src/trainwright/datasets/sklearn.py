"""The data sets that are part of scikit-learn; nothing is downloaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from pydantic import BaseModel

from trainwright.config.fields import Section
from trainwright.config.schema import DataConfig
from trainwright.require import require

if TYPE_CHECKING:
    from trainwright.datasets.base import DataBundle, LoadRequest


class SklearnParams(Section):
    """These data sets have no options."""


class SklearnDataset:
    """A data set of scikit-learn; its column `target` holds class numbers, or values for diabetes."""

    names: ClassVar[Sequence[str]] = ("digits", "iris", "wine", "breast_cancer", "diabetes")
    Params: ClassVar[type[BaseModel]] = SklearnParams
    has_tokens: ClassVar[bool] = False

    def __init__(self, config: DataConfig, params: BaseModel) -> None:
        assert isinstance(params, SklearnParams)
        from trainwright.datasets.tables.tabular import refuse_paths  # late: a config is checked without it

        refuse_paths(config)
        self._config = config
        self._library = require("sklearn.datasets", "tabular")

    def sources(self) -> list[str]:
        """Return no files: the rows are part of the library. See `KnownSources`."""
        return []

    def load(self, request: LoadRequest) -> DataBundle:
        """Load the data and split the rows as `data.split` says; see `Dataset.load`."""
        from trainwright.datasets.tables.table import Table
        from trainwright.datasets.tables.tabular import build

        name = self._config.type
        bunch = getattr(self._library, f"load_{name}")()
        columns = {str(feature): bunch.data[:, i] for i, feature in enumerate(bunch.feature_names)}
        table = Table({**columns, "target": bunch.target}, source=name)
        bundle = build(
            {"train": table},
            self._config,
            request.form,
            known=True,
            examine=request.examine,
            examples=request.examples,
        )
        images = getattr(bunch, "images", None)  # (rows, height, width)
        if images is None or list(bundle.info.feature_names) != list(columns):
            return bundle
        info = replace(bundle.info, image_shape=images.shape[1:])
        height, width = info.image_shape
        text = f"{len(columns)} pixels, the rows of images of {height} x {width}"
        return replace(bundle, info=info, columns=text)
