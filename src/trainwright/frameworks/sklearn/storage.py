"""Pack estimators into named byte arrays and unpack them safely.

skops (https://skops.readthedocs.io) writes an object as a tree of JSON nodes, and each array as a file of its
own. It names both by memory addresses. Here the result depends on the object alone: a node has a number only
if several nodes stand for the same object, counted in the order of the tree; the files of an attribute
(`coef_`, `estimators_.17`) are concatenated into one tensor, and nodes refer to them by name and range. The
tree itself is the tensor `structure`.

Loading never runs code that the file chooses, since skops creates only objects of trusted types. Trusted are
skops's own defaults (scikit-learn's estimators, NumPy's types), classes defined in the scikit-learn modules
listed below, and classes defined in the packages of the user's own model, if this process has imported them
for it. skops only checks names, but some of its loaders call what is named with arguments from the file.
Therefore this module also checks what each loader may name.
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

from trainwright.errors import ModelError
from trainwright.frameworks.sklearn.params import table
from trainwright.frameworks.support.stored import bytes_array
from trainwright.types import Array

Node = dict[str, Any]

STRUCTURE = "structure"
TRUSTED_MODULES = (  # modules of the parts of fitted estimators; skops leaves it to its callers to trust them
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
RANDOM = "random.Random"  # its loader only sets the state, which it checks
MAPPING = "collections.OrderedDict"  # what LightGBM's estimators have their scores in
TRUSTED_NAMES = (
    MAPPING,
    "functools.partial",  # only of CHECK_ARRAY, which histogram gradient boosting uses for categories
    "numpy.dtype",
    RANDOM,
    "scipy._lib.array_api_compat.numpy._aliases.asarray",
    "sklearn.cluster._kmeans._kmeans_single_lloyd",
    "sklearn.metrics._classification.balanced_accuracy_score",
    "sklearn.utils.validation.check_array",
)
CHECK_ARRAY = ("FunctionNode", "sklearn.utils.validation", "check_array")
LIBRARIES = {"builtins", "numpy", "scipy", "sklearn"}
CALLED = {  # loaders that call the class they name -> the classes that it must derive from
    "DictNode": (dict,),
    "ListNode": (list,),
    "SetNode": (set,),
    "TupleNode": (tuple,),
    "NdArrayNode": (np.ndarray, np.generic),
    "RandomGeneratorNode": (np.random.Generator,),
    "RandomStateNode": (np.random.RandomState,),
}
KEY_TYPES = (str, int, float, np.generic)  # allowed types of the keys of mappings, which are called, too
LOSS_MODULES = {"sklearn._loss._loss", "sklearn.linear_model._sgd_fast"}
IGNORES_NAME = {  # loaders that do not use the name
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
MIN_PROTOCOL = 1  # the oldest protocol of skops whose loaders this module knows
# Immutable values: whether two nodes share one object depends on the process that created them, and does not
# matter.
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
CONSTANTS = (
    "sklearn._loss.link"  # objects of this module count as immutable values: classes share some of them
)
# Attributes of a search that hold durations, which are not part of the model.
TIMES = {f"{kind}_{what}_time" for kind in ("mean", "std") for what in ("fit", "score")} | {"refit_time_"}
# Keys of nodes, as opposed to attributes' names.
NODE_KEYS = {
    "content",
    "__reduce__",
    "args",
    "attrs",
    "main",
}


def import_skops() -> Any:
    """Import and return the module `skops.io`.

    During its import, skops asks scikit-learn for all estimators, whose types it trusts by name. That would
    import all of scikit-learn (and torch, if it is installed), which takes seconds. Therefore skops is given
    the names from `models.json` instead.
    """
    from sklearn import utils

    all_estimators = utils.all_estimators
    if "skops.io" not in sys.modules:
        utils.all_estimators = lambda: [
            (name, SimpleNamespace(__module__=module, __name__=name)) for module, name in _estimators()
        ]
    try:
        return importlib.import_module("skops.io")
    finally:
        utils.all_estimators = all_estimators


def _estimators() -> Iterator[tuple[str, str]]:
    """Yield the module and the name of each estimator of scikit-learn."""
    for dotted in table()["estimators"]:
        module, _, name = dotted.rpartition(".")
        yield module, name


def pack(value: Any) -> dict[str, Array]:
    """Pack an object into (bytes,) uint8 arrays by name, which are equal for equal objects in every process.

    Raises:
        ModelError: The object holds something that cannot be stored safely.
    """
    skops = import_skops()
    from skops.io.exceptions import UnsupportedTypeException

    try:
        data = skops.dumps(value)
    except (UnsupportedTypeException, TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"{type(value).__name__} cannot be stored without pickle: {error}") from error
    with ZipFile(io.BytesIO(data)) as archive:
        return _Packer(archive).pack(json.loads(archive.read("schema.json")))


class _Packer:
    """Rewrite the tree and the files of one skops archive."""

    def __init__(self, archive: ZipFile) -> None:
        self._archive = archive
        self._shared: dict[
            int, int
        ] = {}  # memory address of a shared object -> its number, 0 if not yet seen
        self._files: dict[int, str] = {}  # number of a shared array -> its span, NAME:START:STOP
        self._parts: dict[str, list[bytes]] = {}  # tensor's name -> its files
        self._lengths: Counter[str] = Counter()  # tensor's name -> its bytes so far

    def pack(self, schema: Node) -> dict[str, Array]:
        """Rewrite the tree in place, and return all tensors."""
        for constant in [node for node in _nodes(schema) if node.get("__module__") == CONSTANTS]:
            for node in list(_nodes(constant)):
                del node["__id__"]
        counts = Counter(node["__id__"] for node in _nodes(schema) if not _is_value(node))
        self._shared = {address: 0 for address, count in counts.items() if count > 1}
        del schema["_skops_version"]  # the format is identified by `protocol`
        self._rewrite(schema, ())
        tensors = {name: bytes_array(b"".join(parts)) for name, parts in self._parts.items()}
        structure = json.dumps(schema, separators=(",", ":"))
        return {**tensors, STRUCTURE: bytes_array(structure.encode())}

    def _rewrite(self, value: Any, path: tuple[str, ...]) -> None:
        """Rewrite a subtree; `path` are the attributes' names and indices that lead to it."""
        if isinstance(value, list):
            for index, item in enumerate(value):
                self._rewrite(item, (*path, str(index)))
        elif isinstance(value, dict):
            _remove_times(value)
            self._renumber(value)
            if isinstance(value.get("file"), str) and "__loader__" in value:
                value["file"] = self._append_file(value, path)
            for key, child in value.items():
                self._rewrite(child, path if key in NODE_KEYS else (*path, key))
            if value.get("__loader__") == "SetNode":  # the order of a set depends on the process
                value["content"].sort(key=json.dumps)

    def _renumber(self, node: Node) -> None:
        """Replace a node's memory address by the number of its object, if the object is shared."""
        address = node.pop("__id__", None)
        if address in self._shared and not _is_value(node):
            self._shared[address] = self._shared[address] or 1 + max(self._shared.values())
            node["__id__"] = self._shared[address]

    def _append_file(self, node: Node, path: tuple[str, ...]) -> str:
        """Append a node's file to the tensor of its attribute, and return its span."""
        number = node.get("__id__", 0)
        if number in self._files:
            return self._files[number]
        name = ".".join(path[: 2 if len(path) > 1 and path[1].isdecimal() else 1]) or "value"
        data, start = _without_padding(self._archive.read(node["file"])), self._lengths[name]
        self._parts.setdefault(name, []).append(data)
        self._lengths[name] += len(data)
        span = f"{name}:{start}:{start + len(data)}"
        if number:
            self._files[number] = span
        return span


def _remove_times(node: Node) -> None:
    """Remove the durations that a search records, since they differ from run to run."""
    if node.get("__loader__") == "DictNode" and not TIMES.isdisjoint(node["content"]):
        kept = [name not in TIMES for name in node["content"]]
        node["content"] = {name: value for name, value in node["content"].items() if name not in TIMES}
        types = node["key_types"]["content"]
        node["key_types"]["content"] = [key_type for key_type, keep in zip(types, kept, strict=True) if keep]


def _without_padding(data: bytes) -> bytes:
    """Zero the padding between the fields of a structured .npy array, which may hold arbitrary bytes."""
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
    """Yield all nodes of a tree that have a memory address or number."""
    if isinstance(value, dict):
        if "__id__" in value:
            yield value
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _nodes(item)


def _is_value(node: Node) -> bool:
    """Return whether a node stands for an immutable value."""
    return node.get("__loader__") in VALUES or (
        node.get("__loader__") == "NdArrayNode" and node["__class__"] != "ndarray"
    )


@dataclass(frozen=True)
class Trust:
    """Types and functions that are trusted as the user's own model has them.

    `seen` are the (loader, module, name) of the types and functions in the model. `packages` are the
    top-level packages that they come from: all classes defined there are trusted, if they are already
    imported.
    """

    seen: frozenset[tuple[str, str, str]] = frozenset()
    packages: frozenset[str] = frozenset()

    def covers(self, module: str, name: str) -> bool:
        """Return whether objects of a type, or a function, may be in a file."""
        if any(seen[1:] == (module, name) for seen in self.seen) or f"{module}.{name}" in TRUSTED_NAMES:
            return True
        if module in TRUSTED_MODULES or f"{module}.{name}" in table()["estimators"]:
            return _defined(importlib.import_module(module), name)
        return module.partition(".")[0] in self.packages and _defined(sys.modules.get(module), name)

    def allows(self, node: Node) -> bool:
        """Return whether a node's loader may be used with the name in the node; `covers` must hold too."""
        reference = loader, module, _ = _reference(node)
        if loader == "DictNode" and not _are_key_types(node["key_types"]):
            return False
        if reference in self.seen:
            return "__id__" not in loader
        return _is_harmless(node) or (loader == "ObjectNode" and module.partition(".")[0] in self.packages)


def _is_harmless(node: Node) -> bool:
    """Return whether a node's loader neither calls nor passes on anything that could do harm."""
    loader, module, name = _reference(node)
    if loader in CALLED:
        target = getattr(sys.modules.get(module), name, None)
        return isinstance(target, type) and issubclass(target, CALLED[loader])
    if loader == "PartialNode":
        func = node["content"]["func"]
        return _reference(func) == CHECK_ARRAY and "__id__" not in func
    if loader in {"ObjectNode", "FunctionNode", "TypeNode"}:
        if (loader, f"{module}.{name}") in {("ObjectNode", RANDOM), ("TypeNode", MAPPING)}:
            return True
        return module.partition(".")[0] in LIBRARIES
    return loader in IGNORES_NAME or (loader == "LossNode" and module in LOSS_MODULES)


def _defined(module: Any, name: str) -> bool:
    """Return whether the module itself defines a class of this name, as opposed to importing it."""
    target = getattr(module, name, None)
    return isinstance(target, type) and (target.__module__, target.__qualname__) == (module.__name__, name)


def _reference(node: Node) -> tuple[str, str, str]:
    """Return a node's loader, and the module and name it refers to.

    For functions of `operator`, such as `itemgetter`, the loader includes the arguments, which determine what
    they do.
    """
    loader, module, name = node["__loader__"], node["__module__"], node["__class__"]
    if not (isinstance(loader, str) and isinstance(module, str) and isinstance(name, str)):
        raise ValueError("a node without a name")
    return loader + json.dumps(node["attrs"]) if loader == "OperatorFuncNode" else loader, module, name


def _are_key_types(node: Node) -> bool:
    """Return whether a node lists allowed types of a mapping's keys.

    Nodes with an `__id__` are refused, since skops would put another node with the same number in their
    place.
    """
    if "__id__" in node or node["__loader__"] != "ListNode":
        return False
    items = node["content"]
    types = [getattr(sys.modules.get(item["__module__"]), item["__class__"], None) for item in items]
    plain = all(item["__loader__"] == "TypeNode" and "__id__" not in item for item in items)
    return plain and all(isinstance(one, type) and issubclass(one, KEY_TYPES) for one in types)


def trust_for(value: Any) -> Trust:
    """Return the trust under which files with objects like `value` can be loaded.

    Raises:
        ModelError: The object holds something that cannot be stored safely.
    """
    packed = pack(value)
    seen = frozenset(_reference(node) for node in _loaded_nodes(json.loads(packed[STRUCTURE].tobytes())))
    foreign = {module.partition(".")[0] for _, module, _ in seen} - LIBRARIES - sys.stdlib_module_names
    trust = Trust(seen, frozenset(foreign))
    try:
        unpack(packed, trust)
    except ModelError as error:
        reason = "functions and classes in it must be importable by name, which a lambda is not"
        raise ModelError(
            f"{type(value).__name__} cannot be stored without pickle: {error}; {reason}"
        ) from error
    return trust


def unpack(arrays: Mapping[str, Array], trust: Trust) -> Any:
    """Return the object that was packed.

    Args:
        arrays: The arrays that `pack` returned.
        trust: What is trusted in addition to scikit-learn.

    Raises:
        ModelError: The arrays do not come from `pack`, or hold an object of a type that is not trusted.
    """
    skops = import_skops()
    from skops.io.exceptions import UntrustedTypesFoundException

    try:
        schema = json.loads(arrays[STRUCTURE].tobytes())
        if schema["protocol"] < MIN_PROTOCOL:
            raise ValueError(f"protocol {schema['protocol']} of skops is not supported")
        nodes = list(_loaded_nodes(schema))
        if refused := {
            f"{node['__module__']}.{node['__class__']}" for node in nodes if not trust.allows(node)
        }:
            raise UntrustedTypesFoundException(refused)
        names = {(node["__module__"], node["__class__"]) for node in nodes}
        buffer = io.BytesIO()
        with ZipFile(buffer, "w") as archive:
            archive.writestr("schema.json", arrays[STRUCTURE].tobytes())
            for span in dict.fromkeys(_file_spans(schema)):
                name, start, stop = span.rsplit(":", 2)
                archive.writestr(span, arrays[name][int(start) : int(stop)].tobytes())
        trusted = sorted(f"{module}.{name}" for module, name in names if trust.covers(module, name))
        return skops.loads(buffer.getvalue(), trusted=trusted)
    except UntrustedTypesFoundException as error:
        raise ModelError(
            f"the weights hold objects of types that are not trusted and were not loaded: {error}"
        ) from error
    except (KeyError, ValueError, TypeError, AttributeError, ImportError) as error:
        raise ModelError(f"this file holds no estimator weights: {type(error).__name__}: {error}") from error


def _file_spans(value: Any) -> Iterator[str]:
    """Yield the spans (NAME:START:STOP) of all files in a tree."""
    if isinstance(value, dict):
        if isinstance(value.get("file"), str) and "__loader__" in value:
            yield value["file"]
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _file_spans(item)


def _loaded_nodes(value: Any) -> Iterator[Node]:
    """Yield all nodes of a tree that have a loader."""
    if isinstance(value, dict):
        if "__loader__" in value:
            yield value
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _loaded_nodes(item)


def same(one: Any, other: Any) -> bool:
    """Return whether two values have the same packed form."""
    first, second = pack(one), pack(other)
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)
