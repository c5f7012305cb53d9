"""Read the layers of a config (base files, the file itself, overrides), and merge them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainwright.config.adapters import Adapters
from trainwright.config.data import DataConfig
from trainwright.config.env import expand_node
from trainwright.config.file_types import ENDINGS
from trainwright.config.normalize import data_type, normalize
from trainwright.config.schedules import Schedule
from trainwright.config.tree import Draft, Node, Problems, Source, from_plain, join, mapping, plain, put, walk
from trainwright.config.yaml import read_file, read_value
from trainwright.errors import InputError

COMMAND_LINE = Source("command line")
OVERRIDES = Source("overrides")
MAPPING = Source("mapping")
# The type of a section that names none.
DEFAULT_TYPES = {
    "model": None,
    "data": None,
    "training.optimizer": "adamw",
    "training.loss": "auto",
    "training.scheduler": "constant",
}


class Layers:
    """The reader of layers; it collects `problems`, and `notes` on what was translated or dropped."""

    def __init__(
        self,
        problems: Problems,
        notes: list[str],
        adapters: Adapters | None = None,
        *,
        variables: bool = True,
    ) -> None:
        self.adapters = adapters
        self._expands = variables  # also in what a file extends
        self.problems = problems
        self.notes = notes
        self.files: list[str] = []  # what was read, each before what it extends

    def file(self, path: Path, name: str, chain: tuple[Path, ...] = ()) -> Node | None:
        """Return a file merged onto the files it extends; None if one of them cannot be read."""
        self.files.append(name)
        root = read_file(path, self.problems, name)
        return None if root is None else self._onto_base(root, path, name, chain)

    def mapping(self, values: Mapping[str, Any]) -> Node | None:
        """Return a config that was given in Python; its `extends` is relative to the working directory."""
        self.files.append(MAPPING.file)
        root = from_plain(values, MAPPING, self.problems)
        return self._onto_base(root, Path("mapping"), "mapping", ())

    def overrides(self, overrides: Sequence[str] | Mapping[str, Any], base: Node | None = None) -> Node:
        """Return the layer of overrides; if two set the same key, the last one counts.

        Args:
            overrides: `key.path=value` texts, or a mapping from dotted keys to values.
            base: The layers below.
        """
        if isinstance(overrides, Mapping):
            pairs = [
                (str(key), from_plain(value, OVERRIDES, self.problems, str(key)))
                for key, value in overrides.items()
            ]
        elif (whole := _split_by_the_shell(overrides)) is not None:
            self.problems.report(f"a value with blanks needs quotes: '{whole}'", source=COMMAND_LINE)
            pairs = []
        else:
            pairs = [pair for pair in map(self._parse, overrides) if pair is not None]
        root = Node({}, OVERRIDES if isinstance(overrides, Mapping) else COMMAND_LINE)
        spelled: dict[str, str] = {}
        keys = [key for key, _ in pairs]
        for index, (key, node) in enumerate(pairs):
            if key.partition(".")[0] == "extends":
                self.problems.report("is allowed only in a file", key, root.source)
                continue
            if key not in keys[:index] and key in keys[index + 1 :]:
                self.notes.append(f"{root.source}: {key} is given more than once; the last one counts")
            layer = Node({}, root.source)
            put(layer, key, node)
            self._translate(layer, base)
            self._refuse_other_spellings(key, layer, spelled)
            self.merge(root, layer, same_layer=True)
        return root

    def _refuse_other_spellings(self, key: str, layer: Node, spelled: dict[str, str]) -> None:
        """Report an override of a value that another one sets under another name.

        Args:
            key: The key as it was written.
            layer: The override, translated.
            spelled: The keys that the values before were set by; this one's are added.
        """
        for path, node in walk(layer):
            if isinstance(node.value, dict) or not path:
                continue
            other = spelled.setdefault(path, key)
            if other != key and not (path.startswith(key) and path.startswith(other)):
                self.problems.report(
                    f"is another spelling of {path}, which is given too; keep one", key, node.source
                )

    def merge(self, base: Node, top: Node, path: str = "", *, same_layer: bool = False) -> Node:
        """Merge `top` into `base`: mappings key by key, anything else is replaced. Return `base`, changed.

        Between two layers, a section that changes its type keeps only the keys that both types have.
        """
        if isinstance(base.value, list) and isinstance(top.value, dict):
            return self._merge_items(base, top, path)
        if not isinstance(base.value, dict) or not isinstance(top.value, dict):
            return top
        if path in DEFAULT_TYPES and not same_layer:
            self._drop_other_type(base.value, top.value, path)
        for key, child in top.value.items():
            lower = base.value.get(key)
            base.value[key] = (
                child if lower is None else self.merge(lower, child, join(path, key), same_layer=same_layer)
            )
        return base

    def _onto_base(self, root: Node, path: Path, name: str, chain: tuple[Path, ...]) -> Node | None:
        extends = mapping(root).pop("extends", None)
        base = None if extends is None else self._base(extends, path, name, (*chain, path.resolve()))
        self._translate(root, base)
        if extends is None:
            return root
        return None if base is None else self.merge(base, root)

    def _base(self, extends: Node, path: Path, name: str, chain: tuple[Path, ...]) -> Node | None:
        if self._expands:
            expand_node(extends, "extends", self.problems)
        if not isinstance(extends.value, str) or not extends.value:
            self.problems.report("expected the path of one YAML file", "extends", extends.source)
            return None
        target = path.parent / extends.value
        if not target.is_file():
            message = f"no such file: {extends.template or extends.value} (it is looked for beside {name})"
            self.problems.report(message, "extends", extends.source)
            return None
        if target.resolve() in chain:
            files = [*chain[chain.index(target.resolve()) :], target.resolve()]
            self.problems.report(
                f"extends itself in a circle: {' -> '.join(file.name for file in files)}",
                "extends",
                extends.source,
            )
            return None
        return self.file(target, str(Path(name).parent / (extends.template or extends.value)), chain)

    def _translate(self, root: Node, base: Node | None) -> None:
        kind = data_type(root) or (None if base is None else data_type(base)) or ""
        normalize(Draft(root, self.problems, self.notes), self._options(kind))

    def _options(self, data_type: str) -> Collection[str] | None:
        """Return the options of a data set; None for a function of the user's, which may have any."""
        if ":" in data_type:
            return None
        try:
            params = self.adapters.params("dataset", data_type) if self.adapters and data_type else None
        except InputError:  # a plugin that cannot be used; the lookup says so
            return None
        return () if params is None else params.model_fields

    def _parse(self, text: str) -> tuple[str, Node] | None:
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals or not all(part.strip() == part and part for part in key.split(".")):
            is_run = text == "last" or text[:8].isdigit()
            more = "; to go on with a run: trainwright resume RUN" if is_run else ""
            self.problems.report(
                f"expected key.path=value, got {text!r}; for example training.epochs=3{more}",
                source=COMMAND_LINE,
            )
            return None
        own = Problems()
        node = read_value(value, COMMAND_LINE.file, own)
        is_sign = re.fullmatch(r"[^\w\s\"'\\]", value) is not None
        for problem in own:
            said = f"give it in quotes: '{key}=\"{value}\"'" if is_sign else problem.message
            self.problems.report(f"cannot read {value!r}: {said}", key, COMMAND_LINE)
        if node is None:
            return None
        for _, child in walk(node):
            child.source = COMMAND_LINE
            child.key = None
        return key, node

    def _merge_items(self, base: Node, top: Node, path: str) -> Node:
        """Merge overrides of single items, such as `tracking.0.uri=...`, into a list."""
        items = base.value if isinstance(base.value, list) else []
        for key, child in mapping(top).items():
            if not key.isdecimal() or int(key) >= len(items):
                indexes = f"0 to {len(items) - 1}" if items else "none, the list is empty"
                self.problems.report(f"no such item; there are {indexes}", join(path, key), child.key_source)
            else:
                items[int(key)] = self.merge(items[int(key)], child, join(path, key))
        return base

    def _drop_other_type(self, base: dict[str, Node], top: dict[str, Node], path: str) -> None:
        new = top.get("type")
        old = base["type"].value if "type" in base else DEFAULT_TYPES[path]
        if new is None or old is None or new.value == old:
            return
        shared, defaults = _shared(path, old, new.value), _defaults() if path == "data" else {}
        dropped = {key: plain(base.pop(key)) for key in list(base) if key not in shared}
        if dropped := {
            key: value for key, value in dropped.items() if value not in (None, {}, [], defaults.get(key))
        }:
            self.notes.append(
                f"{new.source}: {path}.type is {new.value} instead of {old}: "
                f"{old}'s {', '.join(dropped)} dropped"
            )


def _defaults() -> dict[str, Any]:
    return {
        key: field.get_default(call_default_factory=True) for key, field in DataConfig.model_fields.items()
    }


def _shared(path: str, old: Any, kind: Any) -> set[str]:
    """Return the keys of a section that keep their meaning when its type changes."""
    if path == "data" and {old, kind} <= ENDINGS.keys():  # files of tables
        return {*DataConfig.model_fields} - {"params"}
    if path == "data":
        return {
            "type", "target", "weight", "target_transform", "task", "split", "features", "exclude",
            "standardize", "impute", "encode",
        }  # fmt: skip
    if path == "training.scheduler":
        schedule = next((one for one in Schedule.__args__ if one.model_fields["type"].default == kind), None)
        return {"type", *(schedule.model_fields if schedule else ())}
    return {"type"}


def _split_by_the_shell(overrides: Sequence[str]) -> str | None:
    """Return the first override whose brackets the following words close, as one; None if there is none."""
    for start, word in enumerate(overrides):
        if _open_brackets(word) <= 0:
            continue
        for end in range(start + 1, len(overrides)):
            whole = " ".join(overrides[start : end + 1])
            if _open_brackets(whole) == 0:
                return whole
    return None


def _open_brackets(text: str) -> int:
    return sum(text.count(one) for one in "[{") - sum(text.count(one) for one in "]}")
