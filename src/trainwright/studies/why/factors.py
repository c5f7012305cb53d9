"""The differences of two configs as factors: what can be changed by itself, and what belongs together."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwright.config import Resolved
from trainwright.config import load as load_config
from trainwright.config.emit import emit, inline
from trainwright.config.resolved import values
from trainwright.errors import ConfigError
from trainwright.records.run_dir import RunDir
from trainwright.redact import redacted_value
from trainwright.runs.catalog import Catalog
from trainwright.runs.run_config import usable_config

KeyPath = tuple[str, ...]
Json = dict[str, Any]
CODE = "code"
_SEED = ("experiment", "seed")
_FILES = ("path", "train_path", "val_path", "test_path")
# Keys that mean something only together, by the name of their factor.
_TOGETHER: dict[str, Collection[KeyPath]] = {
    "data": [("data", key) for key in ("type", "params", "target", *_FILES)],
    "training.length": [("training", "epochs"), ("training", "max_steps")],
    "evaluation.every": [("evaluation", "every_n_steps"), ("evaluation", "every_n_epochs")],
}
_SHOWN = 60  # characters of a value


@dataclass(frozen=True)
class Factor:
    """A change that is made by itself: the paths of its keys, and each of them before and after.

    `merged` says that its keys would be factors by themselves, but that such a config would be invalid.
    """

    name: str
    paths: Sequence[KeyPath]
    before: str
    after: str
    merged: bool = False

    @property
    def is_code(self) -> bool:
        """True if it is the user's code, and no key of the config."""
        return self.name == CODE

    def to_json(self) -> Json:
        """Return the factor for JSON."""
        return {
            "name": self.name,
            "keys": [".".join(path) for path in self.paths],
            "before": self.before,
            "after": self.after,
            "merged": self.merged,
        }


@dataclass(frozen=True)
class ConfigTree:
    """The values of a run's config as a tree, and the texts with `${env:NAME}` by dotted key.

    Paths of data that the run keeps are expanded. `runs_dir` is the folder of the run's runs, with its data.
    """

    values: Json
    templates: Mapping[str, str]
    computation: Mapping[str, Any]
    runs_dir: Path | None = None

    @staticmethod
    def of(run: RunDir, folder: Path, *, trust: bool) -> ConfigTree:
        """Read the config of a run, whose data files are relative to a folder; see `usable_config`."""
        resolved = usable_config(run, trust=trust)
        tree, known = values(resolved.config), resolved.data_paths()
        templates = {key: text for key, text in resolved.templates.items() if key not in known}
        for key in _FILES:
            _make_absolute(tree, key, folder, templates)
        return ConfigTree(tree, templates, resolved.computation(), run.path.parent.parent)

    def with_changes(self, other: ConfigTree, factors: Iterable[Factor]) -> ConfigTree:
        """Return this config with the keys of some factors as the other one has them."""
        tree, templates = copy.deepcopy(self.values), dict(self.templates)
        for path in (path for factor in factors for path in factor.paths):
            _copy(other.values, tree, path)
            key = ".".join(path)
            inside = {name: text for name, text in other.templates.items() if _is_in(name, key)}
            templates = {name: text for name, text in templates.items() if not _is_in(name, key)} | inside
        return ConfigTree(tree, templates, {}, self.runs_dir)

    def with_values(self, changes: Mapping[KeyPath, Any]) -> ConfigTree:
        """Return this config with other values of some keys."""
        tree = copy.deepcopy(self.values)
        for path, value in changes.items():
            _parent(tree, path)[path[-1]] = value
        keys = {".".join(path) for path in changes}
        kept = {
            name: text for name, text in self.templates.items() if not any(_is_in(name, key) for key in keys)
        }
        return ConfigTree(tree, kept, {}, self.runs_dir)

    def load(self) -> Resolved:
        """Check it as any other config.

        Raises:
            ConfigError: It is invalid.
        """
        with tempfile.TemporaryDirectory(prefix="trainwright-why-") as folder:
            file = Path(folder) / "config.yaml"
            file.write_text(emit(self.values, self.templates), encoding="utf-8")
            return load_config(file, adapters=Catalog(self.runs_dir))


def _make_absolute(tree: Json, key: str, folder: Path, templates: Mapping[str, str]) -> None:
    """Make the path of a data file absolute: the runs are made in other folders, too."""
    path = (tree.get("data") or {}).get(key)
    if path is not None and f"data.{key}" not in templates and (folder / path).exists():
        tree["data"][key] = str(folder / path)


def _is_in(name: str, key: str) -> bool:
    return name == key or name.startswith(f"{key}.")


def _parent(tree: Json, path: KeyPath) -> Json:
    for name in path[:-1]:
        if not isinstance(tree.get(name), dict):
            tree[name] = {}
        tree = tree[name]
    return tree


def _copy(source: Json, target: Json, path: KeyPath) -> None:
    """Copy the value at a path; one that the source does not have is removed."""
    origin: Any = source
    for name in path[:-1]:
        origin = (origin or {}).get(name)
    if isinstance(origin, dict) and path[-1] in origin:
        _parent(target, path)[path[-1]] = copy.deepcopy(origin[path[-1]])
    else:
        _parent(target, path).pop(path[-1], None)


def factors_of(before: ConfigTree, after: ConfigTree, *, same_data: bool) -> list[Factor]:
    """Return the factors between two configs: what changes bits, but for the seed.

    Args:
        before: The config of the first run.
        after: That of the second.
        same_data: Whether both runs had the same data; then the names of their files do not matter.
    """
    paths = [
        path
        for path in _differences(before.values, after.values, ())
        if path != _SEED and _changes_bits(".".join(path), before, after, same_data=same_data)
    ]
    groups: dict[str, list[KeyPath]] = {}
    for path in paths:
        groups.setdefault(_name(path), []).append(path)
    return [
        Factor(name, group, _shown(before.values, group), _shown(after.values, group))
        for name, group in groups.items()
    ]


def _differences(before: Any, after: Any, path: KeyPath) -> Iterator[KeyPath]:
    """Yield the paths that differ; a section of another type differs as a whole."""
    if not (isinstance(before, dict) and isinstance(after, dict)) or _is_other_type(before, after, path):
        if before != after:
            yield path
        return
    for key in [*before, *(key for key in after if key not in before)]:
        if key in before and key in after:
            yield from _differences(before[key], after[key], (*path, key))
        else:
            yield (*path, key)


def _is_other_type(before: Json, after: Json, path: KeyPath) -> bool:
    """Return whether two sections are of different types, so that their options cannot be mixed."""
    return path != ("data",) and before.get("type") != after.get("type")


def _name(path: KeyPath) -> str:
    """Return the name of the factor that a path belongs to."""
    for name, paths in _TOGETHER.items():
        if any(path[: len(one)] == one for one in paths):
            return name
    return "data.split" if path[:2] == ("data", "split") else ".".join(path)


def _changes_bits(key: str, before: ConfigTree, after: ConfigTree, *, same_data: bool) -> bool:
    if key in {f"data.{name}" for name in _FILES}:
        return not same_data
    one, other = (
        {name: value for name, value in tree.computation.items() if _is_in(name, key)}
        for tree in (before, after)
    )
    return one != other


def _shown(tree: Json, paths: Sequence[KeyPath]) -> str:
    """Return the values at some paths for people: without names if there is only one."""
    texts = []
    for path in paths:
        value: Any = tree
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        if isinstance(value, dict) and "type" in value:
            value = value["type"]
        text = inline(redacted_value(".".join(path), value))
        text = text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
        texts.append(text if len(paths) == 1 else f"{path[-1]} {text}")
    return ", ".join(texts)


def merge_invalid(factors: Sequence[Factor], is_valid: Callable[[Sequence[Factor]], bool]) -> list[Factor]:
    """Merge the factors that cannot be changed, or left, by themselves, as the config would be invalid.

    Args:
        factors: The factors.
        is_valid: Returns whether the first config with the changes of some factors is valid.
    """
    merged = list(factors)

    def fits(group: Sequence[Factor]) -> bool:
        return is_valid(group) and is_valid([factor for factor in merged if factor not in group])

    while len(merged) > 1:
        stuck = next((factor for factor in merged if not fits([factor])), None)
        if stuck is None:
            break
        others = [factor for factor in merged if factor is not stuck]
        partner = next((other for other in others if fits([stuck, other])), None)
        group = [stuck, partner] if partner else merged
        rest = [factor for factor in merged if factor not in group]
        merged = [_joined([factor for factor in merged if factor in group]), *rest]
    return merged


def _joined(factors: Sequence[Factor]) -> Factor:
    def texts(side: str) -> str:
        return "; ".join(
            f"{factor.name} {getattr(factor, side)}" if not factor.merged else getattr(factor, side)
            for factor in factors
        )

    return Factor(
        "+".join(factor.name for factor in factors),
        [path for factor in factors for path in factor.paths],
        texts("before"),
        texts("after"),
        merged=True,
    )


def is_valid_with(before: ConfigTree, after: ConfigTree) -> Callable[[Sequence[Factor]], bool]:
    """Return the function that says whether the first config is valid with the changes of some factors."""

    def is_valid(factors: Sequence[Factor]) -> bool:
        try:
            before.with_changes(after, factors).load()
        except ConfigError:
            return False
        return True

    return is_valid
