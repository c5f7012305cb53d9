"""A config in which every value is set, with the source of each value."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from trainwright.config.emit import emit
from trainwright.config.env import DATA_PATHS, VARIABLE, is_public_path
from trainwright.config.fields import affects
from trainwright.config.schema import PLACEMENT, RunConfig
from trainwright.config.tree import DEFAULT, Source, join
from trainwright.config.versions import is_reference
from trainwright.redact import is_secret, redacted

log = logging.getLogger("trainwright")
T = TypeVar("T", bound=BaseModel)
_SHORTEST = 4  # characters; a shorter value is not a secret, and occurs in too many words


@dataclass(frozen=True)
class Resolved:
    """The result of `load`.

    Attributes:
        config: The config, with `${env:NAME}` expanded.
        sources: The source of each value, by dotted key of `flatten(config)`.
        notes: One line for each key that was translated or dropped, for the log.
        unused: One line for each key that is set but has no effect, for warnings.
        folder: The folder of the config's file; None: it was given as a mapping.
        templates: The texts with `${env:NAME}`, by dotted key. What is written to disk has these instead of
            the values, which may be secrets.
    """

    config: RunConfig
    sources: Mapping[str, Source] = field(default_factory=dict)
    notes: Sequence[str] = ()
    templates: Mapping[str, str] = field(default_factory=dict)
    unused: Sequence[str] = ()
    folder: Path | None = None

    def __repr__(self) -> str:
        """Return one line: all values are in `dump()`."""
        data, model = self.config.data, self.config.model
        return f"<Resolved {self.config.experiment.name}: {model.type} on {data.type if data else 'no data'}>"

    @cached_property
    def nested(self) -> dict[str, Any]:
        """All values, nested as in the config, `${env:NAME}` expanded; nobody changes them."""
        return values(self.config)

    @cached_property
    def bits(self) -> dict[str, Any]:
        """The values that change the result, nested as in the config; nobody changes them."""
        return bits_of(self.config)

    def _unexpanded(self) -> Any:
        """Return all values, nested as in the config, with `${env:NAME}` unexpanded."""
        return _replace(self.nested, self.templates.get) if self.templates else self.nested

    def dump(self) -> str:
        """Return all values as YAML 1.2, `${env:NAME}` unexpanded; it loads back to an equal config."""
        return emit(self.nested, self.templates)

    def flat(self) -> dict[str, Any]:
        """Return all values by dotted key, `${env:NAME}` unexpanded; may contain secrets in clear text."""
        return flat_values(self._unexpanded())

    def data_paths(self) -> dict[str, str]:
        """Return the paths of the data that `${env:NAME}` is a part of, expanded, by dotted key.

        A run keeps them, so that it knows its files where the variables are not set, or name others. Those
        that may hold a secret are left out.
        """
        given = {key: template for key, template in self.templates.items() if key in DATA_PATHS}
        texts = {key: getattr(self.config.data, key.removeprefix("data.")) for key in given}
        return {key: str(text) for key, text in texts.items() if text and is_public_path(given[key], text)}

    def versions(self) -> dict[str, str]:
        """Return the exact versions of data that the config names, by dotted key."""
        data = self.config.data
        if data is None or not data.has_versions:
            return {}
        paths = {key: getattr(data, key.removeprefix("data.")) for key in DATA_PATHS}
        found = {key: path for key, path in paths.items() if path is not None and is_reference(path)}
        if (system := data.version_system) is not None:
            kind, section = system
            found[f"data.{kind}.{section.revision_key}"] = section.revision
        return found

    @property
    def settings(self) -> list[str]:
        """The dotted keys of the values that the user set; all others are defaults."""
        return [key for key, source in self.sources.items() if not source.file.startswith(DEFAULT.file)]

    def log_notes(self) -> None:
        """Log what was translated or dropped, and warn of the rest."""
        for note in self.notes:
            log.info("config: %s", note)
        for warning in self.warnings():
            log.warning("config: %s", warning)

    def warnings(self) -> list[str]:
        """Return a sentence for each setting without effect, and for each secret in clear text."""
        secrets = [
            f"{key} holds a secret in clear text, which config.yaml keeps: use ${{env:NAME}}"
            for key, value in self.flat().items()
            if any(is_secret(key, item) for item in (value if isinstance(value, list) else [value]))
        ]
        return [*self.unused, *secrets]

    def config_hash(self) -> str:
        """Return the SHA-256 (hex) of all values, `${env:NAME}` unexpanded."""
        return _hash(self._unexpanded())

    def computation_hash(self) -> str:
        """Return the SHA-256 (hex) of the values that change the result, `${env:NAME}` expanded."""
        return _hash(self.bits)

    def placement(self, *, explicit: bool = False) -> dict[str, Any]:
        """Return where the run is to be computed, by dotted key.

        Args:
            explicit: Leave out what is not set, or set to null.
        """
        flat = flat_values(self.nested)
        return {
            key: flat[key]
            for key in PLACEMENT
            if key in flat  # data that are given in Python may have no section
            if not explicit or (flat[key] is not None and self.sources.get(key, DEFAULT) != DEFAULT)
        }

    def with_placement(self, values: Mapping[str, Any]) -> Resolved:
        """Return the same computation with another placement: `values` by dotted key."""
        config = self.config
        for key in PLACEMENT:
            if key in values and (config.data is not None or not key.startswith("data.")):
                config = _with_value(config, key.split("."), values[key])
        return replace(self, config=config)

    def computation(self) -> dict[str, Any]:
        """Return the values that `computation_hash` covers, by dotted key, to compare two runs.

        A value from `${env:NAME}` is unexpanded, with a fingerprint: it may be a secret, and this is stored.
        The manifest does the same with secrets in clear text.
        """

        def leaf(path: str, value: Any) -> Any:
            if path not in self.templates:
                return value
            return f"{self.templates[path]} (sha256 {hashlib.sha256(str(value).encode()).hexdigest()[:8]})"

        return flat_values(_replace(self.bits, leaf))

    def hide(self, text: str) -> str:
        """Return a text as it may be stored: values from `${env:NAME}` are unexpanded, the rest is redacted.

        A message of a library or of the user's code may hold any value of the config.
        """
        names = self._expanded()
        if names:
            longest_first = sorted(names, key=len, reverse=True)
            text = re.sub("|".join(map(re.escape, longest_first)), lambda match: names[match[0]], text)
        return redacted(text)

    def _expanded(self) -> dict[str, str]:
        """Return the values from the environment, as messages may spell them, with their templates."""
        texts: dict[str, str] = {}

        def leaf(path: str, value: Any) -> Any:
            if path in self.templates and value is not None and not isinstance(value, bool):
                texts.update(_variables(self.templates[path], str(value)))
                texts[str(value)] = self.templates[path]
            return value

        _replace(self.nested, leaf)
        spelled = {spelling: name for text, name in texts.items() for spelling in (text, repr(text)[1:-1])}
        return {text: name for text, name in spelled.items() if len(text) >= _SHORTEST}


def values(model: BaseModel) -> dict[str, Any]:
    """Return the fields as plain values; unlike `model_dump(mode="json")`, this keeps infinities."""
    return dict(to_jsonable_python(model.model_dump(), inf_nan_mode="constants"))


def flatten(config: RunConfig) -> dict[str, Any]:
    """Return all values by dotted key; the items of a list of mappings by their index (`tracking.0.type`).

    `${env:NAME}` is expanded here: for what is shown or stored, use `Resolved.flat`.
    """
    return flat_values(values(config))


def flat_values(value: Any) -> dict[str, Any]:
    """Return the values of nested mappings by dotted key; see `flatten`."""
    flat: dict[str, Any] = {}

    def add(value: Any, path: str) -> None:
        if isinstance(value, dict) and value:
            for name, child in value.items():
                add(child, join(path, name))
        elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
            for index, child in enumerate(value):
                add(child, join(path, index))
        else:
            flat[path] = value

    add(value, "")
    return flat


def _variables(template: str, text: str) -> dict[str, str]:
    """Return the values of a template's variables in its expanded text, each with the variable."""
    parts = VARIABLE.split(template)  # literal, name, literal, ..., name, literal
    match = re.fullmatch("(.*)".join(map(re.escape, parts[::2])), text, re.DOTALL)
    return (
        {value: f"${{env:{name}}}" for value, name in zip(match.groups(), parts[1::2], strict=True)}
        if match
        else {}
    )


def _replace(value: Any, leaf: Callable[[str, Any], Any], path: str = "") -> Any:
    """Return the same tree with `leaf(dotted key, value)` for each plain value."""
    if isinstance(value, dict):
        return {key: _replace(child, leaf, join(path, key)) for key, child in value.items()}
    if isinstance(value, list):
        return [_replace(child, leaf, join(path, index)) for index, child in enumerate(value)]
    return leaf(path, value)


def bits_of(section: BaseModel) -> dict[str, Any]:
    """Return the fields of a config, or of a section, that change the bits."""
    return _bits_of(section, values(section))


def _bits_of(section: BaseModel, plain: dict[str, Any]) -> dict[str, Any]:
    """Delete what does not change the bits from the values of a section, and return them."""
    for name, field_ in type(section).model_fields.items():
        kind, inner = affects(field_), getattr(section, name)
        is_section = kind is None and isinstance(inner, BaseModel)
        if kind in ("record", "placement") or (is_section and not _bits_of(inner, plain[name])):
            del plain[name]
    return plain


def _with_value(section: T, path: Sequence[str], value: Any) -> T:
    """Return a section in which the field at a path has another value."""
    inner = value if len(path) == 1 else _with_value(getattr(section, path[0]), path[1:], value)
    return section.model_copy(update={path[0]: inner})


def _hash(plain: Any) -> str:
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
