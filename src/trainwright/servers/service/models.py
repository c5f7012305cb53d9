"""The models of a service: loaded by name, and loaded anew when the name stands for another model."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from trainwright import api
from trainwright.records.artifact import ArtifactDir, certificate_of
from trainwright.records.listing import has_model
from trainwright.records.run_dir import RunDir
from trainwright.runs.lookup import find
from trainwright.servers.service.served import ServedModel
from trainwright.servers.service.settings import Settings

log = logging.getLogger("trainwright")
_WEIGHTS = ("best", "checkpoints")  # folders of a run whose files change with its weights


def loaded(settings: Settings, name: str) -> ServedModel:
    """Return the model that a name stands for now.

    Raises:
        TrainwrightError: It cannot be loaded.
    """
    found = find(name, settings.runs_dir, has_model)
    identity = identity_of(found)
    predictor = api.load(name if isinstance(found, ArtifactDir) else found.path, runs_dir=settings.runs_dir,
                         trust=settings.trust)  # fmt: skip
    predictor.be_quiet()
    return ServedModel(predictor, name, identity)


def identity_of(found: RunDir) -> str:
    """Return what tells the weights of a run or of an exported model from others: 12 hexadecimal digits."""
    lines = [str(found.path.resolve())]
    for file in sorted(_files_of(found)):
        try:
            stat = file.stat()
        except OSError:  # pruned meanwhile
            continue
        lines.append(f"{file} {stat.st_size} {stat.st_mtime_ns} {stat.st_ino}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


def _files_of(found: RunDir) -> Iterator[Path]:
    if isinstance(found, ArtifactDir):
        yield certificate_of(found.path)
        yield from found.path.glob("*") if found.path.is_dir() else [found.path]
        return
    for name in _WEIGHTS:
        yield from (found.path / name).glob("*")


class Reloader:
    """A thread that looks whether a name stands for another model, and loads it.

    Args:
        settings: The settings.
        served: Returns the model that is served.
        replace: Puts another one in its place.
        failed: Notes that one could not be loaded.
    """

    def __init__(
        self,
        settings: Settings,
        served: Callable[[], ServedModel],
        replace: Callable[[ServedModel], None],
        failed: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._served = served
        self._replace = replace
        self._failed = failed
        self._refused = ""  # the identity of a model that could not be loaded
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reload", daemon=True)

    def start(self) -> None:
        """Start the thread, unless the settings rule it out."""
        if self._settings.reload_seconds:
            self._thread.start()

    def close(self) -> None:
        """Stop the thread; it ends when it has loaded what it loads."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(self._settings.reload_seconds):
            self.look()

    def look(self) -> None:
        """Load the model anew if its name stands for another one; the old one stays if that fails."""
        now = self._served()
        identity = ""
        try:
            identity = identity_of(find(now.name, self._settings.runs_dir, has_model))
            if identity in (now.identity, self._refused):
                return
            self._replace(loaded(self._settings, now.name))
        except Exception as error:  # the old model answers on
            self._refused = identity
            self._failed()
            log.warning("%s cannot be loaded anew, and the model before answers on: %s", now.name, error)
