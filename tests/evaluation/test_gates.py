"""Gates follow their grammar, and compare numbers as they are written."""

from __future__ import annotations

import math

import pytest

from trainwright.errors import InputError
from trainwright.evaluation.gates import Gate

VALUES = {"val_f1": 0.845, "val_loss": 0.303, "test_f1": math.nan, "val_r2": -0.5}
PARENT = {"val_f1": 0.85, "val_loss": 0.3, "val_r2": -0.4}


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ("val_f1 >= 0.845", True),
        ("val_f1 > 0.845", False),
        ("val_f1 >= parent - 0.005", True),  # 0.85 - 0.005 is above 0.845 in binary
        ("val_f1>=parent-0.0049", False),
        ("val_loss <= parent * 1.01", True),
        ("val_loss <= parent + .002", False),
        ("val_loss < 1e-1", False),
        ("val_r2 >= -0.5", True),
        ("val_r2 >= - 0.4", False),
        ("val_f1 >= 0.8 and val_loss < 0.31", True),
        ("val_f1 >= 0.8 and val_loss < 0.3", False),
        ("test_f1 >= 0", False),
        ("test_f1 <= 1", False),
    ],
)
def test_a_gate_compares(text: str, passes: bool) -> None:
    assert Gate.parse(text).passes(VALUES, {"parent": PARENT}) is passes


@pytest.mark.parametrize(
    "text",
    [
        "",
        "val_f1",
        "val_f1 >=",
        "val_f1 == 1",
        ">= 0.8",
        "val_f1 >= 0.8 or val_f1 < 1",
        "val_f1 >= 0.8 and",
        "val_f1 >= parent / 2",
        "val_f1 >= 0.8 0.9",
        "val_f1 >= -parent",
        "val_f1 >= nan()",
        "0.8 <= val_f1",
    ],
)
def test_what_is_no_gate_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"cannot be read at .*; write, for example, 'val_f1 >= 0\.8'"):
        Gate.parse(text)


def test_unknown_names_are_refused() -> None:
    gate = Gate.parse("val_f2 >= champion - 1")
    with pytest.raises(InputError, match="there is no metric val_f2; there are test_f1, val_f1"):
        gate.check_names(VALUES, ["parent"])
    with pytest.raises(InputError, match="refers to 'champion'; it can refer to parent"):
        gate.check_names(["val_f2"], ["parent"])
    with pytest.raises(InputError, match="the model has no val_f2"):
        gate.passes(VALUES, {"champion": PARENT})


def test_the_margin_is_the_distance_on_the_right_side() -> None:
    (least,), (most,) = (Gate.parse(text).conditions for text in ("val_f1 >= 0.8", "val_loss <= 0.3"))
    assert least.margin(VALUES, {}) == pytest.approx(0.045)
    assert most.margin(VALUES, {}) == pytest.approx(-0.003)
    assert least.in_words(VALUES, {}) == "val_f1 >= 0.8: passed (0.8450 against 0.8000)"
