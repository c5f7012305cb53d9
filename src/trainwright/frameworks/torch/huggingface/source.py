"""The source of the weights of a model of transformers: a folder, or a commit of a model of the hub."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any, NamedTuple

from trainwright.errors import ModelError
from trainwright.require import require

log = logging.getLogger("trainwright")
CONFIG_FILE = "config.json"
_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_FILES = (CONFIG_FILE, "model*.safetensors", "model.safetensors.index.json")  # what is read of a model


class Source(NamedTuple):
    """A folder with the config and the weights of a model; `commit` is that of a model of the hub."""

    folder: Path
    commit: str | None = None

    def config(self) -> dict[str, Any]:
        """Return the options of the architecture, as config.json has them.

        Raises:
            ModelError: There are none, or no weights in the format of safetensors.
        """
        path = self.folder / CONFIG_FILE
        if (self.folder / "adapter_config.json").exists():
            raise ModelError(
                f"model.path: {self.folder} holds adapters of peft; name the folder of the model beneath "
                "them, or merge them (merge_and_unload) and save that"
            )
        if not path.is_file():
            raise ModelError(
                f"model.path: {self.folder} has no {CONFIG_FILE}: name a folder that save_pretrained wrote"
            )
        if not any(self.folder.glob("*.safetensors")):
            pickled = next(self.folder.glob("*.bin"), None)
            what = f"{pickled.name}, a pickle, which could execute code" if pickled else "no weights"
            raise ModelError(
                f"model.path: {self.folder} has {what}; save the model as safetensors: "
                "AutoModel.from_pretrained(FOLDER).save_pretrained(OTHER)"
            )
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ModelError(
                f"model.path: {path} is not JSON: {error}; name a folder that save_pretrained wrote"
            ) from error
        if not isinstance(config, dict):
            raise ModelError(
                f"model.path: {path} does not hold the options of a model; name a folder that "
                "save_pretrained wrote"
            )
        return config


def source_of(path: str, revision: str | None) -> Source:
    """Return where a model is: a folder, or the commit of a model of the hub that is in the hub's cache.

    A model that is not in the cache is downloaded to it. A branch or tag is resolved to its commit.

    Raises:
        ModelError: There is no such folder, or the model cannot be had.
    """
    folder = Path(path).expanduser()
    if folder.is_dir():
        if revision is not None:
            raise ModelError(
                f"model.revision: {revision} given, but {path} is a folder, whose weights are hashed; leave "
                "it out"
            )
        return Source(folder)
    if not _ID.fullmatch(path):
        raise ModelError(f"model.path: there is no folder {path}")
    snapshot = _snapshot(path, revision or "main")
    commit = snapshot.name
    if revision is None or not _COMMIT.fullmatch(revision):
        log.info("model.path: %s at %s is commit %s", path, revision or "main", commit)
    return Source(snapshot, commit)


def _snapshot(name: str, revision: str) -> Path:
    """Return the folder of a commit in the hub's cache."""
    hub = require("huggingface_hub", "huggingface")
    wanted: dict[str, Any] = {"repo_id": name, "revision": revision, "allow_patterns": list(_FILES)}
    try:
        cached = Path(hub.snapshot_download(**wanted, local_files_only=True))
        if (cached / CONFIG_FILE).is_file() and any(cached.glob("*.safetensors")):
            return cached
    except Exception as error:  # it says so in many ways, which depend on its version
        log.debug("%s at %s is not in the cache: %s", name, revision, error)
    try:
        return Path(hub.snapshot_download(**wanted))
    except Exception as error:
        own = name.rpartition("/")[2]
        raise ModelError(
            f"model.path: {name} at revision {revision} is no folder, is not in the hub's cache, and cannot "
            f"be downloaded ({type(error).__name__})\n"
            f"where there is a network: hf download {name} --revision {revision} --local-dir {own}\n"
            f"then bring that folder here, and write model.path: ./{own} (without revision)"
        ) from error
