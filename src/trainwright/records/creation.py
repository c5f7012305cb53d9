"""The record of how a run was created."""

from __future__ import annotations

import json
from typing import ClassVar

from pydantic import Field

from trainwright.records.document import Document


class Creation(Document):
    """The place and time of a run's creation.

    Relative paths in its config start from `working_directory`, wherever the first attempt is made; `time` is
    in seconds since the epoch. `settings` are the dotted keys of the config that the user set; None: it is
    not known. `data_paths` are the paths of the data, by dotted key, that `${env:NAME}` was a part of.
    `code_folder` is the folder of the config's file, if code that it names is there. `signature` covers the
    config, these paths and all folders; see `storage.ownership`.
    """

    FILE: ClassVar[str] = "created.json"

    working_directory: str = "."
    time: float = 0.0
    settings: list[str] | None = None
    data_paths: dict[str, str] = Field(default_factory=dict)
    code_folder: str = ""
    signature: str | None = None

    @property
    def places(self) -> str:
        """The folders, and the paths of the data, that its signature covers."""
        paths = json.dumps(self.data_paths, sort_keys=True) if self.data_paths else ""
        return "\0".join([self.working_directory, self.code_folder, paths])
