"""What the tests of the command line share."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from trainwright.records.run_dir import RunDir
from trainwright.storage.lease import Lease
from trainwright.storage.log import Log
from trainwright.storage.seals import Seals
from trainwright.stores.local import LocalStore
from written import write_record

CONFIG = """\
data: {type: digits}
model: {type: mlp, hidden: [32]}
training: {epochs: 1, threads: 1}
"""


class Outcome(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one document on stdout."""
        return json.loads(self.out)


Command = Callable[..., Outcome]


def write_run(
    runs_dir: Path,
    run_id: str,
    status: str = "completed",
    digest: str = "d1",
    accuracy: float = 0.9,
    config: str = CONFIG,
) -> Path:
    """A run directory as a training leaves it, as far as lists and comparisons read it."""
    path = runs_dir / "digits" / run_id
    (path / "attempts").mkdir(parents=True)
    (path / "journal").mkdir()
    (path / "config.yaml").write_text(config, encoding="utf-8")
    manifest = {
        "run_id": run_id,
        "experiment": "digits",
        "config_sha256": RunDir(path).config_sha256(),
        "seed": 0,
        "data": {"hash": "h", "splits": {"train": {"rows": 10, "sha256": "s"}}},
        "environment": {
            "hash": "e",
            "python": "3.11.7",
            "threads": 1,
            "imported": {"numpy": "2.0"},
            "packages": {"numpy": "2.0"},
        },
    }
    result = {
        "status": status,
        "steps": 45,
        "metrics": {"val_loss": 0.5, "test_accuracy": accuracy},
        "digest": digest,
    }
    for name, data in (
        ("manifest.json", manifest),
        ("result.json", result),
        ("attempts/0001.json", {"status": status}),
    ):
        write_record(path / name, data)
    Lease(Log(LocalStore(path)), 0, 1, seals=Seals(path, None, 1)).end(status)
    return path


def lines_of_error(text: str) -> list[str]:
    """Return the lines from the error on; notes on what was translated come before it."""
    lines = text.splitlines()
    return lines[next(i for i, line in enumerate(lines) if "error: " in line or line.startswith("Usage")) :]
