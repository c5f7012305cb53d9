"""Versions of data in a config: a moving name becomes the exact version when the config is loaded."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from trainwright.config.adapters import Adapters
from trainwright.config.env import DATA_PATHS
from trainwright.config.fields import Section, record
from trainwright.config.tree import Node, Problems, Source, find_value, mapping
from trainwright.errors import InputError

NAME = r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}"
REFERENCE = re.compile(rf"(?P<name>{NAME})@(?P<revision>[A-Za-z0-9_][A-Za-z0-9._-]{{0,99}})")
_EXACT = re.compile(r"v[0-9]{1,9}")
_TYPED_BY = ("data.path", "data.train_path")  # whose version gives the type of the data
EMBEDDED = "embedded"  # the kind of the versions that paths name


class VersionSection(Section):
    """The section of `data` that names a version in another system: the keys of its reference.

    Attributes:
        revision_key: The key of the revision.
        exact: The form of revisions that never mean another version.
    """

    revision_key: ClassVar[str]
    exact: ClassVar[re.Pattern[str]]

    @property
    def revision(self) -> str:
        """The revision; empty if it is the default one."""
        return str(getattr(self, self.revision_key) or "")


class DvcConfig(VersionSection):
    """Data that DVC tracks in a Git repository."""

    revision_key = "rev"
    exact = re.compile(r"[0-9a-f]{40}")

    repo: str = record(".", description="the repository: a folder, or the URL of a clone")
    path: str = record(description="the file or folder in the repository")
    rev: str | None = record(
        None,
        description="a branch, a tag or a commit; a run records the commit; default: the newest commit",
    )
    remote: str | None = record(None, description="the remote of DVC; default: that of the repository")


SYSTEMS: dict[str, type[VersionSection]] = {"dvc": DvcConfig}  # by their key in `data`, which is their kind


def is_reference(path: str) -> bool:
    """Return whether a path of data names a version, `NAME@VERSION`, and no file."""
    return REFERENCE.fullmatch(path) is not None and not Path(path).exists()


def pin_data(root: Node, problems: Problems, notes: list[str], adapters: Adapters | None) -> None:
    """Make the versions that a config names exact, and set the type of their data where it is not set.

    An exact version whose type is set is not looked up: the config of a run can be read without its data.

    Args:
        root: The config.
        problems: The problems, to which more are added.
        notes: What the log says of the config, to which more is added.
        adapters: The adapters; without them, nothing is looked up.
    """
    data = mapping(find_value(root, "data"))
    _join_version(data, problems)
    if adapters is None:
        return
    for key in DATA_PATHS:
        node = find_value(root, key)
        if node is None or not isinstance(node.value, str):
            continue
        if "type" not in data and re.fullmatch(NAME, node.value) and not Path(node.value).exists():
            _name_versions(data, key, node, (problems, adapters))
        elif is_reference(node.value):
            is_exact = _EXACT.fullmatch(node.value.partition("@")[2]) is not None
            if is_exact and ("type" in data or key not in _TYPED_BY):
                continue
            _pin(data, key, {"path": node}, EMBEDDED, (problems, notes, adapters))
    for kind, section in SYSTEMS.items():
        nodes, fields = mapping(data.get(kind)), section.model_fields
        if {name for name in fields if fields[name].is_required()} <= {*nodes} <= {*fields}:
            revision = nodes.get(section.revision_key)
            if revision is None or "type" not in data or not section.exact.fullmatch(str(revision.value)):
                _pin(data, f"data.{kind}", nodes, kind, (problems, notes, adapters))


def _name_versions(data: dict[str, Node], key: str, node: Node, to: tuple[Problems, Adapters]) -> None:
    """Report a path that is no file, but the name of a data set that has versions."""
    problems, adapters = to
    latest = f"{node.value}@latest"
    with suppress(InputError):
        adapters.pin(EMBEDDED, {"path": latest})
        problems.report(
            f"there is no file {node.value}, but versions of that name; write {latest}", key, node.source
        )
        data.setdefault("type", Node("csv", node.source))  # no second problem


def _join_version(data: dict[str, Node], problems: Problems) -> None:
    """Read `data.version` as a part of `data.path`."""
    version, path = data.pop("version", None), data.get("path")
    if version is None or version.value is None:
        return
    if path is None or not isinstance(path.value, str) or not re.fullmatch(NAME, path.value):
        message = (
            "is the version of the data set that data.path names; write path: NAME, or path: NAME@VERSION"
        )
        problems.report(message, "data.version", version.key_source)
        return
    path.value = f"{path.value}@{version.value}"
    path.text = path.value if path.text is not None else None


def _pin(
    data: dict[str, Node],
    key: str,
    nodes: dict[str, Node],
    kind: str,
    to: tuple[Problems, list[str], Adapters],
) -> None:
    """Replace the values of a reference by those of the exact version."""
    problems, notes, adapters = to
    given = {name: None if node.value is None else str(node.value) for name, node in nodes.items()}
    source = next(iter(nodes.values())).source
    try:
        values, data_type = adapters.pin(kind, given)
    except InputError as error:
        problems.report(str(error), key, source)
        data.setdefault("type", Node("csv", source))  # no second problem
        return
    for name, value in values.items():
        node = nodes.get(name)
        if value == given.get(name):
            continue
        if node is not None and name in given:
            notes.append(f"{node.source}: {key}: {node.value} is {value}")
        nodes[name] = Node(value, source if node is None else node.source, None if node is None else node.key)
    if "path" in nodes and kind == EMBEDDED:
        data[key.removeprefix("data.")] = nodes["path"]
    if data_type is not None and key != "data.val_path":
        data.setdefault("type", Node(data_type, Source(f"default (version of {key})"), source))
