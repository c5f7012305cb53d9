"""An estimator as named arrays of bytes: what skops writes, in a form that is a function of the estimator alone.

skops (https://skops.readthedocs.io) describes an object by a tree of JSON nodes and keeps each array in a file of its own. It
names both by addresses in memory. Here nodes bear a number only where two places hold the same object, counted in the order of
the tree; the files stand one after the other in one tensor for each attribute (`coef_`, `estimators_.17`), and nodes refer to
them by position. The tree itself is the tensor `structure`.

Nothing that is loaded runs code of the file's choosing: skops makes only objects of trusted types. Those are its own defaults
(scikit-learn's estimators, NumPy's types), classes that scikit-learn's modules named here define, and classes that the packages
define which the user's own model comes from, once this process has imported them for it. skops asks for names alone, but some of
its loaders call what is named with arguments from the file; so what each loader may name is looked at here, too.
"""

from __future__ import annotations

import importlib
import io
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from zipfile import ZipFile

import numpy as np

from trainyard.errors import ModelError
from trainyard.frameworks.sklearn.models import table
from trainyard.frameworks.support.stored import bytes_array
from trainyard.types import Array

Node = dict[str, Any]

STRUCTURE = "structure"
MODULES = (  # of fitted estimators' parts that skops leaves to its callers to trust
    "scipy.interpolate._bsplines",
    "sklearn._loss._loss",
    "sklearn._loss.link",
    "sklearn._loss.loss",
    "sklearn.calibration",
    "sklearn.cluster._bisect_k_means",
    "sklearn.ensemble._hist_gradient_boosting.binning",
    "sklearn.ensemble._hist_gradient_boosting.predictor",
    "sklearn.gaussian_process._gpc",
    "sklearn.gaussian_process.kernels",
    "sklearn.metrics._dist_metrics",
    "sklearn.metrics._scorer",
    "sklearn.model_selection._split",
    "sklearn.multiclass",
    "sklearn.neighbors._ball_tree",
    "sklearn.neighbors._kd_tree",
    "sklearn.neural_network._stochastic_optimizers",
    "sklearn.tree._tree",
    "sklearn.utils._bunch",
    "sklearn.utils._metadata_requests",
)
NAMES = (  # the same, one by one
    "functools.partial",  # only of `CHECK`, which histogram-based boosting does with rows that have categories
    "numpy.dtype",
    "scipy._lib.array_api_compat.numpy._aliases.asarray",
    "sklearn.cluster._kmeans._kmeans_single_lloyd",
    "sklearn.metrics._classification.balanced_accuracy_score",
    "sklearn.utils.validation.check_array",
)
CHECK = ("FunctionNode", "sklearn.utils.validation", "check_array")
LIBRARIES = {"builtins", "numpy", "scipy", "sklearn"}
CALLED = {  # loaders that call the class which they name, and what it must be
    "DictNode": (dict,),
    "ListNode": (list,),
    "SetNode": (set,),
    "TupleNode": (tuple,),
    "NdArrayNode": (np.ndarray, np.generic),
    "RandomGeneratorNode": (np.random.Generator,),
    "RandomStateNode": (np.random.RandomState,),
}
KEYS = (str, int, float, np.generic)  # types that the keys of mappings are made with: they are called, too
LOSSES = {"sklearn._loss._loss", "sklearn.linear_model._sgd_fast"}
FIXED = {  # loaders for which the name changes nothing
    "BytearrayNode",
    "BytesNode",
    "DTypeNode",
    "DefaultDictNode",
    "JsonNode",
    "MaskedArrayNode",
    "QuantileForestNode",
    "SliceNode",
    "SparseMatrixNode",
    "TreeNode",
}
PROTOCOL = 1  # of skops, the oldest whose loaders this knows
# Values that cannot change: whether two places share one of them is an accident of the process that made them.
VALUES = {
    "JsonNode",
    "TypeNode",
    "FunctionNode",
    "SliceNode",
    "BytesNode",
    "DTypeNode",
    "TupleNode",
    "OperatorFuncNode",
}
CONSTANTS = "sklearn._loss.link"  # objects of it are such values, too: some belong to the class
TIMES = {f"{kind}_{what}_time" for kind in ("mean", "std") for what in ("fit", "score")} | {
    "refit_time_"
}  # no part of a model
PLUMBING = {
    "content",
    "__reduce__",
    "args",
    "attrs",
    "main",
}  # keys of nodes that are no names of the estimator's own


def imported() -> Any:
    """The module `skops.io`.

    While it is imported, skops asks scikit-learn for all estimators, whose types it trusts by name. The answer would import all
    of scikit-learn, and torch where it is installed, which takes seconds; so it is given the names, which the table holds.
    """
    from sklearn import utils

    asked = utils.all_estimators
    if "skops.io" not in sys.modules:
        utils.all_estimators = lambda: [
            (name, SimpleNamespace(__module__=module, __name__=name)) for module, name in _estimators()
        ]
    try:
        return importlib.import_module("skops.io")
    finally:
        utils.all_estimators = asked


def _estimators() -> Iterator[tuple[str, str]]:
    for dotted in table()["estimators"]:
        module, _, name = dotted.rpartition(".")
        yield module, name


def pack(value: Any) -> dict[str, Array]:
    """(bytes,) uint8 arrays by name; equal for equal objects, in every process.

    Raises:
        ModelError: it holds something that cannot be stored safely.
    """
    skops = imported()
    from skops.io.exceptions import UnsupportedTypeException

    try:
        data = skops.dumps(value)
    except (UnsupportedTypeException, TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"{type(value).__name__} cannot be stored without pickle: {error}") from error
    with ZipFile(io.BytesIO(data)) as archive:
        return _Packing(archive).pack(json.loads(archive.read("schema.json")))


class _Packing:
    """Rewrites the tree of one archive."""

    def __init__(self, archive: ZipFile) -> None:
        self._archive = archive
        self._shared: dict[int, int] = {}  # address -> number
        self._files: dict[int, str] = {}  # number of a shared array -> where it lies
        self._parts: dict[str, list[bytes]] = {}
        self._lengths: Counter[str] = Counter()

    def pack(self, schema: Node) -> dict[str, Array]:
        for constant in [node for node in _nodes(schema) if node.get("__module__") == CONSTANTS]:
            for node in list(_nodes(constant)):
                del node["__id__"]
        counts = Counter(node["__id__"] for node in _nodes(schema) if not _is_value(node))
        self._shared = {address: 0 for address, count in counts.items() if count > 1}
        del schema["_skops_version"]  # whose format `protocol` tells
        self._rewrite(schema, ())
        found = {name: bytes_array(b"".join(parts)) for name, parts in self._parts.items()}
        structure = json.dumps(schema, separators=(",", ":"))
        return {**found, STRUCTURE: bytes_array(structure.encode())}

    def _rewrite(self, value: Any, path: tuple[str, ...]) -> None:
        if isinstance(value, list):
            for index, one in enumerate(value):
                self._rewrite(one, (*path, str(index)))
        elif isinstance(value, dict):
            _leave_out_times(value)
            self._renumber(value)
            if isinstance(value.get("file"), str) and "__loader__" in value:
                value["file"] = self._place(value, path)
            for key, one in value.items():
                self._rewrite(one, path if key in PLUMBING else (*path, key))
            if value.get("__loader__") == "SetNode":  # whose order depends on the process
                value["content"].sort(key=json.dumps)

    def _renumber(self, node: Node) -> None:
        address = node.pop("__id__", None)
        if address in self._shared and not _is_value(node):
            self._shared[address] = self._shared[address] or 1 + max(self._shared.values())
            node["__id__"] = self._shared[address]

    def _place(self, node: Node, path: tuple[str, ...]) -> str:
        """Appends a node's file to the tensor of its attribute; says where."""
        number = node.get("__id__", 0)
        if number in self._files:
            return self._files[number]
        name = ".".join(path[: 2 if len(path) > 1 and path[1].isdecimal() else 1]) or "value"
        data, start = _without_padding(self._archive.read(node["file"])), self._lengths[name]
        self._parts.setdefault(name, []).append(data)
        self._lengths[name] += len(data)
        place = f"{name}:{start}:{start + len(data)}"
        if number:
            self._files[number] = place
        return place


def _leave_out_times(node: Node) -> None:
    """A search remembers how long it took, which no two runs share."""
    if node.get("__loader__") == "DictNode" and not TIMES.isdisjoint(node["content"]):
        kept = [name not in TIMES for name in node["content"]]
        node["content"] = {name: one for name, one in node["content"].items() if name not in TIMES}
        types = node["key_types"]["content"]
        node["key_types"]["content"] = [one for one, keep in zip(types, kept, strict=True) if keep]


def _without_padding(data: bytes) -> bytes:
    """An array's file, with zeros in the gaps between the fields of its records, where anything may lie."""
    if not data.startswith(b"\x93NUMPY") or b"'descr': [" not in data[:200]:
        return data
    array = np.load(io.BytesIO(data), allow_pickle=False)
    clean = np.zeros(array.shape, dtype=array.dtype)
    for name in array.dtype.names or ():
        clean[name] = array[name]
    buffer = io.BytesIO()
    np.save(buffer, clean, allow_pickle=False)
    return buffer.getvalue()


def _nodes(value: Any) -> Iterator[Node]:
    if isinstance(value, dict):
        if "__id__" in value:
            yield value
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from _nodes(one)


def _is_value(node: Node) -> bool:
    return node.get("__loader__") in VALUES or (
        node.get("__loader__") == "NdArrayNode" and node["__class__"] != "ndarray"
    )


@dataclass(frozen=True)
class Trust:
    """What the user's own model vouches for: the types and functions it is made of, each with the loader that makes it, and the
    classes that `packages` (top-level names) define, as far as they are imported already.
    """

    seen: frozenset[tuple[str, str, str]] = frozenset()
    packages: frozenset[str] = frozenset()

    def covers(self, module: str, name: str) -> bool:
        """Whether objects of this type, or this function, may be in a file."""
        if any(one[1:] == (module, name) for one in self.seen) or f"{module}.{name}" in NAMES:
            return True
        if module in MODULES or f"{module}.{name}" in table()["estimators"]:
            return _defined(importlib.import_module(module), name)
        return module.partition(".")[0] in self.packages and _defined(sys.modules.get(module), name)

    def allows(self, node: Node) -> bool:
        """Whether the loader may have what the node names, provided that this is covered."""
        mark = loader, module, _ = _mark(node)
        if loader == "DictNode" and not _makes_keys(node["key_types"]):
            return False
        if mark in self.seen:
            return "__id__" not in loader
        return _harmless(node) or (loader == "ObjectNode" and module.partition(".")[0] in self.packages)


def _harmless(node: Node) -> bool:
    """Whether the loader may have what the node names in any file: it calls nothing that could do harm, nor hands it on."""
    loader, module, name = _mark(node)
    if loader in CALLED:
        found = getattr(sys.modules.get(module), name, None)
        return isinstance(found, type) and issubclass(found, CALLED[loader])
    if loader == "PartialNode":
        func = node["content"]["func"]
        return _mark(func) == CHECK and "__id__" not in func
    if loader in {"ObjectNode", "FunctionNode", "TypeNode"}:
        return module.partition(".")[0] in LIBRARIES
    return loader in FIXED or (loader == "LossNode" and module in LOSSES)


def _defined(module: Any, name: str) -> bool:
    """Whether the module itself defines such a class; it may have imported anything."""
    found = getattr(module, name, None)
    return isinstance(found, type) and (found.__module__, found.__qualname__) == (module.__name__, name)


def _mark(node: Node) -> tuple[str, str, str]:
    """The loader of a node, and what it names; of an operator's function with its arguments, which say what it does."""
    loader, module, name = node["__loader__"], node["__module__"], node["__class__"]
    if not (isinstance(loader, str) and isinstance(module, str) and isinstance(name, str)):
        raise ValueError("a node without a name")
    return loader + json.dumps(node["attrs"]) if loader == "OperatorFuncNode" else loader, module, name


def _makes_keys(node: Node) -> bool:
    """Whether these are the types of a mapping's keys. A number would let another node stand in for them."""
    if "__id__" in node or node["__loader__"] != "ListNode":
        return False
    types = [getattr(sys.modules.get(one["__module__"]), one["__class__"], None) for one in node["content"]]
    plain = all(one["__loader__"] == "TypeNode" and "__id__" not in one for one in node["content"])
    return plain and all(isinstance(one, type) and issubclass(one, KEYS) for one in types)


def trust_in(value: Any) -> Trust:
    """The trust that an object of this process deserves: what a file holds must be made of the same.

    Raises:
        ModelError: it holds something that cannot be stored safely.
    """
    packed = pack(value)
    seen = frozenset(_mark(node) for node in _loaded(json.loads(packed[STRUCTURE].tobytes())))
    foreign = {module.partition(".")[0] for _, module, _ in seen} - LIBRARIES - sys.stdlib_module_names
    trust = Trust(seen, frozenset(foreign))
    try:
        unpack(packed, trust)
    except ModelError as error:
        reason = "functions and classes in it must be found by their names: a lambda is not"
        raise ModelError(
            f"{type(value).__name__} cannot be stored without pickle: {error}; {reason}"
        ) from error
    return trust


def unpack(arrays: Mapping[str, Array], trust: Trust) -> Any:
    """The object that `pack` was given.

    Raises:
        ModelError: these are no arrays of `pack`, or hold an object of a type that is not trusted.
    """
    skops = imported()
    from skops.io.exceptions import UntrustedTypesFoundException

    try:
        schema = json.loads(arrays[STRUCTURE].tobytes())
        if schema["protocol"] < PROTOCOL:
            raise ValueError(f"protocol {schema['protocol']} of skops is not read")
        nodes = list(_loaded(schema))
        if refused := {
            f"{node['__module__']}.{node['__class__']}" for node in nodes if not trust.allows(node)
        }:
            raise UntrustedTypesFoundException(refused)
        names = {(node["__module__"], node["__class__"]) for node in nodes}
        buffer = io.BytesIO()
        with ZipFile(buffer, "w") as archive:
            archive.writestr("schema.json", arrays[STRUCTURE].tobytes())
            for place in dict.fromkeys(_places(schema)):
                name, start, stop = place.rsplit(":", 2)
                archive.writestr(place, arrays[name][int(start) : int(stop)].tobytes())
        trusted = sorted(f"{module}.{name}" for module, name in names if trust.covers(module, name))
        return skops.loads(buffer.getvalue(), trusted=trusted)
    except UntrustedTypesFoundException as error:
        raise ModelError(
            f"the weights hold objects of types that are not trusted, and were not loaded: {error}"
        ) from error
    except (KeyError, ValueError, TypeError, AttributeError, ImportError) as error:
        raise ModelError(f"these are no weights of an estimator: {type(error).__name__}: {error}") from error


def _places(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("file"), str) and "__loader__" in value:
            yield value["file"]
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from _places(one)


def _loaded(value: Any) -> Iterator[Node]:
    """All nodes of a tree that skops makes something of."""
    if isinstance(value, dict):
        if "__loader__" in value:
            yield value
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from _loaded(one)


def same(one: Any, other: Any) -> bool:
    """Whether two values are stored alike."""
    first, second = pack(one), pack(other)
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)
