"""A name node and a data node that speak WebHDFS, on loopback; what they hold is in memory.

No cluster can be had for the tests. This does what Hadoop 3 does, as far as its sources say
(`NamenodeWebHdfsMethods`, `FSDirRenameOp`): the name node redirects what carries data to the data node, and
`RENAME` with `renameoptions` refuses (NONE) or replaces (OVERWRITE) an existing file in one step.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any
from urllib.parse import parse_qs
from uuid import uuid4

from troubled_server import Environ, TroubledServer

_PREFIX = "/webhdfs/v1"


class Refused(Exception):
    """What Hadoop answers with a status and the name of an exception."""

    def __init__(self, exception: str, message: str, status: str = "403 Forbidden") -> None:
        super().__init__(message)
        self.exception, self.status = exception, status


class HdfsServer(TroubledServer):
    """An HDFS cluster; `knows_options` is False for HttpFS, which renames without `renameoptions`."""

    def __init__(self) -> None:
        super().__init__(self._answer)
        self.knows_options = True
        self.files: dict[str, bytes] = {}
        self._folders = {"/"}
        self._ids = count(16386)
        self._inodes: dict[str, int] = {}
        self._state = threading.RLock()

    def new_bucket(self) -> str:
        return f"{self.url.replace('http', 'hdfs')}/{uuid4().hex[:12]}"

    def environment(self) -> dict[str, str]:
        return {"HADOOP_USER_NAME": "tester"}

    def _answer(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        query = {key: values[0] for key, values in parse_qs(environ["QUERY_STRING"]).items()}
        data = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        path = environ["PATH_INFO"].removeprefix(_PREFIX) or "/"
        try:
            with self._state:
                status, headers, content = getattr(self, f"_{query['op'].lower()}")(
                    path, query, data, environ
                )
        except Refused as refused:
            said = {"exception": refused.exception, "message": str(refused)}
            status, headers, content = refused.status, [], json.dumps({"RemoteException": said}).encode()
        start_response(status, [*headers, ("Content-Length", str(len(content)))])
        return [content]

    def _done(self, value: Any = None) -> Any:
        return "200 OK", [("Content-Type", "application/json")], json.dumps(value).encode() if value else b""

    def _redirected(self, environ: Environ) -> Any:
        to = f"{self.url}{_PREFIX}{environ['PATH_INFO'].removeprefix(_PREFIX)}?{environ['QUERY_STRING']}&datanode=1"
        return "307 Temporary Redirect", [("Location", to)], b""

    def _status(self, path: str, suffix: str) -> dict[str, Any]:
        if path in self.files:
            times = {"fileId": self._inodes[path], "modificationTime": 1_700_000_000_000 + self._inodes[path]}
            return {"type": "FILE", "length": len(self.files[path]), "pathSuffix": suffix, **times}
        if path in self._folders:
            return {
                "type": "DIRECTORY",
                "length": 0,
                "pathSuffix": suffix,
                "fileId": 0,
                "modificationTime": 0,
            }
        raise Refused("FileNotFoundException", f"File does not exist: {path}", "404 Not Found")

    def _getfilestatus(self, path: str, *_: Any) -> Any:
        return self._done({"FileStatus": self._status(path, "")})

    def _liststatus(self, path: str, *_: Any) -> Any:
        inside = f"{path.rstrip('/')}/"
        names = {
            other.removeprefix(inside).split("/")[0]
            for other in (*self.files, *self._folders)
            if other.startswith(inside)
        }
        statuses = [self._status(inside + name, name) for name in sorted(names - {""})]
        own = self._status(path, "")
        return self._done({"FileStatuses": {"FileStatus": [own] if own["type"] == "FILE" else statuses}})

    def _mkdirs(self, path: str, *_: Any) -> Any:
        parts = path.strip("/").split("/")
        self._folders |= {"/" + "/".join(parts[:i]) for i in range(1, len(parts) + 1)}
        return self._done({"boolean": True})

    def _create(self, path: str, query: dict[str, str], data: bytes, environ: Environ) -> Any:
        if "datanode" not in query:
            return self._redirected(environ)
        if path in self.files and query.get("overwrite") != "true":
            raise Refused("FileAlreadyExistsException", f"{path} already exists")
        self._mkdirs(path.rpartition("/")[0])
        self.files[path], self._inodes[path] = data, next(self._ids)
        return "201 Created", [], b""

    def _append(self, path: str, query: dict[str, str], data: bytes, environ: Environ) -> Any:
        self._status(path, "")
        if "datanode" not in query:
            return self._redirected(environ)
        self.files[path] += data
        return self._done()

    def _open(self, path: str, query: dict[str, str], data: bytes, environ: Environ) -> Any:
        self._status(path, "")
        if "datanode" not in query:
            return self._redirected(environ)
        start = int(query.get("offset", 0))
        return "200 OK", [], self.files[path][start : start + int(query.get("length", 1 << 40))]

    def _delete(self, path: str, *_: Any) -> Any:
        return self._done({"boolean": self.files.pop(path, None) is not None})

    def _rename(self, path: str, query: dict[str, str], *_: Any) -> Any:
        target, option = query["destination"], query.get("renameoptions")
        if not self.knows_options or option is None:
            is_done = path in self.files and target not in self.files
            if is_done:
                self.files[target], self._inodes[target] = self.files.pop(path), self._inodes.pop(path)
            return self._done({"boolean": is_done})
        if path not in self.files:
            raise Refused("FileNotFoundException", f"rename source {path} is not found.", "404 Not Found")
        if target in self.files and option != "OVERWRITE":
            raise Refused("FileAlreadyExistsException", f"rename destination {target} already exists")
        if target.rpartition("/")[0] not in self._folders:
            message = f"rename destination parent {target} not found."
            raise Refused("FileNotFoundException", message, "404 Not Found")
        self.files[target], self._inodes[target] = self.files.pop(path), self._inodes.pop(path)
        return self._done()
