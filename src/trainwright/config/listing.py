"""List what the sections of a config may hold: keys, and the types that some of them are chosen by."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from trainwright.config.adapters import Kind
from trainwright.config.schema import RunConfig
from trainwright.config.words import tag, without_null
from trainwright.errors import InputError

WHOLE = "config"
_UNIONS = {"transform": "data.transforms", "scheduler": "training.scheduler", "pruner": "tuning.pruner"}


def kinds() -> dict[str, str]:
    """Return what names can be listed for, with what is listed."""
    named = dict.fromkeys(sorted([*get_args(Kind), *_UNIONS]), "names")
    return named | {name: "keys of this section" for name in RunConfig.model_fields if name not in named}


def keys_of(section: str) -> dict[str, str]:
    """Return the keys of a section of the config, or the types that it is chosen from, with descriptions.

    Args:
        section: A dotted key (`data.split`, `training.scheduler`, `training.scheduler.cosine`); `config`: all
            sections; `transform`, `scheduler` or `pruner`.

    Raises:
        InputError: There is no such section.
    """
    found: Any = RunConfig
    path = "" if section == WHOLE else _UNIONS.get(section, section)
    for name in filter(None, path.split(".")):
        if _is_section(found) and name in found.model_fields:
            found = without_null(found.model_fields[name].annotation)
        elif name in (types := _types(found)):
            found = types[name]
        elif name != "type" or not types:
            raise InputError(f"there are no names of {section!r}; allowed: {', '.join(kinds())}")
    if _is_section(found):
        return {key: field.description or "" for key, field in found.model_fields.items()}
    if types := _types(found):
        return {name: _summary(member) for name, member in types.items()}
    above = path.rpartition(".")[0]
    raise InputError(f"{section} is one value: `trainwright config names {above}` describes it")


def _types(annotation: Any) -> dict[str, type[BaseModel]]:
    """Return the sections that a key chooses from by `type`."""
    return {str(name): member for member in _members(annotation) if (name := tag(member))}


def _is_section(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, BaseModel)


def _members(annotation: Any) -> Iterator[Any]:
    """Return the sections that a type is a union of, also within `Annotated` and lists."""
    if _is_section(annotation):
        yield annotation
    elif get_origin(annotation) is not None or get_args(annotation):
        for inner in get_args(annotation):
            yield from _members(inner)


def _summary(section: type[BaseModel]) -> str:
    return (section.__doc__ or "").strip().split("\n")[0].rstrip(".")
