"""CatBoost's statistics of categories (CTR) as features of ONNX, by CatBoost's own hashes.

A statistic is a number for each combination of values of some columns; its table is keyed by a hash of 64
bits of that combination. The graph computes the hashes in int64, whose products wrap around as CatBoost's do,
and looks them up: so it holds what the training rows had, however many combinations there could be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from trainwright.errors import InputError
from trainwright.exporters.onnx.graph import Graph, Value
from trainwright.types import Array

MISSING = -1  # the category of missing and unseen values
_FACTOR = np.uint64(0x4906BA494954CB65)  # of CatBoost's CalcHash
_APART = 0x9E3779B97F4A7C15  # keeps the keys of tables apart
_NO_HASH = str(2**64 - 1)  # of an empty place in a table


def add_statistics(graph: Graph, told: Mapping[str, Any], features: Value) -> Value:
    """Add the statistics of a model, and return their values, (rows, statistics) float64.

    Args:
        graph: The graph.
        told: The model, as CatBoost's JSON has it.
        features: (rows, features) float64; categories are codes, and NaN is no category.

    Raises:
        InputError: The JSON lacks a table.
    """
    statistics = told["features_info"]["ctrs"]
    _check_tables(statistics)
    elements = _Elements(graph, told["features_info"], features)
    tables = list(dict.fromkeys(one["identifier"] for one in statistics))
    combinations = [_parts(next(s for s in statistics if s["identifier"] == name)) for name in tables]
    hashes = _hashed(graph, elements, combinations)  # (rows, tables) int64
    keys: list[Array] = []
    places: list[Array] = []
    rows: dict[str, list[list[float]]] = {}
    for number, name in enumerate(tables):
        of_table, rows[name] = _table(told["ctr_data"][name])
        keys.append(of_table + np.uint64(number * _APART % 2**64))
        places.append(np.arange(1, len(of_table) + 1))  # 0: a combination that no training row had
    salts = np.array([number * _APART % 2**64 for number in range(len(tables))], np.uint64).view(np.int64)
    found = graph.ml(
        "LabelEncoder",
        graph.add("Add", hashes, graph.constant(salts[None])),
        keys_tensor=_whole("keys", np.concatenate(keys).view(np.int64)),
        values_tensor=_whole("values", np.concatenate(places)),
        default_tensor=_whole("default", np.zeros(1, np.int64)),
    )
    values = [
        _values(one, told["ctr_data"][one["identifier"]], rows[one["identifier"]]) for one in statistics
    ]
    starts = np.cumsum([0, *(len(one) for one in values[:-1])])
    own = graph.constant([tables.index(one["identifier"]) for one in statistics], np.int64)
    place = graph.add("Add", graph.add("Gather", found, own, axis=1), graph.constant(starts[None], np.int64))
    flat = graph.constant(np.concatenate(values), np.float64)
    return graph.add("Gather", flat, place, axis=0)


def _check_tables(statistics: Sequence[Mapping[str, Any]]) -> None:
    """Check that no two statistics are told alike, as with a table for each of several labels.

    Raises:
        InputError: Two are.
    """
    about = ("identifier", "target_border_idx", "prior_numerator", "prior_denomerator", "shift", "scale")
    known = {tuple(one[name] for name in about) for one in statistics}
    if len(known) < len(statistics):
        raise InputError(
            "the model has statistics of categories (CTR) for each of several targets, of which CatBoost's "
            "JSON keeps one; train with data.encode: onehot or target, or export with --format native"
        )


class _Elements:
    """The numbers that are hashed: of categories, and 1 or 0 of splits by numbers or by one category."""

    def __init__(self, graph: Graph, told: Mapping[str, Any], features: Value) -> None:
        self._graph = graph
        self._floats = {one["feature_index"]: one for one in told.get("float_features", [])}
        self._categories = {one["feature_index"]: one for one in told["categorical_features"]}
        self._features = features
        self._hashes = {int(one["value"]): one["hash"] for one in told["cat_features_hash"]}
        self._columns: dict[tuple[Any, ...], Value] = {}

    def column(self, part: tuple[Any, ...]) -> Value:
        """Return the number of an element of a combination, (rows, 1) int64; it is computed once."""
        if part not in self._columns:
            self._columns[part] = getattr(self, f"_{part[0]}")(*part[1:])
        return self._columns[part]

    def _feature(self, index: int) -> Value:
        return self._graph.add("Gather", self._features, self._graph.constant([index], np.int64), axis=1)

    def _cat_feature_value(self, index: int) -> Value:
        """Return the hash of the category, whose 32 bits have a sign."""
        graph, feature = self._graph, self._feature(self._categories[index]["flat_feature_index"])
        code = graph.add("Where", graph.add("IsNaN", feature), graph.constant(float(MISSING)), feature)
        place = graph.cast(graph.add("Sub", code, graph.constant(float(MISSING))), TensorProto.INT64)
        codes = range(MISSING, max(self._hashes) + 1)
        hashes = np.array([self._hashes[one] for one in codes], np.uint32).view(np.int32).astype(np.int64)
        return graph.add("Gather", graph.constant(hashes), place, axis=0)

    def _cat_feature_exact_value(self, index: int, value: int) -> Value:
        own = self.column(("cat_feature_value", index))
        is_equal = self._graph.add("Equal", own, self._graph.constant(value, np.int64))
        return self._graph.cast(is_equal, TensorProto.INT64)

    def _float_feature(self, index: int, border: float) -> Value:
        graph, about = self._graph, self._floats[index]
        feature = self._feature(about["flat_feature_index"])
        is_large = graph.add("Greater", feature, graph.constant(float(np.float32(border))))
        if about["nan_value_treatment"] == "AsTrue":
            is_large = graph.add("Or", is_large, graph.add("IsNaN", feature))
        return graph.cast(is_large, TensorProto.INT64)


def _parts(statistic: Mapping[str, Any]) -> tuple[tuple[Any, ...], ...]:
    """Return the elements of a combination, in the order in which they are hashed."""
    keys = {
        "cat_feature_value": ("cat_feature_index",),
        "float_feature": ("float_feature_index", "border"),
        "cat_feature_exact_value": ("cat_feature_index", "value"),
    }
    found = []
    for one in statistic["elements"]:
        kind = one["combination_element"]
        found.append((kind, *(one[key] for key in keys[kind])))
    return tuple(sorted(found, key=lambda part: list(keys).index(part[0])))  # stable


def _hashed(graph: Graph, elements: _Elements, combinations: Sequence[tuple[Any, ...]]) -> Value:
    """Return the hashes of combinations, (rows, combinations) int64; those of a length are made at once."""
    every = list(dict.fromkeys(part for parts in combinations for part in parts))
    columns = [elements.column(part) for part in every]
    whole = columns[0] if len(columns) == 1 else graph.add("Concat", *columns, axis=1)
    factor = graph.constant(_FACTOR.view(np.int64))
    whole = graph.add("Mul", whole, factor)
    ordered = sorted(range(len(combinations)), key=lambda i: len(combinations[i]))
    made = []
    for length, group in groupby(ordered, key=lambda i: len(combinations[i])):
        members, hashes = list(group), ""
        for step in range(length):
            chosen = [every.index(combinations[i][step]) for i in members]
            part = graph.add("Gather", whole, graph.constant(chosen, np.int64), axis=1)
            hashes = graph.add("Mul", graph.add("Add", hashes, part) if hashes else part, factor)
        made.append(hashes)
    joined = made[0] if len(made) == 1 else graph.add("Concat", *made, axis=1)
    return graph.add("Gather", joined, graph.constant(np.argsort(ordered), np.int64), axis=1)


def _table(told: Mapping[str, Any]) -> tuple[Array, list[list[float]]]:
    """Return the hashes of a table, (n,) uint64, and the numbers of each."""
    entries, stride = told["hash_map"], told["hash_stride"]
    starts = [i for i in range(0, len(entries), stride) if entries[i] != _NO_HASH]
    hashes = np.array([int(entries[i]) for i in starts], np.uint64)
    return hashes, [entries[i + 1 : i + stride] for i in starts]


def _values(statistic: Mapping[str, Any], told: Mapping[str, Any], rows: Sequence[Sequence[float]]) -> Array:
    """Return a statistic of an unknown combination and of each known one, (1 + n,), in CatBoost's float32."""
    kind, border = statistic["ctr_type"], statistic["target_border_idx"]
    counts = np.array(rows, np.float32).reshape(len(rows), -1)
    if kind in ("Counter", "FeatureFreq"):
        good, total = counts[:, 0], np.full(len(rows), told["counter_denominator"], np.float32)
        unknown = np.float32(told["counter_denominator"])
    elif kind in ("BinarizedTargetMeanValue", "FloatTargetMeanValue"):
        good, total, unknown = counts[:, 0], counts[:, 1], np.float32(0)
    else:
        good = counts[:, border] if kind == "Buckets" else counts[:, border + 1 :].sum(axis=1)
        total, unknown = counts.sum(axis=1), np.float32(0)
    good = np.concatenate([np.zeros(1, np.float32), good])
    total = np.concatenate([[unknown], total]).astype(np.float32)
    prior, weight, shift, scale = (
        np.float32(statistic[name]) for name in ("prior_numerator", "prior_denomerator", "shift", "scale")
    )
    return np.asarray(((good + prior) / (total + weight) + shift) * scale)


def _whole(name: str, values: Array) -> Any:
    return helper.make_tensor(name, TensorProto.INT64, [len(values)], values)
