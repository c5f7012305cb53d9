"""Trees and sums of trees as models of PMML, with the decisions of the libraries' own comparisons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from trainwright.exporters.pmml.models import Labels, chain, linked
from trainwright.exporters.pmml.preparation import Features
from trainwright.exporters.pmml.xml import Element, apply, constant, element, field, schema
from trainwright.exporters.trees import AT_MOST, MEMBER, Branch, Ensemble, Leaf, Tree
from trainwright.types import DataInfo

if TYPE_CHECKING:
    from trainwright.exporters.trees.sklearn import Fitted


def summed_trees(ensemble: Ensemble, features: Features, info: DataInfo, target: str) -> Element:
    """Return a model of what is made of the sums of trees."""
    sums, raws, values = [], [], []
    for number in range(ensemble.width):
        own = [tree for tree in ensemble.trees if _target(tree) == number]
        models = [_regression_tree(tree, features) for tree in own]
        raws.append(f"sum({number})")
        sums.append(_combined(models, "sum", raws[-1]))
        values.append(_value(ensemble, raws[-1], number))
    return chain(sums, linked(raws, values, ensemble.link, info, target), info)


def averaged_trees(trees: Sequence[Fitted], features: Features, info: DataInfo) -> Element:
    """Return a model of the mean of what the leaves of scikit-learn's trees hold, without its schema.

    Args:
        trees: The trees; their leaves have one value or the shares of classes.
        features: The features, in float.
        info: The description of the data.
    """
    single = features.as_float()
    models = []
    for tree in trees:
        if tree.values.shape[1] == 1:
            models.append(_regression_tree(tree.nodes, single, tree.values[:, 0].tolist()))
        else:
            models.append(_classification_tree(tree, single, info))
    if len(models) == 1:
        (model,) = models
        model.remove(model[0])  # its schema: it becomes the document's only model
        return model
    return _combined(models, "average")


def _target(tree: Tree) -> int:
    return next(node.target for node in tree if isinstance(node, Leaf))


def _value(ensemble: Ensemble, raw: str, number: int) -> Element:
    """Return what a sum stands for; see `Ensemble`."""

    def shifted() -> Element:
        value = field(raw)
        if ensemble.divisor != 1:
            value = apply("/", value, constant(float(ensemble.divisor)))
        if ensemble.base is not None:
            value = apply("+", value, constant(float(np.broadcast_to(ensemble.base, ensemble.width)[number])))
        return value

    value = apply("*", shifted(), apply("abs", shifted())) if ensemble.squares else shifted()
    return value if ensemble.factor == 1 else apply("*", value, constant(float(ensemble.factor)))


def _combined(models: Sequence[Element], method: str, name: str | None = None) -> Element:
    """Return a model that calls others: an inner one with an output of a name, or one without its schema."""
    segments = [element("Segment", element("True"), one, id=i) for i, one in enumerate(models, start=1)]
    made = element("MiningModel", functionName=models[0].get("functionName"))
    if name is not None:
        output = element(
            "OutputField", name=name, optype="continuous", dataType="double", feature="predictedValue"
        )
        made.extend([schema(_used(models)), element("Output", output)])
    made.append(element("Segmentation", *segments, multipleModelMethod=method))
    return made


def _used(models: Sequence[Element]) -> list[str]:
    """Return the fields that models take."""
    names = [one.get("name", "") for model in models for one in model[0]]
    return list(dict.fromkeys(names))


def _regression_tree(tree: Tree, features: Features, values: Sequence[float] | None = None) -> Element:
    """Return a tree of numbers: those of its leaves, or those given for its nodes."""

    def leaf(node: Element, own: int) -> None:
        one = tree[own]
        assert isinstance(one, Leaf)
        node.set("score", repr(float(one.value if values is None else values[own])))

    return _tree_model(tree, features, "regression", leaf)


def _classification_tree(tree: Fitted, features: Features, info: DataInfo) -> Element:
    labels = Labels(info).values

    def leaf(node: Element, own: int) -> None:
        count, values = float(tree.weights[own]), tree.values[own]
        node.set("score", element("Value", value=labels[int(values.argmax())]).get("value", ""))
        node.extend(
            [
                element("ScoreDistribution", value=label, recordCount=count * share, probability=share)
                for label, share in zip(labels, values.tolist(), strict=True)
            ]
        )

    return _tree_model(tree.nodes, features, "classification", leaf)


def _tree_model(
    tree: Tree, features: Features, function: str, leaf: Callable[[Element, int], None]
) -> Element:
    """Return a tree, in which a missing feature goes where it went in training."""
    root = element("Node", element("True"), id=0)
    waiting = [(root, 0)]
    while waiting:
        made, own = waiting.pop()
        node = tree[own]
        if isinstance(node, Leaf):
            leaf(made, own)
            continue
        made.set("defaultChild", str(node.yes if node.missing_is_yes else node.no))
        for child, is_yes in ((node.yes, True), (node.no, False)):
            inner = element("Node", _predicate(node, features, is_yes), id=child)
            made.append(inner)
            waiting.append((inner, child))
    used = sorted({node.feature for node in tree if isinstance(node, Branch)})
    return element(
        "TreeModel",
        schema([features.names[i] for i in used]),
        root,
        functionName=function,
        missingValueStrategy="defaultChild",
        splitCharacteristic="binarySplit",
    )


def _predicate(node: Branch, features: Features, is_yes: bool) -> Element:
    name = features.names[node.feature]
    if node.mode == MEMBER:
        values = element("Array", type="real", n=len(node.categories))
        values.text = " ".join(repr(float(one)) for one in node.categories)
        return element(
            "SimpleSetPredicate", values, field=name, booleanOperator="isIn" if is_yes else "isNotIn"
        )
    value = _threshold(node, features.dtype)
    if not np.isfinite(value):  # a split between missing values and all others
        yes_asks = "isNotMissing" if value > 0 else "isMissing"
        if (value < 0) != node.missing_is_yes:  # nothing goes to one side
            return element("True" if is_yes == (value > 0) else "False")
        asks = {True: yes_asks, False: "isMissing" if value > 0 else "isNotMissing"}[is_yes]
        return element("SimplePredicate", field=name, operator=asks)
    operators = ("lessOrEqual", "greaterThan") if node.mode == AT_MOST else ("lessThan", "greaterOrEqual")
    return element("SimplePredicate", field=name, operator=operators[0 if is_yes else 1], value=value)


def _threshold(node: Branch, dtype: str) -> float:
    """Return a threshold at which features of a dtype part as at that of the node.

    A float is at most t where it is at most the largest float that is not above t, and less than t where it
    is less than the smallest that is not below t.
    """
    if dtype == "double":
        return node.value
    with np.errstate(over="ignore"):
        near = np.float32(node.value)
    if node.mode == AT_MOST and float(near) > node.value:
        near = np.nextafter(near, np.float32(-np.inf))
    if node.mode != AT_MOST and float(near) < node.value:
        near = np.nextafter(near, np.float32(np.inf))
    return float(near)
