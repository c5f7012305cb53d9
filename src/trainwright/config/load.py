"""Load a config: from a file or a mapping, and overrides, to a config in which every value is set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from trainwright.config.adapters import Adapters
from trainwright.config.checks import check, fill_defaults
from trainwright.config.env import expand, remember_numbers
from trainwright.config.layers import Layers
from trainwright.config.lookup import Lookup
from trainwright.config.merged import MERGED, NAMES
from trainwright.config.messages import validate
from trainwright.config.options import OPTIONS
from trainwright.config.resolved import Resolved, flatten
from trainwright.config.schema import RunConfig
from trainwright.config.tree import DEFAULT, Draft, Problems, walk
from trainwright.config.versions import pin_data
from trainwright.errors import ConfigError, Problem


def load(
    source: Path | str | Mapping[str, Any],
    overrides: Sequence[str] | Mapping[str, Any] = (),
    adapters: Adapters | None = None,
    *,
    objects: bool = False,
    variables: bool = True,
    known: Mapping[str, str] | None = None,
) -> Resolved:
    """Read a config, check it, and fill in every default.

    Args:
        source: A YAML file, or its content as a mapping.
        overrides: `key.path=value` texts, or a mapping from dotted keys to values; they override the file.
        adapters: The installed adapters; without them, short names and the options of adapters are not
            checked.
        objects: The data are given in Python, and a `data` section need not name a source.
        variables: Whether `${env:NAME}` is expanded in the file, as it is in overrides.
        known: What texts of the file with `${env:NAME}` were expanded to before, by dotted key.

    Raises:
        ConfigError: The config is wrong; all problems are listed, not only the first.
    """
    if isinstance(overrides, str):
        raise ConfigError([Problem(f"overrides are one text, {overrides!r}; give a list of them")])
    if not isinstance(source, str | PathLike | Mapping):
        what = f"expected a YAML file, or its content as a mapping; got a {type(source).__name__}"
        raise ConfigError([Problem(f'{what}; a model is named in it: {{"model": "random_forest"}}')])
    problems, notes, unused = Problems(), list[str](), list[str]()
    layers = Layers(problems, notes, adapters, variables=variables)
    root = layers.mapping(source) if isinstance(source, Mapping) else layers.file(Path(source), str(source))
    top = layers.overrides(overrides, root) if overrides else None
    if root is None:
        raise ConfigError(problems)
    root = root if top is None else layers.merge(root, top)
    expand(root, problems, foreign=() if variables else layers.files, known=known)
    pin_data(root, problems, notes, adapters)
    draft = Draft(root, problems, notes, adapters, layers.files, objects)
    draft.convert(MERGED)
    if adapters is not None:
        draft.convert((*NAMES, *OPTIONS))
    fill_defaults(
        root,
        "run" if isinstance(source, Mapping) else Path(source).stem,
        length=adapters is None,
        objects=objects,
    )
    check(root, problems)
    lookup = Lookup(root, adapters, problems, unused) if adapters is not None else None
    if lookup is not None:
        lookup.run()
    config = validate(RunConfig, root, "", problems, option=lookup.option if lookup else None)
    nodes = dict(walk(root))
    remember_numbers(nodes)
    if problems or config is None:
        raise ConfigError(sorted(problems, key=_position))
    if adapters is not None and config.data is not None and config.data.has_versions:
        config = config.model_copy(update={"data": config.data.with_versions_in(adapters.versions_in)})
    sources = {key: nodes[key].source if key in nodes else DEFAULT for key in flatten(config)}
    templates = {path: node.template for path, node in nodes.items() if node.template is not None}
    folder = None if isinstance(source, Mapping) else Path(source).absolute().parent
    return Resolved(config, sources, tuple(notes), templates, tuple(unused), folder)


def _position(problem: Problem) -> tuple[bool, str, int, int]:
    """Return the sort key of a problem: files first, from top to bottom, then overrides."""
    return not problem.line, problem.file, problem.line, problem.column
