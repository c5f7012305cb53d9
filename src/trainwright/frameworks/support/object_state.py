"""The state of an object of the user's, such as a loss: the plain data that its attributes lead to.

Plain data are numbers, texts, containers of these, arrays and random generators; a library's own kinds, such
as tensors, are added by a subclass of `Kinds`. Objects with attributes (*holders*) are not made anew: a
restore gives those that the config builds the attributes that they had. Only what has changed since the
object was built is saved, so that an object that is built with other options keeps these. `unsaved` names
what is no plain data.
"""

from __future__ import annotations

import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import FunctionType
from typing import Any, Literal

import numpy as np

from trainwright.errors import ModelError
from trainwright.frameworks.support.fingerprint import (
    Fingerprint,
    fingerprint,
    is_users,
    kept_by_class,
    kept_by_function,
)

Json = Any
Kept = Callable[[Json], bool]
_MISSING = object()
_SEQUENCES = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque}
_MAPPINGS: dict[str, type] = {
    "dict": dict,
    "OrderedDict": OrderedDict,
    "defaultdict": defaultdict,
    "Counter": Counter,
}
# How the nodes of `_simple` are made again.
_SIMPLE: dict[str, Callable[..., Any]] = {
    "value": lambda value: value,
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
    "complex": complex,
    "scalar": lambda dtype, text: np.frombuffer(bytes.fromhex(text), dtype=dtype)[0],
}
_FACTORIES = {"int": int, "float": float, "list": list, "dict": dict, "set": set, "str": str}


def _all(node: Json) -> bool:  # noqa: ARG001
    return True


def none(node: Json) -> bool:  # noqa: ARG001
    """Return that no node is saved."""
    return False


class NotPlainError(Exception):
    """A value is no plain data."""


class Kinds:
    """The kinds of objects and arrays that a state may consist of; here those of Python and NumPy."""

    def is_holder(self, value: Any) -> bool:
        """Return whether the attributes of an object are state, each by itself."""
        return is_users(type(value)) and not isinstance(
            value, type | FunctionType | list | dict | tuple | set | Enum | random.Random
        )

    def attributes(self, holder: Any) -> dict[str, Any]:
        """Return the attributes of a holder by name, those of `__slots__` too."""
        slots = [
            name
            for base in type(holder).__mro__
            for name in _names(vars(base).get("__slots__", ()))
            if not name.startswith("__") and hasattr(holder, name)
        ]
        return {**getattr(holder, "__dict__", {}), **{name: getattr(holder, name) for name in slots}}

    def set(self, holder: Any, name: str, value: Any) -> None:
        """Give a holder an attribute."""
        object.__setattr__(holder, name, value)

    def delete(self, holder: Any, name: str) -> None:
        """Take an attribute from a holder."""
        object.__delattr__(holder, name)

    def sequence(self, value: Any) -> str | None:
        """Return the name of a kind of sequences or sets, None for other values."""
        return next((name for name, kind in _SEQUENCES.items() if type(value) is kind), None)

    def mapping(self, value: Any) -> str | None:
        """Return the name of a kind of mappings, None for other values."""
        return next((name for name, kind in _MAPPINGS.items() if type(value) is kind), None)

    def leaf(self, value: Any) -> tuple[Json, Any] | None:  # noqa: ARG002 - Python and NumPy have none
        """Return how a library's own array is made again, and its values; None for other values.

        Raises:
            NotPlainError: It cannot be made again as it is.
        """
        return None

    def made(self, how: Json, values: Any, live: Any) -> Any:
        """Return a library's own array with the values that `leaf` gave: `live` itself if that fits."""
        raise NotImplementedError(f"a state has {how}, {values} and {live}, which nothing here makes")

    def memory(self, value: Any) -> int:  # noqa: ARG002
        """Return what identifies the memory of an array, which others may share; 0: it has none."""
        return 0

    def stored(self, array: np.ndarray[Any, Any]) -> Any:
        """Return (bytes,) uint8 as the kind of array that files hold."""
        return array

    def loaded(self, values: Any) -> np.ndarray[Any, Any]:
        """Return what `stored` was given."""
        return np.asarray(values)

    def copied(self, values: Any) -> Any:
        """Return a copy of an array, which training does not change."""
        return np.array(values)

    def equal(self, one: Any, other: Any) -> bool:
        """Return whether two arrays have the same bytes."""
        return bool(
            one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
        )

    def hasher(self, shared: frozenset[int]) -> Fingerprint:
        """Return what hashes values that are no plain data; see `Fingerprint`."""
        return Fingerprint(shared)


@dataclass
class Captured:
    """A state: `nodes` say how attributes are made, `arrays` are their values, both by attribute.

    `holders` are the objects with attributes by path, and `owners` says which of them has an attribute, and
    under which name; `opaque` are the attributes that are no plain data.
    """

    nodes: dict[str, Json] = field(default_factory=dict)
    arrays: dict[str, dict[str, Any]] = field(default_factory=dict)
    holders: dict[str, Any] = field(default_factory=dict)
    owners: dict[str, tuple[str, str]] = field(default_factory=dict)
    opaque: dict[str, Any] = field(default_factory=dict)
    memory: Counter[int] = field(default_factory=Counter)


class ObjectState:
    """The state of one object.

    Args:
        root: The object; of a function, only `unsaved` says something.
        kinds: The kinds of objects that its state may consist of.
        externals: Returns objects that are saved elsewhere, by name.
    """

    def __init__(self, root: Any, kinds: Kinds | None = None, externals: Any = dict) -> None:
        self._root, self._kinds, self._externals = root, kinds or Kinds(), externals
        self._initial = Captured()  # until it is known, any holder is taken
        self._initial = self.held()
        self._class = f"{type(root).__module__}:{type(root).__qualname__}"

    @property
    def initial(self) -> Captured:
        """The state that the object was built with."""
        return self._initial

    def files(self, kept: Kept = _all) -> tuple[Json, dict[str, Any]]:
        """Return what has changed since the object was built, as JSON and as arrays by name; or nothing.

        Args:
            kept: Returns whether a node is saved.
        """
        now, before = self._captured(), self._initial
        changed = {at: node for at, node in now.nodes.items() if kept(node) and self._differs(at, now)}
        deleted = [
            at
            for at, node in before.nodes.items()
            # Of an object that another one has replaced, nothing is deleted.
            if kept(node)
            and at not in now.nodes
            and at not in now.opaque
            and before.owners[at][0] in now.holders
        ]
        if not (changed or deleted):
            return (), {}
        owners = {at: now.owners[at] for at in changed}
        arrays = {name: one for at in changed for name, one in now.arrays.get(at, {}).items()}
        return {"class": self._class, "changed": changed, "deleted": deleted, "owners": owners}, arrays

    def load(self, saved: Json, arrays: Mapping[str, Any], kept: Kept = _all) -> None:
        """Restore what `files` returned; that of an object of another class, as a fork may have, is left out.

        Args:
            saved: The JSON.
            arrays: The arrays by name.
            kept: As for `files`; the others stay as they are.

        Raises:
            ModelError: The object has other parts.
        """
        saved = saved if saved and saved["class"] == self._class else ()
        before, gone = self._initial, set(saved["deleted"]) if saved else set()
        changed = saved["changed"] if saved else {}
        owners = {at: tuple(owner) for at, owner in saved["owners"].items()} if saved else {}
        target = Captured(
            {at: node for at, node in before.nodes.items() if at not in gone and kept(node)} | changed,
            {**before.arrays, **{at: _within(at, arrays) for at in changed}},
            owners={**before.owners, **owners},
        )
        self.put_back(target, deleted=gone, kept=kept)

    def held(self) -> Captured:
        """Return a copy of the whole state, for `put_back`."""
        now = self._captured()
        for arrays in now.arrays.values():
            arrays.update({name: self._kinds.copied(one) for name, one in arrays.items()})
        return now

    def put_back(self, target: Captured, deleted: Collection[str] = (), kept: Kept = _all) -> None:
        """Give the object the state that `held` returned.

        Args:
            target: The state.
            deleted: The attributes that were there when the object was built, and are not there in the state.
            kept: Returns whether a node belongs to the state.
        """
        now = self._captured()
        holders = {**self._initial.holders, **now.holders}
        for at in [one for one, node in now.nodes.items() if one not in target.nodes and kept(node)]:
            if at not in self._initial.nodes or at in deleted:
                path, name = now.owners[at]
                self._kinds.delete(now.holders[path], name)
        _Maker(self._kinds, target, holders, self._externals()).all()

    def unsaved(self, saved: Kept = _all) -> dict[str, str]:
        """Return a hash of each part of the state that is no plain data, or that is not saved, by name.

        Args:
            saved: Returns whether a node is saved.
        """
        now = self._captured()
        shared = frozenset(id(one) for one in [*now.holders.values(), *self._externals().values()])
        opaque = dict(now.opaque)
        for cls in dict.fromkeys(type(holder) for holder in now.holders.values()):
            opaque |= kept_by_class(cls)
        if isinstance(self._root, FunctionType):
            opaque |= kept_by_function(self._root)
        hashes = dict(fingerprint(value, name, self._kinds.hasher(shared)) for name, value in opaque.items())
        if any(count > 1 for count in now.memory.values()):
            hashes["attributes that share their memory"] = str(sorted(now.memory.values()))
        for at, node in now.nodes.items():
            if not saved(node):
                content = [node, *now.arrays.get(at, {}).values()]
                hashes[at] = self._kinds.hasher(frozenset()).of(content)
        return hashes

    def _captured(self) -> Captured:
        return _Reader(self._kinds, self._initial.holders, self._externals()).read(self._root)

    def _differs(self, at: str, now: Captured) -> bool:
        before = self._initial
        if at not in before.nodes or _text(before.nodes[at]) != _text(now.nodes[at]):
            return True
        old, new = before.arrays.get(at, {}), now.arrays.get(at, {})
        return old.keys() != new.keys() or not all(self._kinds.equal(old[name], new[name]) for name in new)


class _Reader:
    """Read the state of an object; paths are `holder.attribute`, and `attribute/index` for items of those."""

    def __init__(self, kinds: Kinds, known: Mapping[str, Any], externals: Mapping[str, Any]) -> None:
        self._kinds = kinds
        # The holders that were there when the object was built, by their ids; empty: it is being built now.
        self._known = {id(holder): path for path, holder in known.items()}
        self._external = {id(one): name for name, one in externals.items()}
        self._seen: dict[int, str] = {}  # where an object was met first
        self._kept: list[Any] = []  # lest another object gets the id of one that is gone
        self._holders: dict[int, tuple[str, Any]] = {}  # those that were met, by their ids
        self._arrays: dict[str, Any] = {}
        self._memory: list[int] = []

    def read(self, root: Any) -> Captured:
        """Return the state of an object."""
        captured = Captured()
        try:
            self._node(root, "")
        except NotPlainError:
            captured.opaque["itself"] = root
        while len(captured.holders) < len(self._holders):
            path, holder = list(self._holders.values())[len(captured.holders)]
            captured.holders[path] = holder
            for name, value in self._kinds.attributes(holder).items():
                at = f"{path}.{name}" if path else name
                self._attribute(captured, at, value)
                captured.owners[at] = (path, name)
        captured.memory = Counter(self._memory)
        return captured

    def _attribute(self, captured: Captured, at: str, value: Any) -> None:
        """Read an attribute, or forget what was read of it if it is no plain data."""
        sizes = len(self._seen), len(self._holders), len(self._memory)
        self._arrays = {}
        try:
            captured.nodes[at] = self._node(value, at)
            if self._arrays:
                captured.arrays[at] = self._arrays
        except (NotPlainError, RecursionError):
            captured.opaque[at] = value
            for met, size in ((self._seen, sizes[0]), (self._holders, sizes[1])):
                while len(met) > size:
                    met.popitem()
            del self._memory[sizes[2] :]

    def _node(self, value: Any, at: str) -> Json:
        if (simple := _simple(value)) is not None:
            return simple
        if id(value) in self._external:
            return ["external", self._external[id(value)]]
        if id(value) in self._holders:
            return ["holder", self._holders[id(value)][0]]
        if id(value) in self._seen:
            return ["same", self._seen[id(value)]]
        self._kept.append(value)
        return self._new(value, at)

    def _new(self, value: Any, at: str) -> Json:
        """Return the node of an object that is visited for the first time."""
        if (items := self._items(value, at)) is not None:
            return items
        if self._kinds.is_holder(value):
            if self._known and id(value) not in self._known:
                raise NotPlainError  # made in training, so that no new process has it
            path = self._known.get(id(value), at)
            self._holders[id(value)] = path, value
            return ["holder", path]
        self._seen[id(value)] = at
        if (leaf := self._kinds.leaf(value)) is not None:
            self._arrays[at] = leaf[1]
            self._memory += [address] if (address := self._kinds.memory(value)) else []
            return ["leaf", leaf[0]]
        if type(value) is np.ndarray and not value.dtype.hasobject:
            return self._array(value, at)
        return self._random(value, at)

    def _items(self, value: Any, at: str) -> Json:
        """Return the node of a container; None for another value."""
        if (kind := self._kinds.sequence(value)) is not None:
            items = list(value)
            if kind in ("set", "frozenset") and list(type(value)(items)) != items:
                raise NotPlainError  # its order depends on what was in it before
            if kind not in ("tuple", "frozenset"):
                self._seen[id(value)] = at
            nodes = [self._node(item, f"{at}/{index}") for index, item in enumerate(items)]
            return [kind, nodes, getattr(value, "maxlen", None)]
        if (kind := self._kinds.mapping(value)) is None:
            return None
        self._seen[id(value)] = at
        factory = getattr(value, "default_factory", None)
        name = next((name for name, one in _FACTORIES.items() if one is factory), None)
        pairs = [
            [self._node(key, f"{at}/{index}k"), self._node(item, f"{at}/{index}")]
            for index, (key, item) in enumerate(value.items())
        ]
        return [kind, pairs, name]

    def _array(self, value: np.ndarray[Any, Any], at: str) -> Json:
        order: Literal["C", "F"] = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
        owner = value
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        self._memory.append(owner.__array_interface__["data"][0])
        content = np.frombuffer(value.tobytes(order), dtype=np.uint8)  # (bytes,)
        self._arrays[at] = self._kinds.stored(content.copy())
        return ["array", value.dtype.str, list(value.shape), order]

    def _random(self, value: Any, at: str) -> Json:
        """Return the node of a random generator."""
        if type(value) is random.Random:
            return ["random", "", self._node(value.getstate(), f"{at}/0")]
        if type(value) is np.random.RandomState:
            return ["numpy random", "", self._node(value.get_state(legacy=False), f"{at}/0")]
        if type(value) is np.random.Generator:
            bits = value.bit_generator
            if hasattr(np.random, type(bits).__name__):
                return ["numpy random", type(bits).__name__, self._node(_plain(bits.state), f"{at}/0")]
        raise NotPlainError


class _Maker:
    """Give the attributes of holders the values of a state, in place where that is possible."""

    def __init__(
        self, kinds: Kinds, target: Captured, holders: Mapping[str, Any], externals: Mapping[str, Any]
    ) -> None:
        self._kinds, self._target, self._holders, self._externals = kinds, target, holders, externals
        self._arrays = {name: one for arrays in target.arrays.values() for name, one in arrays.items()}
        self._made: dict[str, Any] = {}
        self._used: set[int] = set()  # the ids of live objects that have been given a value
        self._begun: set[str] = set()

    def all(self) -> None:
        """Make all attributes."""
        for at in self._target.nodes:
            self._attribute(at)

    def _attribute(self, at: str) -> None:
        if at in self._begun:
            return
        self._begun.add(at)
        path, name = self._target.owners[at]
        holder = self._holders.get(path)
        if holder is None:
            raise ModelError(
                f"the checkpoint has state of {path or 'an object'}, which this run does not have"
            )
        live = self._kinds.attributes(holder).get(name, _MISSING)
        value = self._value(self._target.nodes[at], live, at)
        if value is not live:
            self._kinds.set(holder, name, value)

    def _value(self, node: Json, live: Any, at: str) -> Any:
        kind, *rest = node
        if kind in _SIMPLE:
            return _SIMPLE[kind](*rest)
        if kind in ("external", "holder"):
            return (self._externals if kind == "external" else self._holders)[rest[0]]
        if kind == "same":
            return self._same(rest[0])
        live = self._unused(live)
        if kind in _SEQUENCES:
            return self._sequence(node, live, at)
        if kind in _MAPPINGS:
            return self._mapping(node, live, at)
        value = self._leaf(node, live, at)
        self._made[at] = value
        self._used.add(id(value))
        return value

    def _unused(self, live: Any) -> Any:
        return _MISSING if id(live) in self._used else live

    def _same(self, path: str) -> Any:
        if path not in self._made:
            owner = path
            while owner not in self._target.owners:
                owner = owner.rpartition("/")[0]
            self._attribute(owner)
        return self._made[path]

    def _sequence(self, node: Json, live: Any, at: str) -> Any:
        kind, nodes, length = node
        items = list(live) if self._kinds.sequence(live) == kind else []
        is_fixed = kind in ("tuple", "frozenset")
        fits = not is_fixed and self._kinds.sequence(live) == kind and getattr(live, "maxlen", None) == length
        value: Any = live if fits else deque(maxlen=length) if kind == "deque" else _SEQUENCES[kind]()
        if not is_fixed:
            self._made[at] = value
            self._used.add(id(value))
        made = [
            self._value(one, items[index] if index < len(items) else _MISSING, f"{at}/{index}")
            for index, one in enumerate(nodes)
        ]
        if is_fixed:
            return _SEQUENCES[kind](made)
        value.clear()
        (value.update if kind == "set" else value.extend)(made)
        return value

    def _mapping(self, node: Json, live: Any, at: str) -> Any:
        kind, pairs, factory = node
        value = live
        if self._kinds.mapping(live) != kind:
            value = defaultdict(_FACTORIES.get(factory)) if kind == "defaultdict" else _MAPPINGS[kind]()
        self._made[at] = value
        self._used.add(id(value))
        before = dict(value)
        made = {}
        for index, (key, item) in enumerate(pairs):
            name = self._value(key, _MISSING, f"{at}/{index}k")
            made[name] = self._value(item, before.get(name, _MISSING), f"{at}/{index}")
        value.clear()
        value.update(made)
        return value

    def _leaf(self, node: Json, live: Any, at: str) -> Any:
        kind, *rest = node
        values = self._arrays.get(at)
        if kind == "leaf":
            return self._kinds.made(rest[0], values, live)
        if kind == "array":
            dtype, shape, order = rest
            content = self._kinds.loaded(values).tobytes()
            array = np.frombuffer(content, dtype=dtype).reshape(shape, order=order)
            if type(live) is np.ndarray and (live.dtype, live.shape) == (array.dtype, array.shape):
                live[...] = array
                return live
            return array.copy(order)
        return self._generator(node, live, at)

    def _generator(self, node: Json, live: Any, at: str) -> Any:
        kind, bits, saved = node
        state = self._value(saved, _MISSING, f"{at}/0")
        if kind == "random":
            python = live if type(live) is random.Random else random.Random()
            python.setstate(state)
            return python
        if not bits:
            older = live if type(live) is np.random.RandomState else np.random.RandomState()
            older.set_state(state)
            return older
        fits = type(live) is np.random.Generator and type(live.bit_generator).__name__ == bits
        generator = live if fits else np.random.Generator(getattr(np.random, bits)())
        generator.bit_generator.state = state
        return generator


def _simple(value: Any) -> Json:
    """Return the node of a value that contains nothing and has no identity; None for another value."""
    if value is None or type(value) in (bool, int, float, str):
        return ["value", value]
    if type(value) in (bytes, bytearray):
        return [type(value).__name__, value.hex()]
    if type(value) is complex:
        return ["complex", value.real, value.imag]
    if isinstance(value, np.generic) and type(value).__module__ == "numpy" and not value.dtype.hasobject:
        return ["scalar", value.dtype.str, value.tobytes().hex()]
    return None


def _within(at: str, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arrays of an attribute, by name."""
    return {name: one for name, one in arrays.items() if name == at or name.startswith(f"{at}/")}


def _names(slots: Any) -> Iterator[str]:
    yield from [slots] if isinstance(slots, str) else slots


def _plain(state: Any) -> Any:
    """Return the state of a generator with dictionaries and numbers of Python's own kinds."""
    if isinstance(state, Mapping):
        return {key: _plain(value) for key, value in state.items()}
    return state.item() if isinstance(state, np.generic) else state


def _text(node: Json) -> str:
    """Return a node as text, in which NaN equals itself, and 0.0 is not -0.0 or 0."""
    return repr(node)
