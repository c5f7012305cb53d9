"""Read `tf.train.Example` messages into arrays, without TensorFlow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Literal

import numpy as np
from pydantic import Field

from trainwright.config.fields import Section
from trainwright.datasets.tfrecord.records import read_records
from trainwright.errors import DataError
from trainwright.numerals import listed
from trainwright.require import require
from trainwright.types import Array

# A feature's values in one record: numbers (values,), or byte strings; None where the record lacks it.
Values = Array | list[bytes] | None

_PACKAGE = "trainwright.example"
_KINDS = {
    "float_list": ("FloatList", "TYPE_FLOAT"),
    "int64_list": ("Int64List", "TYPE_INT64"),
    "bytes_list": ("BytesList", "TYPE_BYTES"),
}


class Feature(Section):
    """One feature of the records."""

    dtype: Literal["float32", "float64", "int64", "int32", "uint8", "string"] = Field(
        description="string: text in UTF-8; for bytes, a numeric dtype: packed numbers, little-endian"
    )
    shape: list[int] = Field(
        default_factory=list, description="shape of one record's values; default: a single value"
    )


def read_examples(path: str) -> dict[str, list[Values]]:
    """Return the values of each feature, with one entry per record of the file.

    Raises:
        DataError: The file is damaged, or a record is not a `tf.train.Example`.
    """
    columns: dict[str, list[Values]] = {}
    records = read_records(path)
    for number, record in enumerate(records):
        for name, values in parsed(record.tobytes(), f"{path}: record {number + 1}").items():
            column = columns.setdefault(name, [])
            column += [None] * (number - len(column))
            column.append(values)
    if not columns:
        raise DataError(f"{path}: its records hold no features")
    return {
        name: [*column, *[None] * (len(records) - len(column))] for name, column in sorted(columns.items())
    }


def parsed(data: bytes, where: str) -> dict[str, Values]:
    """Return the values of each feature of a record.

    Args:
        data: The record.
        where: Its name in messages.

    Raises:
        DataError: It is not a `tf.train.Example`.
    """
    try:
        example = _example().FromString(data)
    except require("google.protobuf.message", "tfrecord").DecodeError as error:
        raise DataError(f"{where} is not a tf.train.Example: {error}") from error
    if example.feature_lists:
        raise DataError(f"{where} is a tf.train.SequenceExample; only tf.train.Example can be read")
    return {name: _values(feature) for name, feature in example.features.feature.items()}


def _values(feature: Any) -> Values:
    kind = feature.WhichOneof("kind")
    if kind is None:
        return None
    values = getattr(feature, kind).value
    if kind == "bytes_list":
        return list(values) or None
    return np.array(values, dtype=np.float32 if kind == "float_list" else np.int64) if len(values) else None


@cache
def _example() -> Any:
    """Return the message class, from its own pool: TensorFlow may register the original in this process."""
    descriptor: Any = require("google.protobuf.descriptor_pb2", "tfrecord")
    pool: Any = require("google.protobuf.descriptor_pool", "tfrecord").DescriptorPool()
    kinds = descriptor.FieldDescriptorProto
    file = descriptor.FileDescriptorProto(name="trainwright/example.proto", package=_PACKAGE, syntax="proto3")

    def message(parent: Any, name: str, fields: Iterable[tuple[str, str, bool]]) -> Any:
        made = parent.add(name=name)
        for number, (field, kind, repeated) in enumerate(fields, start=1):
            label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            scalar = kind.startswith("TYPE_")
            added = made.field.add(
                name=field,
                number=number,
                label=label,
                type=getattr(kinds, kind) if scalar else kinds.TYPE_MESSAGE,
            )
            if not scalar:
                added.type_name = f".{_PACKAGE}.{kind}"
        return made

    for name, kind in _KINDS.values():
        message(file.message_type, name, [("value", kind, True)])
    feature = message(
        file.message_type,
        "Feature",
        [(field, _KINDS[field][0], False) for field in ("bytes_list", "float_list", "int64_list")],
    )
    feature.oneof_decl.add(name="kind")
    for field in feature.field:
        field.oneof_index = 0
    features = message(file.message_type, "Features", [("feature", "Features.FeatureEntry", True)])
    entry = message(
        features.nested_type, "FeatureEntry", [("key", "TYPE_STRING", False), ("value", "Feature", False)]
    )
    entry.options.map_entry = True
    # A SequenceExample has the same first field, and its lists of features as the second.
    message(
        file.message_type,
        "Example",
        [("features", "Features", False), ("feature_lists", "TYPE_BYTES", False)],
    )
    pool.Add(file)
    factory: Any = require("google.protobuf.message_factory", "tfrecord")
    return factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Example"))


def infer(columns: Mapping[str, Sequence[Values]]) -> dict[str, Feature]:
    """Return dtype and shape of each feature, as in the first record that has it."""
    features = {}
    for name, column in columns.items():
        first = next((values for values in column if values is not None), None)
        if first is not None:
            dtype: Any = "string" if isinstance(first, list) else first.dtype.name
            features[name] = Feature(dtype=dtype, shape=[len(first)] if len(first) > 1 else [])
    return features


def stacked(name: str, column: Sequence[Values], feature: Feature, path: str) -> Array:
    """Return the values of a feature, (rows, *shape).

    Text, and single numbers that some records lack, are (rows,) objects; None stands for a missing value.

    Raises:
        DataError: A record holds something else; names it.
    """
    where = f"{path}: feature {name!r}"
    rows = [value_of(values, feature, f"{where} of record {i + 1}") for i, values in enumerate(column)]
    lacking = [i for i, row in enumerate(rows) if row is None]
    if feature.shape and lacking:
        raise DataError(
            f"{where} is missing in record {listed([i + 1 for i in lacking], 3)}; only single values may be "
            "missing"
        )
    if feature.shape:
        return np.stack(rows)
    if feature.dtype != "string" and not lacking:
        return np.array(rows)
    objects = np.empty(len(rows), dtype=object)
    objects[:] = rows
    return objects


def value_of(values: Values, feature: Feature, where: str) -> Any:
    """Return a feature of one record: a number, a text, or (*shape) numbers or texts; None if it lacks it.

    Args:
        values: What the record holds.
        feature: The dtype and shape to return.
        where: Its name in messages.

    Raises:
        DataError: The record holds something else.
    """
    if values is None:
        return None
    count = int(np.prod(feature.shape)) if feature.shape else 1
    if isinstance(values, list) and feature.dtype != "string":
        values = _unpacked(values, feature, where)
    if len(values) != count:
        wanted = f"shape {feature.shape}" if feature.shape else "a single value"
        raise DataError(
            f"{where} has {len(values)} values, but {wanted} is expected; set data.params.features"
        )
    if isinstance(values, list):
        texts = [_text(value, where) for value in values]
        return texts if feature.shape else texts[0]
    if feature.dtype == "string":
        raise DataError(f"{where} holds numbers, not text; set data.params.features")
    typed = _typed(values, feature.dtype, where)
    return typed.reshape(feature.shape) if feature.shape else typed[0].item()


def _typed(values: Array, dtype: str, where: str) -> Array:
    if values.dtype.kind == np.dtype(dtype).kind == "f":  # float32 in the file
        return values.astype(dtype)
    with np.errstate(invalid="ignore"):
        typed = values.astype(dtype)
        changed = values[typed.astype(values.dtype) != values]
    if len(changed):
        raise DataError(f"{where} holds {changed[0]}, which is not a {dtype}; set data.params.features")
    return typed


def _unpacked(values: list[bytes], feature: Feature, where: str) -> Array:
    dtype = np.dtype(feature.dtype).newbyteorder("<")
    if len(values) != 1 or len(values[0]) % dtype.itemsize:
        raise DataError(
            f"{where} holds {len(values)} byte strings of {len(values[0])} bytes, which are not "
            f"{feature.dtype} numbers"
        )
    return np.frombuffer(values[0], dtype=dtype)


def _text(value: bytes, where: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where} holds bytes that are not text; if they are numbers, say so in data.params.features "
            "(for example {image: {dtype: uint8, shape: [28, 28]}}); encoded images cannot be read"
        ) from error
