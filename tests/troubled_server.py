"""An HTTP service on loopback, in threads of the test process, with requests that it fails to answer as it should."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

Environ = dict[str, Any]
App = Callable[[Environ, Callable[..., Any]], Iterable[bytes]]


class Trouble:
    """What happens to some requests: the `calls` (from 1) among those of `method` whose path has `path`."""

    def __init__(self, kind: str, calls: Iterable[int], method: str = "PUT", path: str = "") -> None:
        self.kind, self.calls, self.method, self.path = kind, set(calls), method, path
        self.met = 0

    def concerns(self, environ: Environ) -> bool:
        if environ["REQUEST_METHOD"] != self.method or self.path not in environ["PATH_INFO"]:
            return False
        self.met += 1
        return self.met in self.calls


class TroubledServer:
    """A service, by its WSGI application; `url` is the endpoint."""

    def __init__(self, app: App) -> None:
        from werkzeug.serving import WSGIRequestHandler, make_server

        class Silent(WSGIRequestHandler):
            def log(self, *_: Any) -> None:
                pass

        self._app = app
        self._troubles: list[Trouble] = []
        self._lock = threading.Lock()
        self._server = make_server("127.0.0.1", 0, self._serve, threaded=True, request_handler=Silent)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()

    def new_bucket(self) -> str:
        """Make a bucket and return its URL."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        """The variables with which a process finds the service."""
        raise NotImplementedError

    @contextmanager
    def troubled(self, *troubles: Trouble) -> Iterator[None]:
        self._troubles = list(troubles)
        try:
            yield
        finally:
            self._troubles = []

    def _serve(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        with self._lock:
            kinds = [trouble.kind for trouble in self._troubles if trouble.concerns(environ)]
        for kind in kinds:
            if kind == "slow":
                time.sleep(0.3)  # the trouble itself, not a wait for something
            if kind.startswith("lost"):  # it takes effect, but the answer is another
                list(self._app(environ, lambda *_: None))
            if kind in ("500", "lost"):
                return self._failed("500 Internal Server Error", start_response)
            if kind.endswith("503"):
                return self._failed("503 Service Unavailable", start_response)
        body = self._app(environ, start_response)
        return [b"".join(body)[:-100]] if "cut" in kinds else body

    def _failed(self, status: str, start_response: Callable[..., Any]) -> Iterable[bytes]:
        body = b"<Error><Code>InternalError</Code><Message>injected</Message></Error>"
        start_response(status, [("Content-Length", str(len(body)))])
        return [body]
