"""A committed checkpoint: what its manifest says of it, and what its name says."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter

from trainwright.digest import WEIGHTS, FileRecord, TensorRecord, digest, sha256_json
from trainwright.records.document import OtherFormat

FORMAT = 2
DEPTH = 3  # names in `checkpoints/<checkpoint>/<file>`
NAME = re.compile(r"step-\d{9,}-a\d{4,}")
_FILE = re.compile(r"[^/.\0][^/\0]*")  # a copy of a file of another name could lie outside of its folder


@dataclass(frozen=True)
class Commit:
    """A committed checkpoint, as its manifest describes it.

    `best` are the steps of the best models that a resume from it needs. `run_files` maps the files of the run
    directory that a prediction depends on (config, preparation of the data) to their SHA-256. `saved` is in
    seconds since 1970.
    """

    name: str
    step: int
    attempt: int
    files: Sequence[FileRecord]
    best: frozenset[int] = frozenset()
    run_files: Mapping[str, str] = field(default_factory=dict)
    saved: float = field(default_factory=time.time)

    @property
    def tensors(self) -> list[TensorRecord]:
        """The tensors of the framework's state."""
        return [tensor for file in self.files for tensor in file.state()]

    @property
    def digest(self) -> str:
        """The digest of the model's weights."""
        return digest(tensor for tensor in self.tensors if tensor.name.startswith(WEIGHTS))

    @property
    def state_digest(self) -> str:
        """The digest of all tensors."""
        return digest(self.tensors)

    def manifest(self) -> bytes:
        """Return the content of the manifest, which ends with a hash of itself."""
        body: dict[str, Any] = {
            "format": FORMAT,
            "step": self.step,
            "attempt": self.attempt,
            "digest": self.digest,
            "state_digest": self.state_digest,
            "saved": self.saved,
            "best": sorted(self.best),
            "run_files": dict(self.run_files),
            "files": [file.to_json() for file in self.files],
        }
        return json.dumps(body | {"sha256": sha256_json(body)}).encode()

    @staticmethod
    def read(name: str, manifest: bytes) -> Commit:
        """Read the manifest of the checkpoint `name`.

        Raises:
            OtherFormat: It is of another format.
            ValueError: It is damaged.
        """
        try:
            data = json.loads(manifest)
        except RecursionError as error:
            raise ValueError("its manifest is nested too deeply") from error
        if not isinstance(data, dict) or data.pop("sha256", None) != sha256_json(data):
            raise ValueError("its manifest is not what was written")
        if data.get("format") != FORMAT:
            raise OtherFormat(data.get("format"), FORMAT)
        commit: Commit = _COMMIT.validate_python({**data, "name": name})
        if strange := [file.name for file in commit.files if not _FILE.fullmatch(file.name)]:
            raise ValueError(f"its manifest names {strange[0]!r}, which is not a file of a checkpoint")
        return commit


_COMMIT = TypeAdapter(Commit)  # checks the types of what a manifest holds
