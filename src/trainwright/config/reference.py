"""The config reference in Markdown, and the names of keys and types, from the schema and the adapters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from trainwright.config.adapters import Adapters, Kind
from trainwright.config.emit import inline
from trainwright.config.fields import affects
from trainwright.config.schema import RunConfig
from trainwright.config.spellings import Spellings
from trainwright.config.tree import join
from trainwright.config.words import describe, tag, without_null
from trainwright.errors import InputError

HEAD = """\
# Config reference

Made from the schema; do not edit it by hand. A section that names a `type` takes the options of that type
beside it, or in `params`; the name alone (`model: mlp`) means `{type: mlp}`.

`bits` marks keys that change the result of a run: a run can only be resumed with these unchanged. `record`
marks keys that change only what is kept of it, or its name. `placement` marks keys that say where it is
computed, or how it reads: they may differ from one attempt to the next, some of them as [a change of the
numeric environment](concepts.md#a-run-is-a-function).
"""
MANY = 30
KINDS: tuple[tuple[Kind, str, str], ...] = (
    ("dataset", "data.type", "Datasets"),
    ("model", "model.type", "Models"),
    ("optimizer", "training.optimizer.type", "Optimizers"),
    ("tracker", "tracking", "Trackers"),
)

WHOLE = "config"
_UNIONS = {"transform": "data.transforms", "scheduler": "training.scheduler", "pruner": "tuning.pruner"}


def reference(adapters: Adapters | None = None) -> str:
    """Return the whole reference as Markdown."""
    lines = [HEAD, *_section("", RunConfig)]
    if adapters is not None:
        lines += [line for kind, key, title in KINDS for line in _options(kind, key, title, adapters)]
        for kind, key in (
            ("task", "data.task"),
            ("loss", "training.loss"),
            ("metric", "evaluation.metrics"),
        ):
            names = ", ".join(f"`{name}`" for name in adapters.names(kind))  # type: ignore[arg-type]
            lines += [f"## Names for `{key}`\n", f"{names}\n"]
    return "\n".join(lines)


def _section(path: str, model: type[BaseModel], declared: str | None = None) -> Iterator[str]:
    """Yield a table of the plain keys of a section, then the sections inside it.

    Args:
        path: The dotted key of the section.
        model: The section.
        declared: What the field that holds the section is declared to change, which holds for all in it.
    """
    inner = [(name, field, one) for name, field in model.model_fields.items() for one in _sections(field)]
    nested = {name for name, _, _ in inner}
    leaves = {name: field for name, field in model.model_fields.items() if name not in nested}
    if path:
        yield f"## {_title(path, model)}\n"
        yield f"{_summary(model)}\n"
        yield from _table(leaves, {name: declared or affects(field) or "" for name, field in leaves.items()})
    for name, field, section in inner:
        yield from _section(join(path, name), section, declared or affects(field))


def _title(path: str, model: type[BaseModel]) -> str:
    kind = tag(model) if path == "training.scheduler" else None
    return f"`{path}` of type `{kind}`" if kind else f"`{path}`"


def _sections(field: FieldInfo) -> list[type[BaseModel]]:
    """Return the sections that a field may hold; none for a plain value."""
    annotation = without_null(field.annotation)
    candidates = get_args(annotation) or (annotation,)
    return [one for one in candidates if isinstance(one, type) and issubclass(one, BaseModel)]


def _summary(model: type[BaseModel]) -> str:
    return " ".join((model.__doc__ or "").split())


def _table(fields: dict[str, FieldInfo], changes: dict[str, str] | None = None) -> Iterator[str]:
    """Yield a table of fields, with a column that says what they change if `changes` does."""
    head = ["key", "value", "default", *(["changes"] if changes else []), "meaning"]
    yield f"| {' | '.join(head)} |"
    yield "|" + " --- |" * len(head)
    for name, field in fields.items():
        change = [changes[name]] if changes else []
        cells = [
            f"`{field.serialization_alias or name}`",
            describe(field),
            _default(field),
            *change,
            field.description or "",
        ]
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
    yield ""


def _default(field: FieldInfo) -> str:
    value: Any = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "required"
    return f"`{inline(value)}`"


def _options(kind: Kind, key: str, title: str, adapters: Adapters) -> Iterator[str]:
    frameworks = adapters.names("framework") if kind in ("model", "optimizer") else [None]
    for framework in frameworks:
        names = adapters.names(kind, framework)
        if names:
            yield f"## {title} (`{key}`)" + (f" of {framework}" if framework else "") + "\n"
            yield from (_listed if len(names) > MANY else _described)(kind, framework, names, adapters)


def _described(kind: Kind, framework: str | None, names: Sequence[str], adapters: Adapters) -> Iterator[str]:
    plain = []
    for name in names:
        params = adapters.params(kind, name, framework)
        if params is None or not params.model_fields:
            plain.append(f"`{name}`")
            continue
        yield f"### `{name}`\n"
        yield from _table(params.model_fields)
        if kind == "model" and (spellings := adapters.spellings(kind, name, framework)) is not None:
            yield from _other_names(spellings)
    if plain:
        yield f"Without options of their own: {', '.join(plain)}.\n"


def _other_names(spellings: Spellings) -> Iterator[str]:
    """Yield what the names that a library's users know mean, in two lines."""
    options = {option: spellings.names_of(option) for option in dict.fromkeys(spellings.aliases.values())}
    if options:
        named = (f"`{option}`: {', '.join(names)}" for option, names in options.items())
        yield f"Other names of options: {'; '.join(named)}.\n"
    keys: dict[str, list[str]] = {}
    for name, setting in spellings.settings.items():
        keys.setdefault(setting.key, []).append(name)
    if keys:
        named = (f"`{key}`: {', '.join(names)}" for key, names in keys.items())
        yield f"These set what they mean: {'; '.join(named)}.\n"


def _listed(kind: Kind, framework: str | None, names: Sequence[str], adapters: Adapters) -> Iterator[str]:
    """Yield a table of many names; their library's own reference describes their options better."""
    yield "| name | options |"
    yield "| --- | --- |"
    for name in names:
        params = adapters.params(kind, name, framework)
        yield f"| `{name}` | {', '.join(params.model_fields) if params is not None else ''} |"
    yield ""


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
        elif get_origin(found) is dict and _is_section(get_args(found)[1]):
            found = get_args(found)[1]  # whatever the name is
        elif name in (types := _types(found)):
            found = types[name]
        elif name != "type" or not types:
            raise InputError(f"there are no names of {section!r}; allowed: {', '.join(kinds())}")
    if _is_section(found):
        fields = found.model_fields.items()
        return {field.serialization_alias or key: field.description or "" for key, field in fields}
    if types := _types(found):
        return {name: _first_line(member) for name, member in types.items()}
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


def _first_line(section: type[BaseModel]) -> str:
    return (section.__doc__ or "").strip().split("\n")[0].rstrip(".")
