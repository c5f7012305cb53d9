"""Google Cloud Storage on loopback: its XML interface is that of S3 with other headers, so moto's S3 serves it.

No emulator that can be installed has this interface with conditional puts: gcp-storage-emulator (0.x, PyPI)
ignores `x-goog-if-generation-match`, and neither lists nor deletes nor takes an upload in parts there;
fake-gcs-server is a program in Go. So this is how the service behaves as far as its documentation says
(https://cloud.google.com/storage/docs/xml-api), not the service: uploads in parts, listing and errors are
moto's, generations and their conditions are made here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any
from urllib.parse import quote

from s3_server import S3Server
from troubled_server import App, Environ

TOKEN = "test-secret-of-this-server"
_SIGNED = (
    "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
)


class GsServer(S3Server):
    """A Google Cloud Storage service."""

    scheme = "gs"

    def __init__(self) -> None:
        super().__init__()
        self._s3: App = self._app
        self._app = self._translated
        self._numbers = count(1_700_000_000_000_000)
        self._generations: dict[str, int] = {}

    def environment(self) -> dict[str, str]:
        return {"GOOGLE_BASE_URL": self.url, "GOOGLE_BEARER_TOKEN": TOKEN}

    def _translated(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        if environ.pop("HTTP_AUTHORIZATION", None) == f"Bearer {TOKEN}":
            environ["HTTP_AUTHORIZATION"] = _SIGNED
        # Clients quote all of a name (`a%2Fkey`), and moto reads it as it was quoted.
        environ["RAW_URI"] = environ["REQUEST_URI"] = f"{quote(path)}?{environ['QUERY_STRING']}"
        if environ.get("HTTP_X_GOOG_IF_GENERATION_MATCH") == "0":
            environ["HTTP_IF_NONE_MATCH"] = "*"

        def answer(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            is_part = "partNumber=" in environ["QUERY_STRING"]
            if method in ("PUT", "POST") and status.startswith("2") and not is_part:
                self._generations[path] = next(self._numbers)
            if path in self._generations:
                headers = [*headers, ("x-goog-generation", str(self._generations[path]))]
            return start_response(status, headers, *rest)

        return self._s3(environ, answer)
