"""HTTP/1.1 with limits on the heads of requests, and an end that loses none; uvicorn has neither."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_SECONDS = 30.0  # for a head to come
_LAST_SECONDS = 1.0  # for a request that was on its way when the service was told to end
_BYTES = 1 << 16  # of a head that is not complete
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class LimitedProtocol(HttpToolsProtocol):
    """A connection, which is closed where a head takes too long, or is too large."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._is_in_head = True
        self._size = 0  # bytes of a head that is not complete
        self._timer: asyncio.TimerHandle | None = None
        self._is_ending = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a head."""
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what has come, and refuse a head that is too large."""
        super().data_received(data)
        if not self._is_in_head or self.transport.is_closing():
            return
        self._size += len(data)
        if self._size > _BYTES:
            self.transport.write(_TOO_LARGE)
            self.transport.close()
        elif self._timer is None:
            self._wait()

    def on_message_begin(self) -> None:
        """Begin a head."""
        super().on_message_begin()
        self._is_in_head, self._size = True, 0

    def on_headers_complete(self) -> None:
        """End a head."""
        self._is_in_head = False
        self._stop_waiting()
        super().on_headers_complete()
        if self._is_ending:
            self.cycle.keep_alive = False

    def shutdown(self) -> None:
        """End the connection after its request; one without a request waits a moment for it."""
        self._is_ending = True
        if self._is_idle():
            self.loop.call_later(_LAST_SECONDS, self._close_idle)
        else:
            super().shutdown()

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _close_idle(self) -> None:
        if self._is_idle():
            self.transport.close()

    def _wait(self) -> None:
        self._timer = self.loop.call_later(_SECONDS, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
