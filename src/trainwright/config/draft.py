"""A config on its way to validation: the tree, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from trainwright.config.adapters import Adapters
from trainwright.config.tree import Node, Problems, find, join, mapping, put, take

ANOTHER = "another spelling of"
OLDER = "the older spelling of"


@dataclass
class Draft:
    """One layer of a config, or all of them merged, while its keys and values become ours.

    Args:
        root: The tree, which is changed in place.
        problems: Where problems are reported.
        notes: Where translations are noted.
        adapters: The installed adapters; None: what they know is left as it is.
        files: The names of the files of the merged config, each before those that it extends.
        objects: The data are given in Python, so there need be no `data` section.
    """

    root: Node
    problems: Problems
    notes: list[str]
    adapters: Adapters | None = None
    files: Sequence[str] = ()
    objects: bool = False

    @property
    def installed(self) -> Adapters:
        """The installed adapters, for the conversions that need them."""
        assert self.adapters is not None
        return self.adapters

    def convert(self, table: Iterable[tuple[str, Conversion]]) -> None:
        """Convert the keys of a table that the config has, in the table's order."""
        for path, conversion in table:
            if (node := find(self.root, path)) is not None:
                conversion(self, path, node)

    def note(self, node: Node, text: str) -> None:
        """Note a translation of a key."""
        self.notes.append(f"{node.key_source}: {text}")

    def refuse(self, old: str, node: Node, new: str, newer: Node, relation: str = ANOTHER) -> None:
        """Report that a key and another one of the same meaning are both given."""
        given = f"which is given too ({newer.key_source}); keep one"
        self.problems.report(f"is {relation} {new}, {given}", old, node.key_source)

    def move(self, old: str, new: str, relation: str = ANOTHER) -> None:
        """Move a key, or a section key by key; it is a problem if the new key is given, too.

        Args:
            old: The dotted key that was given.
            new: The dotted key that it means.
            relation: The relation of the old key to the new one, for the message.
        """
        if old.partition(".")[0] not in mapping(self.root) or (node := find(self.root, old)) is None:
            return
        newer = find(self.root, new)
        if newer is not None and isinstance(newer.value, dict) and isinstance(node.value, dict):
            for key in list(node.value):
                self.move(join(old, key), join(new, key), relation)
            take(self.root, old)
            return
        take(self.root, old)
        if newer is not None:
            self.refuse(old, node, new, newer, relation)
        else:
            put(self.root, new, node)
            self.note(node, f"{old} is read as {new}")


# Rewrites the value of a key, given its dotted name and node, or moves it.
Conversion = Callable[[Draft, str, Node], None]


def named(node: Node, key: str = "type") -> dict[str, Node]:
    """Return the mapping that a value alone stands for: `adam` is `{type: adam}`."""
    return {key: Node(node.value, node.source, node.key, bare=node.bare)}
