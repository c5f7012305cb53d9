"""Models of PMML whose numbers are made by other models, and the outputs of a document."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainwright.errors import InputError
from trainwright.exporters.base import names_classes
from trainwright.exporters.pmml.xml import NEAREST, Element, apply, constant, derived, element, field, schema
from trainwright.tasks.support.transforms import TargetTransform, transform_of
from trainwright.types import DataInfo


class Labels:
    """The classes of a target, as PMML has them."""

    def __init__(self, info: DataInfo) -> None:
        labels = list(info.classes) if info.classes is not None else list(range(info.outputs))
        kinds = {"boolean": (bool, np.bool_), "integer": (int, np.integer), "double": (int, float, np.number)}
        self.dtype = next(
            (name for name, kind in kinds.items() if all(isinstance(one, kind) for one in labels)), "string"
        )
        self.values = [float(one) if self.dtype == "double" else one for one in labels]

    def data_field(self, target: str) -> Element:
        """Return the field of the target."""
        values = [element("Value", value=one) for one in self.values]
        return element("DataField", *values, name=target, optype="categorical", dataType=self.dtype)


def check_outputs(info: DataInfo) -> None:
    """Check that a model predicts one class of a row, or one number.

    Raises:
        InputError: It predicts several.
    """
    if not names_classes(info) and (info.outputs != 1 or len(np.ravel(info.target_offset)) > 1):
        raise InputError(f"a PMML document has one target, and the run predicts {info.outputs}; {NEAREST}")


def data_field(info: DataInfo, target: str) -> Element:
    """Return the field of the target."""
    if names_classes(info):
        return Labels(info).data_field(target)
    return element("DataField", name=target, optype="continuous", dataType="double")


def output(info: DataInfo, values: Element | None = None) -> Element:
    """Return the outputs: `label` and `probability(...)`, or `prediction` in the target's unit.

    Args:
        info: The description of the data.
        values: For numbers, the expression of what the model gives, if that is not yet the prediction.
    """
    if names_classes(info):
        labels = Labels(info)
        label = _output_field("label", "predictedValue", labels.dtype, optype="categorical")
        return element(
            "Output",
            label,
            *(
                _output_field(f"probability({one})", "probability", value=one, optype="continuous")
                for one in labels.values
            ),
        )
    raw = _output_field("raw", "predictedValue", optype="continuous")
    expression = field("raw") if values is None else values
    for offset in np.ravel(info.target_offset).tolist():
        expression = apply("+", expression, constant(float(offset)))
    steps = []
    transform = transform_of(info)
    if transform is not None and transform.kind not in _INVERSES and "values" in transform.columns[0]:
        # A table takes a field, not an expression.
        steps.append(_output_field("score", "transformedValue", expression=expression, optype="continuous"))
        expression = _interpolated(transform)
    elif transform is not None:
        expression = _restored(expression, transform)
    prediction = _output_field("prediction", "transformedValue", expression=expression, optype="continuous")
    return element("Output", raw, *steps, prediction)


def _output_field(
    name: str, feature: str, dtype: str = "double", expression: Element | None = None, **attributes: object
) -> Element:
    return element("OutputField", expression, name=name, dataType=dtype, feature=feature, **attributes)


_INVERSES = ("log", "log1p", "sqrt")


def _restored(value: Element, transform: TargetTransform) -> Element:
    """Return a value in the target's original unit."""
    match transform.kind:
        case "log":
            return apply("exp", value)
        case "log1p":
            return apply("expm1", value)
        case "sqrt":
            return apply("pow", apply("max", value, constant(0.0)), constant(2.0))
    (column,) = transform.columns
    scaled = apply("*", value, constant(float(column["scale"])))
    return apply("+", scaled, constant(float(column["mean"])))


def _interpolated(transform: TargetTransform) -> Element:
    """Return a piecewise linear function of `score`, constant beyond its ends, as `numpy.interp`."""
    (column,) = transform.columns
    scores, values = column["scores"], column["values"]
    if len(scores) == 1:
        return apply("+", apply("*", field("score"), constant(0.0)), constant(float(values[0])))
    knots = [
        element("LinearNorm", orig=float(score), norm=float(value))
        for score, value in zip(scores, values, strict=True)
    ]
    return element("NormContinuous", *knots, field="score", outliers="asExtremeValues")


def chain(steps: Sequence[Element], last: Element, info: DataInfo) -> Element:
    """Return a model that calls `last` on the outputs of other models."""
    segments = [
        element("Segment", element("True"), one, id=i) for i, one in enumerate([*steps, last], start=1)
    ]
    segmentation = element("Segmentation", *segments, multipleModelMethod="modelChain")
    return element("MiningModel", segmentation, functionName=function_of(info))


def function_of(info: DataInfo) -> str:
    """Return the name that PMML has for what a model does."""
    return "classification" if names_classes(info) else "regression"


def linked(
    raws: Sequence[str], expressions: Sequence[Element], link: str, info: DataInfo, target: str
) -> Element:
    """Return a model that makes predictions of sums: by identity, exp, sigmoid or softmax.

    Args:
        raws: The fields of the sums.
        expressions: The value that each sum stands for.
        link: What is made of these values.
        info: The description of the data.
        target: The field of the target.

    Raises:
        InputError: PMML has no model for this.
    """
    names = [f"linked({raw})" for raw in raws]
    if names_classes(info) and link == "sigmoid" and len(raws) > 1:
        one = [apply("/", constant(1.0), _one_plus_exp(value)) for value in expressions]
        made = _regression([derived(*pair) for pair in zip(names, one, strict=True)], raws, target)
        return _with_classes(made, names, "simplemax", info)
    made = _regression([derived(*pair) for pair in zip(names, expressions, strict=True)], raws, target)
    if names_classes(info):
        if link == "softmax" or (link == "sigmoid" and len(raws) == 1 and info.outputs == 2):
            return _with_classes(made, names, "softmax" if link == "softmax" else "logit", info)
        raise InputError(f"the model makes probabilities of its outputs as PMML cannot ({link}); {NEAREST}")
    methods = {"identity": "none", "exp": "exp", "sigmoid": "logit"}
    if link not in methods or len(raws) > 1:
        raise InputError(f"the model makes numbers of its outputs as PMML cannot ({link}); {NEAREST}")
    made.set("functionName", "regression")
    made.set("normalizationMethod", methods[link])
    made.append(_table([(names[0], 1.0)], 0.0))
    return made


def _one_plus_exp(value: Element) -> Element:
    """Return 1 + exp(-value)."""
    return apply("+", constant(1.0), apply("exp", apply("*", constant(-1.0), value)))


def linear(
    names: Sequence[str], rows: Sequence[Sequence[float]], starts: Sequence[float], link: str, info: DataInfo
) -> Element:
    """Return a linear model without its schema, of a row of weights and an intercept for each sum."""
    made = element("RegressionModel", functionName=function_of(info))
    tables = [(list(zip(names, row, strict=True)), start) for row, start in zip(rows, starts, strict=True)]
    if not names_classes(info):
        made.set("normalizationMethod", {"identity": "none", "exp": "exp"}[link])
        made.append(_table(*tables[0]))
        return made
    labels = Labels(info).values
    made.set("normalizationMethod", "logit" if len(rows) == 1 else "softmax")
    if len(rows) == 1:
        made.extend([_table(*tables[0], labels[1]), _table([], 0.0, labels[0])])
    else:
        made.extend([_table(*table, label) for table, label in zip(tables, labels, strict=True)])
    return made


def _regression(fields: Sequence[Element], raws: Sequence[str], target: str) -> Element:
    return element("RegressionModel", schema(raws, target), element("LocalTransformations", *fields))


def _with_classes(made: Element, names: Sequence[str], method: str, info: DataInfo) -> Element:
    """Complete a regression with a table for each class; of two classes, `logit` is of the second."""
    made.set("functionName", "classification")
    made.set("normalizationMethod", method)
    labels = Labels(info).values
    if len(names) == 1:
        made.extend([_table([(names[0], 1.0)], 0.0, labels[1]), _table([], 0.0, labels[0])])
    else:
        made.extend([_table([(name, 1.0)], 0.0, label) for name, label in zip(names, labels, strict=True)])
    return made


def _table(terms: Sequence[tuple[str, float]], start: float, label: object = None) -> Element:
    weights = [element("NumericPredictor", name=name, coefficient=float(weight)) for name, weight in terms]
    return element("RegressionTable", *weights, intercept=float(start), targetCategory=label)
