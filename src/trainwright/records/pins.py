"""The exact version of data that a run recorded."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from trainwright.records.document import Record


class Pin(Record):
    """The exact version that a reference to data meant when it was resolved.

    `kind` is the adapter (such as `embedded`), `source` where it keeps its versions, without credentials, and
    `revision` the exact version there: `churn@v3`, or a commit. `content` is a hash of the content, where the
    system knows one. `reference` has the keys that resolve to this version again, and `file` the name of the
    file; it is empty for a folder.
    """

    kind: str
    source: str
    revision: str
    content: str | None = None
    reference: dict[str, Any] = Field(default_factory=dict)
    file: str = ""

    @property
    def identity(self) -> str:
        """The part that two runs must share: the content or, if it is not known, where it comes from."""
        return self.content or f"{self.source} {self.revision}"

    def __str__(self) -> str:
        """Return the version in words, with the beginning of the hash of its content."""
        return f"{self.revision} ({self.kind}{f', {self.content[:12]}' if self.content else ''})"
