"""MLflow's sqlite store, which is there as a whole or not at all.

MLflow makes its tables in some fifty migrations, which take ten seconds on a busy machine. A process that is
killed meanwhile, as the feeder of a short run is, or two that begin at once, would leave a file that MLflow
can never open again.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

_SQLITE = "sqlite:///"


def client_of(tracking: Any, uri: str) -> Any:
    """Return MLflow's client of a store; the file of a new sqlite store appears with all its tables."""
    path = _file_of(uri)
    if path is not None and not path.exists() and path.parent.is_dir():
        _make(tracking, path)
    return tracking.MlflowClient(tracking_uri=uri)


def _file_of(uri: str) -> Path | None:
    """Return the file of a sqlite store; None for others, and for one in memory."""
    name = uri.removeprefix(_SQLITE).partition("?")[0]
    return Path(name) if uri.startswith(_SQLITE) and name and name != ":memory:" else None


def _make(tracking: Any, path: Path) -> None:
    """Make an empty store elsewhere, and put it in its place, unless another process has done so."""
    with tempfile.TemporaryDirectory(prefix="trainwright-mlflow-") as folder:
        whole = Path(folder, path.name)
        tracking.MlflowClient(tracking_uri=f"{_SQLITE}{whole}")
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            shutil.copyfile(whole, beside)
            os.link(beside, path)
        except FileExistsError:
            pass
        except OSError:  # a file system without hard links
            if not path.exists():
                beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
