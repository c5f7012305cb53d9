"""The description of the data that a run keeps: from raw rows to features, and from outputs to classes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from trainwright.digest import WEIGHTS_FILE, files_of
from trainwright.errors import CheckpointError
from trainwright.records.document import Document


class DataDescription(Document):
    """The preparation of a run's data, so that a prediction needs no training data.

    `info` is `DataInfo.to_json`; `preparation` is the preparation of a table's columns, None where the data
    set brought preprocessed arrays; `tokenizer` is what made tokens of text, None where bytes are the tokens.
    `ranges` has the least and greatest value of columns of numbers and times in the training rows.
    """

    FILE: ClassVar[str] = "data.json"

    info: dict[str, Any]
    preparation: dict[str, Any] | None = None
    tokenizer: dict[str, Any] | None = None
    ranges: dict[str, list[Any]] = Field(default_factory=dict)


@dataclass(frozen=True)
class StoredModel:
    """The model of a run on disk; every file that its predictions depend on has been verified.

    `folder` holds the weights; `data` says how raw rows become features, and outputs become classes, and is
    read from `data_file`.
    """

    folder: Path
    data: DataDescription
    data_file: Path

    @property
    def bytes(self) -> int:
        """The size of the files of the weights."""
        return sum(path.stat().st_size for path in files_of(self.folder, WEIGHTS_FILE))


@contextmanager
def understanding(path: Path) -> Iterator[None]:
    """Read a description that is whole, but need not make sense: anyone may have written it.

    Raises:
        CheckpointError: Something is missing in it, or of another type.
    """
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise CheckpointError(f"{path} does not describe data: {type(error).__name__}: {error}") from error
