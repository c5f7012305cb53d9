"""Azure Blob Storage on loopback: Microsoft's emulator Azurite, behind a proxy that injects troubles.

Azurite is a program for Node.js: `npm install --global azurite`, or in a folder that `AZURITE` names the
program `azurite-blob` of. Without it, the tests that need it are skipped.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import shutil
import subprocess
import threading
import urllib.request
from collections.abc import Callable, Iterable
from email.utils import formatdate
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from uuid import uuid4

from troubled_server import Environ, TroubledServer

# The account of every emulator, which Microsoft documents.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_HOP = {"connection", "transfer-encoding", "keep-alive", "date", "server"}
_LISTENS = re.compile(rb"listen\w* \w+ http://127\.0\.0\.1:(\d+)")
_START = 100.0  # seconds


def azurite() -> str | None:
    """The emulator's program, or None."""
    beside = Path(__file__).parent.parent / ".azurite" / "node_modules" / ".bin" / "azurite-blob"
    named = os.environ.get("AZURITE") or (str(beside) if beside.exists() else "azurite-blob")
    return shutil.which(named)


class AzServer(TroubledServer):
    """An Azure Blob Storage service; what it holds is in memory."""

    def __init__(self, program: str, folder: Path) -> None:
        options = [
            "--blobHost",
            "127.0.0.1",
            "--blobPort",
            "0",
            "--skipApiVersionCheck",
            "--disableTelemetry",
        ]
        self._process = subprocess.Popen(
            [program, *options, "--inMemoryPersistence"], cwd=folder, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        timer = threading.Timer(_START, self._process.kill)  # then its output ends
        timer.start()
        self._port = next(int(match[1]) for line in self._process.stdout if (match := _LISTENS.search(line)))
        timer.cancel()
        threading.Thread(target=self._process.stdout.read, daemon=True).start()  # or the pipe would be full
        super().__init__(self._forwarded)

    def close(self) -> None:
        super().close()
        self._process.terminate()
        self._process.wait(30)

    def new_bucket(self) -> str:
        name = f"container-{uuid4().hex[:12]}"
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
        resource = f"/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
        signed = "\n".join(
            ["PUT", *[""] * 11, *(f"{key}:{value}" for key, value in headers.items()), resource]
        )
        signature = hmac.new(base64.b64decode(KEY), signed.encode(), hashlib.sha256).digest()
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(signature).decode()}"
        headers["Content-Length"] = "0"
        url = f"{self.url}/{ACCOUNT}/{name}?restype=container"
        urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers), timeout=30).close()
        return f"az://{name}"

    def environment(self) -> dict[str, str]:
        return {
            "AZURE_STORAGE_ENDPOINT": f"{self.url}/{ACCOUNT}",
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": KEY,
        }

    def _forwarded(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Send a request on to the emulator."""
        length = int(environ.get("CONTENT_LENGTH") or 0)
        headers = {
            name.removeprefix("HTTP_").replace("_", "-"): value
            for name, value in environ.items()
            if name.startswith("HTTP_") or (name == "CONTENT_TYPE" and value)
        }
        connection = HTTPConnection("127.0.0.1", self._port, timeout=60)
        connection.request(
            environ["REQUEST_METHOD"],
            environ["RAW_URI"],
            environ["wsgi.input"].read(length),
            headers | {"CONTENT-LENGTH": str(length)},
        )
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        kept = [(name, value) for name, value in answer.getheaders() if name.lower() not in _HOP]
        start_response(f"{answer.status} {answer.reason}", kept)
        return [content]
