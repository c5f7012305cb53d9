"""Errors that answer a request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Place(NamedTuple):
    """A cell that is wrong.

    Attributes:
        row: The number of its row in the request, from 1; None where all rows are wrong.
        column: The name of its column; None where the row itself is wrong.
        message: What is wrong with it.
    """

    row: int | None
    column: str | None
    message: str


class RequestError(Exception):
    """A request that gets no predictions.

    Args:
        status: The HTTP status, such as 422.
        code: A short name for programs, such as `invalid_rows`.
        message: What was wrong, and what to do.
        places: The cells that are wrong.
        headers: Headers of the answer.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        places: Sequence[Place] = (),
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.places = places
        self.headers = headers or {}

    def to_json(self) -> dict[str, Any]:
        """Return the body of the answer."""
        found: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.places:
            found["rows"] = [place._asdict() for place in self.places]
        return {"error": found}


def invalid(message: str, row: int | None = None, column: str | None = None) -> RequestError:
    """Return the error of a request whose rows cannot be predicted."""
    return RequestError(422, "invalid_rows", message, [Place(row, column, message)])


def malformed(message: str) -> RequestError:
    """Return the error of a body that cannot be read at all."""
    return RequestError(400, "malformed_body", message)


def full(waiting: int, limit: int) -> RequestError:
    """Return the error of a request that finds the queue full."""
    return RequestError(
        429,
        "queue_full",
        f"{waiting:,} rows wait, and {limit:,} may: send fewer at once, or try again in a second",
        headers={"Retry-After": "1"},
    )


def stopping() -> RequestError:
    """Return the error of a request to a service that stops."""
    return RequestError(503, "stopping", "the service is stopping", headers={"Retry-After": "1"})


def late(seconds: float) -> RequestError:
    """Return the error of a request that waited too long."""
    return RequestError(
        503,
        "timeout",
        f"the request timed out in the queue after {seconds:g} s: try again, or send fewer rows",
        headers={"Retry-After": "1"},
    )
