"""The first layer or tree of a model in ONNX that differs from the run's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from trainwright.types import Array, DataInfo

_SCOPES = "pkg.torch.onnx.name_scopes"  # torch's: the modules in which a node was called, and its own name
_TOLERANCE = 1e-5


def first_layer(model: onnx.ModelProto, feeds: Mapping[str, Array], module: Any, features: Array) -> str:
    """Return the name of the first module whose outputs differ, as PyTorch calls it; empty: none does.

    Args:
        model: The model.
        feeds: Its inputs.
        module: The run's own module.
        features: (rows, ...) what the module takes.
    """
    own = _outputs_of_layers(module, features)
    places = {name: value for name, value in _layers(model) if name in own}
    found = values(model, list(places.values()), feeds)
    for name, value in places.items():
        given, wanted = found[value], own[name]
        if given.shape != wanted.shape or not _are_close(given, wanted):
            return f"layer {name}"
    return ""


def _layers(model: onnx.ModelProto) -> Iterator[tuple[str, str]]:
    """Yield the modules in the order of their calls, and the last value of each; later ones win."""
    for node in model.graph.node:
        for one in node.metadata_props:
            if one.key == _SCOPES:
                scopes = one.value.strip("[]").replace("'", "").split(", ")
                if len(scopes) > 1 and scopes[-2]:
                    yield scopes[-2], node.output[0]


def _outputs_of_layers(module: Any, features: Array) -> dict[str, Array]:
    import torch

    outputs: dict[str, Array] = {}

    def keep(name: str) -> Any:
        def hook(_layer: Any, _inputs: Any, made: Any) -> None:
            if isinstance(made, torch.Tensor):
                outputs[name] = made.detach().cpu().numpy()

        return hook

    leaves = [(name, one) for name, one in module.named_modules() if not list(one.children())]
    hooks = [one.register_forward_hook(keep(name)) for name, one in leaves]
    try:
        with torch.no_grad():
            module(torch.from_numpy(features))
    finally:
        for one in hooks:
            one.remove()
    return outputs


def first_tree(model: onnx.ModelProto, feeds: Mapping[str, Array], own: Sequence[Array]) -> str:
    """Return the name of the first tree, or round of trees, whose sums differ; empty: none does.

    Args:
        model: The model, which has one node of trees.
        feeds: Its inputs.
        own: What each round of the run's own model adds, (rows, width) float64.
    """
    node = next(one for one in model.graph.node if one.op_type == "TreeEnsemble")
    features = values(model, [node.input[0]], feeds)[node.input[0]].astype(np.float64)
    (roots,) = (one for one in node.attribute if one.name == "tree_roots")
    every = list(roots.ints)
    ends = [len(every) * i // len(own) for i in range(len(own) + 1)]
    for number, ((start, end), wanted) in enumerate(zip(pairwise(ends), own, strict=True), 1):
        given = _sums(node, every[start:end], features)
        if not _are_close(given, wanted.reshape(given.shape)):
            return f"tree {number} of {len(own)}" if end - start == 1 else f"round {number} of {len(own)}"
    return ""


def _sums(node: onnx.NodeProto, roots: Sequence[int], features: Array) -> Array:
    """Return the sums of some of the trees, (rows, width) float64."""
    some = onnx.NodeProto()
    some.CopyFrom(node)
    some.input[:], some.output[:] = ["x"], ["y"]
    for one in some.attribute:
        if one.name == "tree_roots":
            one.ints[:] = roots
    ends = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, [None, None]) for name in "xy"]
    graph = helper.make_graph([some], "trees", ends[:1], ends[1:])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(node.domain, 5)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return values(model, ["y"], {"x": features})["y"]


def values(model: onnx.ModelProto, names: Sequence[str], feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Return values inside a model by name."""
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    known = {one.name for one in whole.graph.output}
    whole.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in known)
    session = onnxruntime.InferenceSession(whole.SerializeToString(), providers=["CPUExecutionProvider"])
    found = session.run(list(names), {name: np.asarray(value) for name, value in feeds.items()})
    return dict(zip(names, found, strict=True))


def _are_close(given: Array, wanted: Array) -> bool:
    return bool(np.allclose(given, wanted, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True))


def rounds_of(framework: str, model: Any, info: DataInfo, features: Array) -> Iterator[Array]:
    """Yield what each round of a booster adds to the raw values of rows, (rows, width) or (rows,)."""
    native, flat = model.native, features.reshape(len(features), -1).astype(np.float32)
    if framework == "xgboost":
        import xgboost

        kinds = ["c" if count else "float" for count in info.categories] or None
        matrix = xgboost.DMatrix(
            flat, feature_names=native.feature_names, feature_types=kinds, enable_categorical=True
        )
        width = native.predict(matrix, output_margin=True).size // len(flat)
        matrix.set_base_margin(np.zeros((len(flat), width), np.float32))
        for number in range(native.num_boosted_rounds()):
            yield native.predict(matrix, iteration_range=(number, number + 1), output_margin=True)
    elif framework == "lightgbm":
        for number in range(native.current_iteration()):
            yield native.predict(flat, start_iteration=number, num_iteration=1, raw_score=True)
    else:
        from trainwright.exporters.onnx.of_catboost import pool_of

        pool = pool_of(native, info, flat)
        for number in range(native.tree_count_):
            raw = native.predict(
                pool, prediction_type="RawFormulaVal", ntree_start=number, ntree_end=number + 1
            )
            yield np.asarray(raw) - (np.asarray(native.get_scale_and_bias()[1]) if number == 0 else 0.0)
