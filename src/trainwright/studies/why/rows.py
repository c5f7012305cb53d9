"""The noise of the rows that two runs were evaluated on, which no repeated runs tell."""

from __future__ import annotations

from typing import Any

from trainwright.evaluation.significance import same_rows
from trainwright.numerals import number
from trainwright.redact import redacted
from trainwright.runs.split_predictions import other_rows, predicted
from trainwright.runs.workdir import working_directory, working_for
from trainwright.studies.why.sides import Side
from trainwright.types import SplitName

Json = dict[str, Any]


def rows_test(sides: tuple[Side, Side], metric: str, *, trust: bool) -> Json:
    """Return a paired test of the two runs on the rows that both were evaluated on.

    Args:
        sides: The two runs.
        metric: The metric, of the validation or test split.
        trust: Whether the user trusts the runs.

    Returns:
        The test, as `Significance.to_json` has it, with its `split`; or only `untested`: why there is none.
    """
    before, after = sides
    split: SplitName = "test" if metric.startswith("test_") else "val"
    name = metric.removeprefix(f"{split}_")
    if name == metric:
        return {"untested": f"{metric} is not of the validation or test rows"}
    if (reason := other_rows(before.manifest, after.manifest, split)) is not None:
        return {"untested": reason}
    try:
        scores = []
        for side in sides:
            with working_for(side.run, working_directory(side.run), trust=trust):
                scores.append(predicted(side.run, split).scores)
        return {"split": split, **same_rows(name, scores[0], scores[1]).to_json()}
    # Foreign code loads models: whatever it raises, the rest of the answer is still of use.
    except Exception as error:
        return {"untested": redacted(f"{type(error).__name__}: {error}")}


def in_words(test: Json, *, seeds: bool = False) -> str:
    """Return how sure a difference of two runs is, by their rows, in a sentence or two.

    Args:
        test: The test of the rows.
        seeds: Whether it is known what another seed changes.
    """
    if (reason := test.get("untested")) is not None:
        if seeds:
            return f"The noise of the rows is not known: {reason}."
        return (
            "With one run on each side, and no predictions of both for the same rows, it cannot be told "
            f"whether this is noise: {reason}."
        )
    low, high, effect = (number(test[name], zeros=False) for name in ("low", "high", "effect"))
    size = "more than" if test["significant"] else "within"
    tested = (
        f"by a paired {test['test']} on them, {test['metric']} differs by {effect} (95% interval {low} to "
        f"{high}, p = {test['p_value']:.2g}), {size} the noise of these rows."
    )
    rows = f"{test['pairs']} {test['split']} rows"
    if not seeds:
        only = f"With one run on each side, only their {rows} tell of noise: {tested}"
        return f"{only} What another seed would change is not known."
    same = "" if test["significant"] else " On other rows, the metric might not move."
    return f"The {rows} have a noise of their own: {tested}{same}"
