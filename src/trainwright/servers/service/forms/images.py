"""Images: files, or their content in JSON."""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from trainwright.servers.service.errors import invalid
from trainwright.servers.service.forms.base import JSON, Form, Rows, decoded


class ImageForm(Form):
    """Images: the content of image files.

    Args:
        shape: The shape of an image as the model takes it: (channels, height, width).
    """

    noun = "images"

    def __init__(self, shape: Sequence[int]) -> None:
        self._shape = shape
        body = msgspec.defstruct("Body", [("images", list[str])])
        self._decoder = msgspec.json.Decoder(list[str] | body)

    def readers(self) -> Mapping[str, Callable[[bytes, str | None], Rows]]:
        """Return the readers of bodies, by content type."""
        kinds = ("image/png", "image/jpeg", "image/webp", "image/bmp", "image/gif", "image/tiff")
        return {JSON: self._json, **dict.fromkeys((*kinds, "application/octet-stream"), self._file)}

    def _json(self, body: bytes, _: str | None) -> Rows:
        if body.lstrip()[:1] not in (b"[", b"{"):  # a file without its type, as curl --data-binary sends it
            return self._file(body, None)
        found = decoded(body, self._decoder)
        images = []
        for i, text in enumerate(getattr(found, "images", found)):
            head, comma, _ = text[:100].partition("base64,")
            try:
                content = text[len(head) + len("base64,") :] if comma else text
                images.append(base64.b64decode(content, validate=True))
            except (binascii.Error, ValueError):
                raise invalid(
                    f"image {i + 1}: this is not base64; send the content of an image file in base64", i + 1
                ) from None
        return Rows(images, len(images))

    def _file(self, body: bytes, _: str | None) -> Rows:
        return Rows([body], 1)

    def _example(self) -> str:
        """Return a gray PNG file of the size that the model takes, in base64."""
        from PIL import Image

        _, height, width = self._shape
        Image.new("L", (width, height), 128).save(sink := io.BytesIO(), "PNG")
        return base64.b64encode(sink.getvalue()).decode()

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of a body."""
        images = {
            "type": "array",
            "items": {"type": "string", "format": "byte", "description": "an image file in base64"},
            "minItems": 1,
        }
        return {
            "title": "Images",
            "type": "object",
            "properties": {"images": images},
            "required": ["images"],
            "example": {"images": [self._example()]},
        }
