"""The models of a service: loaded by name, and loaded anew when the name stands for another model."""

from __future__ import annotations

import gc
import hashlib
import logging
import threading
import time
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
_LONGEST_PAUSE = 60.0  # seconds between two attempts to load a model that could not be
_WEIGHTS = ("best", "checkpoints")  # folders of a run whose files change with its weights


def loaded(settings: Settings, role: str, name: str) -> ServedModel:
    """Return the model that a name stands for now.

    Raises:
        TrainwrightError: It cannot be loaded.
    """
    found = find(name, settings.runs_dir, has_model)
    identity = identity_of(found)
    path = found.path.resolve()  # of a link: the run has the name of its folder
    predictor = api.load(path, runs_dir=settings.runs_dir, trust=settings.trust)
    predictor.be_quiet()
    return ServedModel(predictor, name, identity, is_shadow=role == "shadow")


def spare_collections() -> None:
    """Take what is loaded now out of the garbage collections, which would hold requests up for 100 ms."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


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


class Models:
    """The models of a service by role: `main`, `shadow`, and those that answer a share of the requests.

    A thread looks whether their names stand for other models, and puts these in their places.

    Args:
        settings: The settings.
        changed: Gets the role, the old model and the new one of each change; None for one that is not there.

    Raises:
        TrainwrightError: One cannot be loaded.
    """

    def __init__(
        self, settings: Settings, changed: Callable[[str, ServedModel | None, ServedModel | None], None]
    ) -> None:
        self._settings = settings
        self._changed = changed
        self._shares = [(f"split {name}", share) for name, share in settings.shares]
        names = {"main": settings.model, **{f"split {name}": name for name, _ in settings.shares}}
        if settings.shadow is not None:
            names["shadow"] = settings.shadow
        self.by_role = {role: loaded(settings, role, name) for role, name in names.items()}
        # When models that could not be loaded (they may have been copied in part) are tried again, by
        # identity, and the pause after that.
        self._refused: dict[str, tuple[float, float]] = {}
        self._said: dict[str, str] = {}  # why the model of a role cannot be loaded
        self._stop = threading.Event()
        for role, model in self.by_role.items():
            changed(role, None, model)

    @property
    def main(self) -> ServedModel:
        """The model that answers what no other one does."""
        return self.by_role["main"]

    def for_request(self, identifier: str) -> ServedModel:
        """Return the model that answers a request: a function of the name of the request."""
        if not self._shares:
            return self.main
        digest = hashlib.sha256(identifier.encode(errors="replace")).digest()
        place = int.from_bytes(digest[:8]) / 2**64
        for role, share in self._shares:
            if place < share:
                return self.by_role[role]
            place -= share
        return self.main

    def start(self) -> None:
        """Start the thread, unless the settings rule it out."""
        if self._settings.reload_seconds:
            threading.Thread(target=self._run, name="reload", daemon=True).start()

    def close(self) -> None:
        """Stop the thread; it ends when it has loaded what it loads."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(self._settings.reload_seconds):
            for role in self.by_role:
                self._look(role)

    def _look(self, role: str) -> None:
        """Load a model anew if its name stands for another one; the old one stays if that fails."""
        now, identity, pause = self.by_role[role], "", self._settings.reload_seconds
        try:
            identity = identity_of(find(now.name, self._settings.runs_dir, has_model))
            again, pause = self._refused.get(identity, (0.0, self._settings.reload_seconds))
            if identity == now.identity or time.monotonic() < again:
                return
            self.by_role[role] = new = loaded(self._settings, role, now.name)
        except Exception as error:  # the old model answers on
            self._refused[identity] = (time.monotonic() + pause, min(2 * pause, _LONGEST_PAUSE))
            if self._said.get(role) != str(error):
                self._said[role] = str(error)
                self._changed(role, now, None)
                log.warning("%s cannot be loaded anew, and the model before answers on: %s", now.name, error)
        else:
            self._said.pop(role, None)
            self._changed(role, now, new)
            del now
            spare_collections()
            log.info("%s is loaded anew: run %s", new.name, new.predictor.run_id)
