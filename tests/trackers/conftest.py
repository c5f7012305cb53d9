"""Run directories made by hand, and a tracker that a feeder process finds through its entry point."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from written import write_record

RUN_ID = "20260101-120000-abc123"
MakeRun = Callable[..., Path]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Makes a run directory whose working directory is `tmp_path`, with these trackers."""

    def make(*tracking: dict[str, Any]) -> Path:
        run_dir = tmp_path / "runs" / "exp" / RUN_ID
        run_dir.mkdir(parents=True)
        config = {
            "model": {"type": "mlp", "params": {"hidden": [8, 4]}},
            "data": {"path": "s3://me:hunter2@bucket/x.csv"},
            "tracking": list(tracking),
        }
        (run_dir / "config.yaml").write_text(json.dumps(config))  # JSON is YAML
        manifest = {
            "run_id": RUN_ID,
            "experiment": "exp",
            "working_directory": str(tmp_path),
            "seed": 7,
            "config_hash": "c0ffee",
            "data": {"hash": "da7a"},
            "code": {"git": None},
        }
        write_record(run_dir / "manifest.json", manifest)
        return run_dir

    return make


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`file_tracker.py`, as if it had been installed by another package.

    Processes started from now on find it.
    """
    info = tmp_path / "site" / "file_tracker-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: file-tracker\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[trainwright.trackers]\nfile = file_tracker:FileTracker\n")
    paths = [str(info.parent), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in paths if path))
