"""An estimator as named arrays of bytes: what skops writes, in a form that is a function of the estimator alone.

skops (https://skops.readthedocs.io) describes an object by a tree of JSON nodes and keeps each array in a file of its own. It
names both by addresses in memory. Here nodes bear a number only where two places hold the same object, counted in the order of
the tree; the files stand one after the other in one tensor for each attribute (`coef_`, `estimators_.17`), and nodes refer to
them by position. The tree itself is the tensor `structure`.

Nothing that is loaded runs code of the file's choosing: skops makes only objects of trusted types. Those are its own defaults
(scikit-learn's estimators, NumPy's types), classes in scikit-learn's modules named here, and classes of the packages that
the user's own model comes from, once this process has imported them for it.
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
from trainyard.frameworks.stored import bytes_array
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
    "numpy.dtype",
    "scipy._lib.array_api_compat.numpy._aliases.asarray",
    "sklearn.cluster._kmeans._kmeans_single_lloyd",
    "sklearn.metrics._classification.balanced_accuracy_score",
)
# Values that cannot change: whether two places share one of them is an accident of the process that made them.
VALUES = {"JsonNode", "TypeNode", "FunctionNode", "SliceNode", "BytesNode", "DTypeNode", "TupleNode", "OperatorFuncNode"}
PLUMBING = {"content", "__reduce__", "args", "attrs", "main"}  # keys of nodes that are no names of the estimator's own


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
    return node.get("__loader__") in VALUES or (node.get("__loader__") == "NdArrayNode" and node["__class__"] != "ndarray")


@dataclass(frozen=True)
class Trust:
    """What the user's own model vouches for: the types and functions it is made of, by their dotted names, and the classes of
    `packages` (top-level names), as far as they are imported already.
    """

    names: frozenset[str] = frozenset()
    packages: frozenset[str] = frozenset()

    def covers(self, module: str, name: str) -> bool:
        if module in MODULES or f"{module}.{name}" in table()["estimators"]:
            return isinstance(getattr(importlib.import_module(module), name, None), type)
        ours = module.partition(".")[0] in self.packages and isinstance(getattr(sys.modules.get(module), name, None), type)
        return ours or f"{module}.{name}" in {*NAMES, *self.names}


def trust_in(value: Any) -> Trust:
    """The trust that an object of this process deserves: what a file holds must be made of the same.

    Raises:
        ModelError: it holds something that cannot be stored safely.
    """
    packed = pack(value)
    found = set(_types(json.loads(packed[STRUCTURE].tobytes())))
    foreign = {module.partition(".")[0] for module, _ in found} - {"builtins", "sklearn", "numpy", "scipy"}
    trust = Trust(frozenset(f"{module}.{name}" for module, name in found), frozenset(foreign - sys.stdlib_module_names))
    try:
        unpack(packed, trust)
    except ModelError as error:
        reason = "functions and classes in it must be found by their names: a lambda is not"
        raise ModelError(f"{type(value).__name__} cannot be stored without pickle: {error}; {reason}") from error
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
        buffer = io.BytesIO()
        with ZipFile(buffer, "w") as archive:
            archive.writestr("schema.json", arrays[STRUCTURE].tobytes())
            for place in dict.fromkeys(_places(schema)):
                name, start, stop = place.rsplit(":", 2)
                archive.writestr(place, arrays[name][int(start) : int(stop)].tobytes())
        return skops.loads(
            buffer.getvalue(),
            trusted=sorted(f"{module}.{name}" for module, name in set(_types(schema)) if trust.covers(module, name)),
        )
    except UntrustedTypesFoundException as error:
        raise ModelError(f"the weights hold objects of types that are not trusted, and were not loaded: {error}") from error
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


def _types(value: Any) -> Iterator[tuple[str, str]]:
    """The module and the name of every type and function in a tree."""
    if isinstance(value, dict):
        module, name = value.get("__module__"), value.get("__class__")
        if isinstance(module, str) and isinstance(name, str) and "__loader__" in value:
            yield module, name
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from _types(one)
