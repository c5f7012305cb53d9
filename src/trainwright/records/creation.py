"""The record of how a run was created."""

from __future__ import annotations

from typing import ClassVar

from trainwright.records.document import Document


class Creation(Document):
    """The place and time of a run's creation.

    Relative paths in its config start from `working_directory`, wherever the first attempt is made; `time` is
    in seconds since the epoch. `settings` are the dotted keys of the config that the user set; None: it is
    not known. `code_folder` is the folder of the config's file, if code that it names is there. `signature`
    covers the config and all folders; see `storage.ownership`.
    """

    FILE: ClassVar[str] = "created.json"

    working_directory: str = "."
    time: float = 0.0
    settings: list[str] | None = None
    code_folder: str = ""
    signature: str | None = None

    @property
    def started(self) -> str:
        """The folders that its signature covers."""
        return "\0".join(filter(None, [self.working_directory, self.code_folder]))
