"""The bodies of requests."""

from __future__ import annotations

import asyncio
import zlib

from starlette.requests import Request

from trainwright.servers.service.errors import RequestError, malformed


async def read_body(request: Request, limit: int, seconds: float) -> bytes:
    """Return the body of a request, unpacked.

    Raises:
        RequestError: It is larger than `limit` bytes, takes longer than `seconds` to come, or is packed in a
            way that is not known.
    """
    too_large = RequestError(
        413,
        "body_too_large",
        f"a body has at most {limit:,} bytes: send fewer rows, or serve with --max-body",
    )
    if int(request.headers.get("content-length") or 0) > limit:
        raise too_large
    parts, size = [], 0
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                size += len(part)
                if size > limit:
                    raise too_large
                parts.append(part)
    except TimeoutError:
        raise RequestError(408, "slow_body", f"the body did not come within {seconds:g} s") from None
    body = b"".join(parts)
    match request.headers.get("content-encoding", "identity"):
        case "identity":
            return body
        case "gzip" | "deflate" as packing:
            body = _unpacked(body, packing, limit + 1)
            if len(body) > limit:
                raise too_large
            return body
        case other:
            raise RequestError(
                415,
                "unknown_encoding",
                f"content encoding {other[:40]!r} given; gzip, deflate or none can be read",
            )


def _unpacked(body: bytes, packing: str, limit: int) -> bytes:
    """Return the first `limit` bytes of a body that is packed by gzip, in one member or several, or deflate.

    Raises:
        RequestError: It is not, or ends too early.
    """
    parts: list[bytes] = []
    while body and limit > 0:
        unpacker = zlib.decompressobj(31 if packing == "gzip" else 15)
        try:
            parts.append(unpacker.decompress(body, limit))
        except zlib.error:
            raise malformed(f"the body is not packed by {packing}, as its Content-Encoding says") from None
        limit -= len(parts[-1])
        if not unpacker.eof and limit > 0:
            raise malformed(f"the body ends before its {packing} data do")
        body = unpacker.unused_data
    return b"".join(parts)


def content_type(header: str) -> tuple[str, str | None]:
    """Return the content type and the charset of a header."""
    kind, *parameters = header.split(";")
    named = dict(one.strip().lower().partition("=")[::2] for one in parameters)
    charset = named.get("charset", "").strip(' "') or None
    kind = kind.strip().lower()
    # What curl sends where no type is given.
    return "" if kind == "application/x-www-form-urlencoded" else kind, charset
