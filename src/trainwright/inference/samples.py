"""Files that are samples for a model whose data set makes its samples, and their targets, of files: texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trainwright import plugins
from trainwright.config.schema import RunConfig
from trainwright.datasets.base import FileSamples, Split
from trainwright.datasets.samples.arrays import Arrays
from trainwright.frameworks.base import Model
from trainwright.types import Array


def samples_of(config: RunConfig, path: Path | str, tokenizer: Mapping[str, Any] | None) -> Split | None:
    """Return the samples that the run's data set makes of a file; None if it takes rows of tables.

    Args:
        config: The run's config.
        path: The file.
        tokenizer: What made the tokens of the run's text, if it has any; see `DataBundle.tokenizer`.

    Raises:
        DataError: The file cannot be read, or gives no sample.
    """
    data = config.data
    if data is None:
        return None
    cls: Any = plugins.dataset_of(data.type)
    if not issubclass(cls, FileSamples):
        return None
    samples: Split = cls(data, cls.Params(**data.params)).samples(str(path), tokenizer)
    return samples


def outputs_for(model: Model, samples: Split, rows: int) -> Iterator[Array]:
    """Yield the predictions of the samples in chunks, each of `rows` but for the last one."""
    for start in range(0, len(samples), rows):
        batch = samples.take(np.arange(start, min(start + rows, len(samples)), dtype=np.int64))
        yield np.concatenate([part.outputs for part in model.predict(Arrays(batch))])
