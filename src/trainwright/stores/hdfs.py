"""A store in Hadoop's file system (HDFS), through its REST interface, WebHDFS."""

from __future__ import annotations

import posixpath
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from io import BytesIO
from os import environ
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit
from weakref import WeakSet

from trainwright.errors import CheckpointError, InputError
from trainwright.require import require
from trainwright.stores.base import Version

_PORT = 9870  # of the name node's web interface, unless `dfs.namenode.http-address` says otherwise
# Of a message of urllib3: the host and its port; the error of the system
_POOL, _ERRNO = re.compile(r"host='([^']+)', port=(\d+)"), re.compile(r"\[Errno -?\d+\] ([\w ]+)")
_RPC_PORTS = ("8020", "9000")
_STAGING = ".staging"  # the folder for files that are not complete
_BLOCK_BYTES = 32 << 20
_TIMEOUT = 60.0  # seconds without an answer
_prepared: WeakSet[Any] = WeakSet()  # the sessions that have the timeout and retries
_RETRIES: dict[str, Any] = {"total": 6, "backoff_factor": 0.2, "status_forcelist": (429, 502, 503, 504)}


class HdfsStore:
    """Files in HDFS, in the folder that the URL names: `hdfs://namenode:9870/folder`.

    The host and port are those of the name node's web interface. `HADOOP_USER_NAME` names the user; other
    options of fsspec's `webhdfs` come from its own configuration (`FSSPEC_WEBHDFS_KERBEROS=true`).

    An object is written to a staging file, then renamed. `RENAME` with `renameoptions` is one request: `NONE`
    fails if the target exists, `OVERWRITE` replaces it. The name node does either under its lock, and logs it
    before it answers. fsspec's driver for libhdfs cannot be used: its `open` truncates an existing file, and
    its `mv` deletes an existing target before it renames, so two conditional puts could both succeed.

    This store was tested against a server that its tests implement after the sources of Hadoop 3, never
    against a cluster: Kerberos, tokens, TLS and standby name nodes are untested. HttpFS, a proxy with the
    same interface, ignores `renameoptions`; it is refused when the store is opened for writing.

    Args:
        url: The URL.

    Raises:
        InputError: The URL names no host, or the port is that of another interface.
        MissingExtraError: fsspec or requests is not installed.
    """

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        parts = urlsplit(self._url)
        host, port = parts.hostname, parts.netloc.rpartition("]")[2].partition(":")[2] or str(_PORT)
        if not host or not port.isdecimal() or port in _RPC_PORTS:
            raise InputError(
                f"{url} names no web interface of a name node; write hdfs://namenode:{_PORT}/folder"
            )
        self._where = {"host": host, "port": int(port)}
        self._root = posixpath.join("/", parts.path)
        self._fsspec: Any = require("fsspec", "hdfs")
        self._requests: Any = require("requests", "hdfs")

    def put(self, key: str, source: Path) -> None:
        """Upload the file under another name, and give it its own."""
        with self._writing("put", key), open(source, "rb") as file, self._staged(file) as staged:
            self._rename(staged, key, "OVERWRITE")

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Upload the data under another name, and give it its own unless there is such an object."""
        with self._writing("put", key), self._staged(BytesIO(data)) as staged:
            try:
                self._rename(staged, key, "NONE")
            except (FileNotFoundError, RuntimeError):
                # Refused; or the staging file is gone, renamed by a request whose answer was lost.
                if self._status(key) is None:
                    raise
                return False
        return True

    def get(self, key: str) -> bytes:
        """Return the file's content.

        Raises:
            CheckpointError: The object does not exist or cannot be read.
        """
        with self._reading("get", key):
            content: bytes = self._files.cat_file(self._path(key))
            return content

    def download(self, key: str, target: Path) -> None:
        """Write the file's content into a new file, block by block.

        Raises:
            CheckpointError: The object does not exist or cannot be read.
        """
        with self._reading("get", key):
            source = self._files.open(self._path(key), "rb", block_size=_BLOCK_BYTES)
        with source, open(target, "xb") as file:
            while True:
                with self._reading("get", key):
                    block = source.read(_BLOCK_BYTES)
                if not block:
                    return
                file.write(block)

    def version(self, key: str) -> Version:
        """Return the number of the file and the time of its last change.

        Raises:
            CheckpointError: The object does not exist or cannot be read.
        """
        with self._reading("get", key):
            status = self._files.info(self._path(key))
        return Version(f"{status.get('fileId')} {status['modificationTime']}", status["size"])

    def list(self, prefix: str = "") -> Iterator[str]:
        """Yield the keys that begin with `prefix`, sorted by path components."""
        with self._reading("list", prefix):
            keys = list(self._below(prefix.rpartition("/")[0]))
        yield from sorted((key for key in keys if key.startswith(prefix)), key=lambda key: key.split("/"))

    def delete(self, key: str) -> None:
        """Delete the file."""
        with self._writing("delete", key), suppress(FileNotFoundError):
            self._files.rm_file(self._path(key))

    @property
    def _files(self) -> Any:
        """The connection of this thread and process."""
        user = {"user": name} if (name := environ.get("HADOOP_USER_NAME")) else {}
        files = self._fsspec.filesystem("webhdfs", **self._where, **user)
        if files.session not in _prepared:
            _prepared.add(files.session)
            adapters = self._requests.adapters
            for scheme in ("http://", "https://"):
                files.session.mount(scheme, adapters.HTTPAdapter(max_retries=adapters.Retry(**_RETRIES)))
            files.session.request = partial(files.session.request, timeout=_TIMEOUT)
        return files

    @contextmanager
    def _staged(self, source: BinaryIO) -> Iterator[str]:
        """Write a staging file, and delete it at the end if it still has its name."""
        staged = self._path(f"{_STAGING}/{secrets.token_hex(8)}")
        try:
            with self._files.open(staged, "wb", block_size=_BLOCK_BYTES) as target:
                shutil.copyfileobj(source, target)
            if (size := self._files.info(staged)["size"]) != source.tell():
                raise OSError(f"{size} bytes of {source.tell()} were stored")
            yield staged
        finally:
            with suppress(OSError, RuntimeError, ValueError):
                self._files.rm_file(staged)

    def _rename(self, staged: str, key: str, option: str) -> None:
        target = self._path(key)
        self._files.makedirs(posixpath.dirname(target), exist_ok=True)
        answer = self._files._call(
            "RENAME", method="put", path=staged, destination=target, renameoptions=option
        )
        if answer.content:  # what an interface without `renameoptions` answers
            raise OSError("the server does not know renameoptions; name the name node, not HttpFS")

    def _status(self, key: str) -> Any:
        try:
            return self._files.info(self._path(key))
        except FileNotFoundError:
            return None

    def _below(self, folder: str) -> Iterator[str]:
        """Yield the keys of the files in a folder and in its subfolders."""
        try:
            entries = self._files.ls(self._path(folder), detail=True)
        except FileNotFoundError:
            return
        for entry in entries:
            key = f"{folder}/{entry['pathSuffix']}".lstrip("/")
            if entry["type"] == "directory":
                yield from self._below(key) if key != _STAGING else ()
            elif entry["pathSuffix"]:
                yield key

    def _path(self, key: str) -> str:
        return posixpath.join(self._root, key).rstrip("/") or "/"

    @contextmanager
    def _reading(self, verb: str, key: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise CheckpointError(f"{self._url}/{key}: no such object") from error
        except (OSError, RuntimeError, ValueError) as error:
            raise CheckpointError(f"{verb} {self._url}/{key}: {_brief(error)}") from error

    @contextmanager
    def _writing(self, verb: str, key: str) -> Iterator[None]:
        try:
            yield
        except (OSError, RuntimeError, ValueError) as error:
            raise OSError(f"{verb} {self._url}/{key}: {_brief(error)}") from error


def _brief(error: Exception) -> str:
    """Return what an error says in one line, without the parameters of URLs, which may hold a token."""
    text = str(error).strip() or type(error).__name__
    if (host := _POOL.search(text)) is not None:  # how urllib3 says that it could not talk to a host
        reason = "no answer in time" if "timed out" in text else "the connection failed"
        if known := _ERRNO.search(text):
            reason = known[1].strip().lower()
        return (
            f"{host[1]}:{host[2]} cannot be reached: {reason}; it must be the web interface of a running "
            "name node (dfs.namenode.http-address), or a data node that it named"
        )
    return re.sub(r"\?\S+", "", text.splitlines()[0])[:300]
