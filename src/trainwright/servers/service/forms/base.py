"""The contract of forms, and the reading of JSON."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from trainwright.servers.service.errors import RequestError, invalid, malformed

JSON = "application/json"
_JSON_LIKE = re.compile(rb"\s*[\[{\"\d-]|\s*(null|true|false)\b|\s*$")
_PLACE = re.compile(r"^(.*?) - at `\$(.*)`$", re.DOTALL)
_PATH = re.compile(r"^(?:\.(rows|columns))?(?:\[(\d+)\])?(?:\.(.*?))?(?:\[(\d+)\])?$", re.DOTALL)


class Rows(NamedTuple):
    """The rows of a request.

    Attributes:
        content: What the form made of them: a list, which is joined with those of other requests, or a table.
        number: How many there are.
        by_column: Whether the request gave columns, so that the answer has columns, too.
    """

    content: Any
    number: int
    by_column: bool = False

    @property
    def is_joinable(self) -> bool:
        """True if the rows can be predicted together with those of other requests."""
        return isinstance(self.content, list)


class Form(ABC):
    """The form of requests to one model."""

    noun = "rows"

    def read(self, body: bytes, content_type: str, charset: str | None) -> Rows:
        """Return the rows of a body.

        Raises:
            RequestError: It cannot be read, or holds no rows.
        """
        reader = self.readers().get(content_type or JSON)
        if reader is None:
            known = ", ".join(self.readers())
            if content_type == "multipart/form-data":
                known += "; send the file itself as the body (curl --data-binary @FILE)"
            raise RequestError(
                415,
                "unknown_content_type",
                f"content type {content_type[:80]!r} given; this model takes {known}",
            )
        try:
            rows = reader(body, charset)
        except RequestError:
            raise
        except RecursionError:
            raise malformed("the JSON is nested too deeply") from None
        if rows.number == 0:
            raise invalid(f"the request holds no {self.noun}")
        return rows

    @abstractmethod
    def readers(self) -> Mapping[str, Callable[[bytes, str | None], Rows]]:
        """Return the readers of bodies, by content type."""

    def joined(self, parts: Sequence[Any]) -> Any:
        """Return what the predictor takes, of the contents of some requests."""
        return [one for part in parts for one in part]

    def quick(self, parts: Sequence[Any]) -> Any:
        """Return the same as the predictor takes it fastest; it may refuse what `joined` makes readable."""
        return self.joined(parts)

    @abstractmethod
    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of a body, with an example."""


def decoded(
    body: bytes,
    decoder: msgspec.json.Decoder[Any],
    misplaced: Callable[[str], RequestError] | None = None,
) -> Any:
    """Return what a JSON body holds.

    Raises:
        RequestError: It is no JSON, or holds something else; names row and column.
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise (misplaced or _misplaced)(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if isinstance(error, UnicodeDecodeError):
            raise malformed("the body is not UTF-8, as JSON must be") from None
        hint = "; NaN and Infinity are no JSON: write null" if re.search(rb"NaN|Infinity", body) else ""
        if not _JSON_LIKE.match(body):
            hint = "; of a body that is not JSON, name the Content-Type"
        raise malformed(f"{_lower(str(error))}{hint}") from None
    except RecursionError:
        raise malformed("the JSON is nested too deeply") from None


def _lower(text: str) -> str:
    return text if text.startswith("JSON") else text[:1].lower() + text[1:]


def _misplaced(message: str) -> RequestError:
    """Return the error of a JSON body with something else in some place."""
    found = _PLACE.match(message)
    what, path = found.groups() if found else (message, "")
    place = _PATH.match(path)
    if place is None:
        return invalid(f"{_lower(what)} at {path[:100]}")
    _, first, column, second = place.groups()
    row = next((int(one) + 1 for one in (first, second) if one is not None), None)
    if lacking := re.match(r"Object missing required field `(.*)`", what, re.DOTALL):
        column, what = lacking[1], "there is no value; write null if it is missing"
    else:
        what = _in_words(what)
    where = ", ".join([*([f"row {row}"] if row else []), *([f"column {column!r}"] if column else [])])
    return invalid(f"{where}: {what}" if where else what, row, column)


def _in_words(what: str) -> str:
    """Return a message of msgspec in the words of JSON."""
    words = {"`bool | int | float | str | null`": "a number, text, a boolean or null"}
    for theirs, ours in words.items():
        what = what.replace(theirs, ours)
    return _lower(what)
