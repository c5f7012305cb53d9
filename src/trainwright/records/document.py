"""Typed records, and the files that hold one each."""

from __future__ import annotations

import json
import math
from json.encoder import encode_basestring_ascii as _quoted
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trainwright.digest import sha256_bytes
from trainwright.errors import CheckpointError, OtherFormatError
from trainwright.records.journal import finite
from trainwright.safe_files import read_regular, write_atomically

FORMAT = 2
# The name of a run, study or file beside this one, whose record may come from someone else: never a path.
Name = Annotated[str, Field(pattern=r"^[^/.\x00][^/\x00]*$")]
_LISTS, _NOT_NUMBERS = (list, tuple), (list, tuple, dict, str)
_encode = json.JSONEncoder(allow_nan=False).encode
_CHECKSUM = "sha256"
_CHANGED = "its content is not what was written"
_SHOWN_ERRORS = 2  # of a record that does not have the expected fields


class OtherFormat(ValueError):  # noqa: N818 - what reads a whole file makes an error of it
    """The format of a file that another version of Trainwright wrote; its text follows the file's name."""

    def __init__(self, found: object, ours: int) -> None:
        super().__init__(
            f"was written by another version of Trainwright (format {found}; this one reads {ours}): "
            "use that version"
        )


class Record(BaseModel):
    """Part of a document. Fields that this version does not know are kept as they are."""

    model_config = ConfigDict(frozen=True, extra="allow")

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON holds it; numbers that are not finite become strings."""
        data: dict[str, Any] = _plain(self.model_dump())
        return data


class Document(Record):
    """A record that is a JSON file of its own, with the SHA-256 of its content inside it."""

    format: int = FORMAT

    @classmethod
    def load(cls, path: Path, *, depth: int = 1) -> Self | None:
        """Read a file, or return None if there is none; `depth` as in `open_regular`.

        Raises:
            OtherFormatError: The file is of another format.
            CheckpointError: The file is damaged, or cannot be read.
        """
        try:
            content = read_regular(path, depth=depth)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
        try:
            return cls.parse(content)
        except OtherFormat as error:
            raise OtherFormatError(f"{path} {error}") from error
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{path} is damaged: {error}") from error

    @classmethod
    def parse(cls, content: bytes) -> Self:
        """Return the record in a file's content.

        Raises:
            OtherFormat: It is of another format.
            ValueError: The content is not what `save` wrote.
        """
        data = parse_json(content)
        if (version := data.get("format")) != FORMAT:
            raise OtherFormat(version, FORMAT)
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise ValueError(_brief(error)) from error

    def save(self, path: Path, *, depth: int = 1) -> None:
        """Write the file: after a crash there is the old or the new one, whole; `depth` as in `open_regular`.

        Raises:
            OSError: The file cannot be written.
        """
        write_atomically(path, self.encoded(), depth=depth)

    def encoded(self) -> bytes:
        """Return the content of the file."""
        try:
            return dump(self.model_dump())
        except ValueError:  # a number is not finite, which is rare
            return dump(self.to_json())


def dump(data: dict[str, Any]) -> bytes:
    """Return JSON, encoded as UTF-8, with the SHA-256 of its content in it.

    Keys that are not text become text: JSON has no others.
    """
    shown, canonical = _encoded(data, 1)
    before = f"{shown[:-2]}," if data else "{"
    return f'{before}\n "{_CHECKSUM}": "{sha256_bytes(canonical.encode())}"\n}}\n'.encode()


def _encoded(value: Any, depth: int = 0) -> tuple[str, str]:
    """Return JSON as it is shown, and as it is hashed: with sorted keys, and without white space.

    From a depth of 1 on, each key is shown on a line of its own, and each list on one. Numbers take most of
    the time, so both texts are made of them at once; and the standard library's encoder with `indent` is
    written in Python, and takes ten times as long.
    """
    if isinstance(value, dict) and value:
        return _encoded_object(value, depth)
    if not isinstance(value, _LISTS):
        return (text := _encode(value)), text
    if not (value and isinstance(value[0], _NOT_NUMBERS)) and '"' not in (text := _encode(value)):
        return text, text.replace(", ", ",")
    parts = [_encoded(child) for child in value]
    return f"[{', '.join([shown for shown, _ in parts])}]", f"[{','.join([plain for _, plain in parts])}]"


def _encoded_object(value: dict[Any, Any], depth: int) -> tuple[str, str]:
    start, between, inner = ("\n" + " " * depth, ",\n" + " " * depth, depth + 1) if depth else ("", ", ", 0)
    if {*map(type, value)} != {str}:
        value = {key if isinstance(key, str) else _text_of(key): child for key, child in value.items()}
    lines, by_key = [], {}
    for key, child in value.items():
        name = _quoted(key)
        if isinstance(child, str):
            shown = plain = _quoted(child)
        elif child is None:
            shown = plain = "null"
        elif type(child) is int:
            shown = plain = str(child)
        else:
            shown, plain = _encoded(child, inner)
        lines.append(f"{name}: {shown}")
        by_key[key] = f"{name}:{plain}"
    plain = ",".join([by_key[key] for key in sorted(by_key)])
    return f"{{{start}{between.join(lines)}{start[:-1]}}}", f"{{{plain}}}"


def _text_of(key: Any) -> str:
    """Return a key as the encoder makes text of it."""
    (text,) = json.loads(_encode({key: None}))
    return str(text)


def parse_json(content: bytes) -> dict[str, Any]:
    """Return what `dump` encoded.

    Raises:
        ValueError, RecursionError: The content is not what was written.
    """
    data = json.loads(content)
    if not isinstance(data, dict):
        raise ValueError("it does not hold a JSON object")
    if data.pop(_CHECKSUM, None) != _checksum(data):
        raise ValueError(_CHANGED)
    return data


def _checksum(data: dict[str, Any]) -> str:
    return sha256_bytes(json.dumps(data, sort_keys=True, separators=(",", ":")).encode())


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(child) for child in value]
    return finite(value) if isinstance(value, float) and not math.isfinite(value) else value


def _brief(error: ValidationError) -> str:
    problems = [
        f"{'.'.join(map(str, problem['loc'])) or 'it'}: {problem['msg']}" for problem in error.errors()
    ]
    more = f" and {len(problems) - _SHOWN_ERRORS} more" if len(problems) > _SHOWN_ERRORS else ""
    return "; ".join(problems[:_SHOWN_ERRORS]) + more
