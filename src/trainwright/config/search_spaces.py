"""Read the searches of Weights & Biases, Ray Tune, Optuna, Hydra and scikit-learn as our `tuning` section.

A parameter that is written in their words becomes a list of choices or a range. What has no meaning here, or
another one than it seems, is a problem that says what to write.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from trainwright.config.emit import inline
from trainwright.config.synonyms import fold, table
from trainwright.config.tree import Draft, Node, from_plain, join, mapping, plain

_SPACE = "tuning.space"
_MODES = table({"max": "max maximize maximise", "min": "min minimize minimise"})
_CALL = re.compile(r"([\w.]+)\((.*)\)")
_PREFIX = re.compile(r"^((ray\.)?tune|trial|optuna\.\w+|hydra)\.|^suggest_")
# Keys of a parameter that make it one, and not a section of the config.
_MARKS = {"low", "high", "choices", "values", "value", "min", "max", "lower", "upper", "distribution"}
_KEYS = {"values": "choices", "min": "low", "max": "high", "lower": "low", "upper": "high", "q": "step"}
_WRITE = "write {low: 1e-5, high: 1e-1, log: true}"
# Distributions whose numbers are not the ends of the range.
_OTHERS = {
    "log_uniform": f"of Weights & Biases has exponents of e as min and max: {_WRITE}",
    "inv_log_uniform": _WRITE,
    "normal": f"has no ends: {_WRITE}, or without log",
    "log_normal": f"has no ends: {_WRITE}",
    "randn": f"has no ends: {_WRITE}, or without log",
    "sample_from": "is a function: list its values, or give their range",
}
# By the name of a call: whether its values are whole numbers, drawn from logarithms, below the upper end.
_CALLS = {
    "uniform": (False, False, False),
    "float": (False, False, False),
    "loguniform": (False, True, False),
    "int": (True, False, False),
    "randint": (True, False, True),
    "lograndint": (True, True, True),
}


def read_search(draft: Draft, path: str, node: Node) -> None:
    """Rewrite the `tuning` section of a layer, in place."""
    tuning = mapping(node)
    metric = mapping(tuning.get("metric"))
    if "name" in metric:  # {name: val_loss, goal: minimize}
        tuning["metric"] = metric["name"]
        if (goal := metric.get("goal", metric.get("mode"))) is not None:
            tuning.setdefault("mode", goal)
    mode = tuning.get("mode")
    for one in mode.value if mode is not None and isinstance(mode.value, list) else [mode]:
        meaning = None if one is None else _MODES.get(fold(str(one.value)))
        if one is not None and meaning is not None and meaning != one.value:
            draft.notes.append(f"{one.source}: {path}.mode: {one.value} is read as {meaning}")
            one.value = meaning
    if (space := tuning.get("space")) is not None:
        _read_space(draft, space, "")


def _read_space(draft: Draft, space: Node, path: str) -> None:
    """Rewrite the parameters of a space, or of a section of it."""
    for key, node in list(mapping(space).items()):
        at = join(path, key)
        before = plain(node)
        try:
            if isinstance(node.value, str):
                ours = _from_text(node.value)
            elif isinstance(before, dict) and _MARKS & before.keys():
                ours = _from_mapping(before)
            else:
                _read_space(draft, node, at)
                continue
        except ValueError as error:
            draft.problems.report(str(error), f"{_SPACE}.{at}", node.source)
            del mapping(space)[key]
            continue
        if ours is not None and ours != before:
            draft.note(node, f"{_SPACE}.{at} is read as {inline(ours)}")
            node.value = from_plain(ours, node.source).value


def _from_mapping(given: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a parameter in our words; None if it is in ours already, or in none that we know.

    Raises:
        ValueError: It is one of another tool that has no place here.
    """
    ours: dict[str, Any] = {}
    for key, value in given.items():
        if (name := _KEYS.get(key, key)) in ours or (name != key and name in given):
            return None  # both are given; the check of the space says so
        ours[name] = value
    word = ours.pop("distribution", None)
    if word is None and isinstance(ours.get("type"), str):
        word = ours.pop("type")
    if "value" in ours:
        ours["choices"] = [ours.pop("value")]
    if isinstance(ours.get("choices"), list):
        return ours
    return ours if word is None else ours | _range(str(word), ours)


def _range(word: str, ours: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a distribution of this name says of a range that has these keys."""
    other = re.sub(r"^q_?|_values$", "", word.lower())
    if word.lower() in _OTHERS:
        raise ValueError(f"{word} {_OTHERS[word.lower()]}")
    kind = fold(other)
    if kind not in ("uniform", "float", "loguniform", "int", "intuniform", "randint"):
        raise ValueError(f"there is no distribution {word!r}; give low and high, and log: true or step")
    ends = {key: ours[key] for key in ("low", "high") if isinstance(ours.get(key), int | float)}
    if word.lower().startswith("q"):
        ends["step"] = ours.get("step", 1)
    elif kind in ("uniform", "float", "loguniform"):
        ends = {key: float(value) for key, value in ends.items()}
    return ends | ({"log": True} if kind == "loguniform" else {})


def _from_text(text: str) -> dict[str, Any] | list[Any] | None:
    """Parse a call such as `tune.loguniform(1e-4, 1e-1)` into a parameter; return None for other text.

    Raises:
        ValueError: The call has no meaning here.
    """
    match = _CALL.fullmatch(text.strip())
    if match is None:
        return None
    name = _PREFIX.sub("", _PREFIX.sub("", match[1]))
    try:
        call = ast.parse(f"f({match[2]})", mode="eval").body
        assert isinstance(call, ast.Call)
        values = [ast.literal_eval(one) for one in call.args]
        named = {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
    except (SyntaxError, ValueError, AssertionError):
        raise ValueError(f"{text}: cannot be read; {_WRITE}, or a list of choices") from None
    if values and isinstance(values[0], str) and match[1] != name and "suggest_" in match[1]:
        values = values[1:]  # Optuna's name of the parameter
    if name in ("choice", "grid_search", "categorical"):
        values = [*values, *named.values()]
        return list(values[0]) if len(values) == 1 and isinstance(values[0], list | tuple) else values
    if "." in name or name in _OTHERS:
        raise ValueError(f"{text}: {_OTHERS.get(name, f'is not known here: {_WRITE}, or a list of choices')}")
    return _range_of_call(text, name, values, named)


def _range_of_call(text: str, name: str, values: list[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the range that a call means: `name` with these arguments."""
    names = ("low", "high", "step")
    given = dict(zip(names, values, strict=False)) | {_KEYS.get(key, key): one for key, one in named.items()}
    numbers = all(
        isinstance(one, int | float) and (key == "log") == isinstance(one, bool) for key, one in given.items()
    )
    kind = name.removeprefix("q")
    if kind not in _CALLS or not numbers or not {"low", "high"} <= given.keys() <= {*names, "log"}:
        raise ValueError(f"{text}: cannot be read; {_WRITE}, or a list of choices")
    whole, log, excluded = _CALLS[kind]
    if name == kind and not whole:  # a quantized range of whole numbers stays one: for keys that need them
        given |= {key: float(given[key]) for key in ("low", "high")}
    elif name == kind and excluded:  # Ray Tune leaves the upper end out, but for `qrandint`
        given["high"] -= 1
    return given | ({"log": True} if log else {})
