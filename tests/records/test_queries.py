"""Expressions that choose runs of a list."""

from typing import Any

import pytest

from trainwright.errors import InputError
from trainwright.records.queries import chosen, ordered

RUNS: list[dict[str, Any]] = [
    {"run_id": "a", "status": "completed", "model": "lightgbm", "metrics": {"val_f1": 0.95}, "steps": 10},
    {"run_id": "b", "status": "failed", "model": "mlp", "metrics": {"val_f1": 0.8}, "steps": 20},
    {"run_id": "c", "status": "completed", "model": "mlp", "metrics": {"val_f1": "NaN"}, "steps": None},
    {"run_id": "d", "status": "damaged"},
]


@pytest.mark.parametrize(
    ("expression", "runs"),
    [
        ("val_f1 > 0.9 and model = lightgbm", "a"),
        ("val_f1>0.9 or model=mlp", "abc"),
        ("model = lightgbm or model = mlp and status = failed", "ab"),
        ("(model = lightgbm or model = mlp) and status = failed", "b"),
        ("not status = completed", "bd"),
        ("NOT (status = completed OR status = failed)", "d"),
        ("val_f1 != 0.8", "ac"),
        ("val_f1 >= 8e-1", "ab"),
        ("steps == 10.0", "a"),
        ("model ~ GBM", "a"),
        ("model = 'mlp' and run < \"c\"", "b"),
        ("model = 'and'", ""),
    ],
)
def test_what_an_expression_chooses(expression: str, runs: str) -> None:
    assert "".join(run["run_id"] for run in chosen(RUNS, expression)) == runs


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("", "the name of a value is missing at the end"),
        ("val_f1", "a comparison after 'val_f1' is missing at the end"),
        ("val_f1 >", "a value after val_f1 > is missing at the end"),
        ("val_f1 > 1 model = mlp", "`and` or `or` expected, not 'model'"),
        ("(val_f1 > 1", "a bracket is never closed"),
        ("val_f1 ! 1", "a comparison after 'val_f1' expected, not '!'"),
        ("val_f1 > high", "val_f1 is a number, and 'high' is none"),
        ("__import__('os')", "a comparison after '__import__' expected, not '('"),
        ("val_f > 1", "no run has a value 'val_f'; did you mean 'val_f1'?"),
    ],
)
def test_expressions_that_cannot_be_read(expression: str, problem: str) -> None:
    with pytest.raises(InputError) as error:
        chosen(RUNS, expression)
    assert problem in str(error.value)


def test_runs_without_the_value_come_last() -> None:
    assert [run["run_id"] for run in ordered(RUNS, "steps")] == ["a", "b", "c", "d"]
    assert [run["run_id"] for run in ordered(RUNS, "-steps")] == ["b", "a", "c", "d"]
    assert [run["run_id"] for run in ordered(RUNS, "-val_f1")] == ["a", "b", "c", "d"]
    with pytest.raises(InputError, match="--sort: no run has a value"):
        ordered(RUNS, "-speed")
