"""Texts, as JSON or plain."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from trainwright.servers.service.errors import malformed
from trainwright.servers.service.forms.base import JSON, Form, Rows, decoded


class TextForm(Form):
    """Texts, or lists of words.

    Args:
        of_words: Whether a text is a list of words.
    """

    noun = "texts"

    def __init__(self, *, of_words: bool) -> None:
        self.of_words = of_words
        one: Any = list[str] if of_words else str
        body = msgspec.defstruct("Body", [("texts", list[one])])
        self._decoder = msgspec.json.Decoder(list[one] | one | body if not of_words else list[one] | body)

    def readers(self) -> Mapping[str, Callable[[bytes, str | None], Rows]]:
        """Return the readers of bodies, by content type."""
        plain = {} if self.of_words else {"text/plain": self._plain}
        return {JSON: self._json, **plain}

    def _json(self, body: bytes, _: str | None) -> Rows:
        found = decoded(body, self._decoder)
        texts = [found] if isinstance(found, str) else getattr(found, "texts", found)
        return Rows(texts, len(texts))

    def _plain(self, body: bytes, charset: str | None) -> Rows:
        try:
            return Rows([body.decode(charset or "utf-8")], 1)
        except (UnicodeDecodeError, LookupError):
            raise malformed(f"the body is not text in {(charset or 'UTF-8')[:40]}") from None

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of a body."""
        one: dict[str, Any] = {"type": "string"}
        if self.of_words:
            one = {"type": "array", "items": one}
        texts = {"type": "array", "items": one, "minItems": 1}
        example = ["The", "first", "text"] if self.of_words else "The first text."
        return {
            "title": "Texts",
            "oneOf": [{"type": "object", "properties": {"texts": texts}, "required": ["texts"]}, texts],
            "example": {"texts": [example]},
        }
