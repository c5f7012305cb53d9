"""The answer of a study of two runs: the document of its numbers, and the sentence that sums them up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainwright.evaluation.significance import student_quantile
from trainwright.numerals import number
from trainwright.studies.why.factors import Factor
from trainwright.studies.why.search import ALPHA, SMALL, Effect, Findings, Share

Json = dict[str, Any]
Pair = tuple[float, float]
_NAMED = 3  # differences that the sentence lists


@dataclass(frozen=True)
class Remainder:
    """The part of the difference that the changes do not explain.

    `seed` is what the two seeds add by chance; `rest` what cannot be substituted adds, and `differences`
    what that is; `stands_out` says whether `rest` is more than the noise of the seeds.
    """

    seed: float
    rest: float
    differences: Sequence[str]
    stands_out: bool


def document(
    runs: tuple[str, str],
    metric: str,
    recorded: Pair,
    again: Pair | None,
    factors: Sequence[Factor],
    findings: Findings,
    unsubstituted: Sequence[str],
) -> Json:
    """Return what the study found, for `result.json`.

    Args:
        runs: The ids of the two runs.
        metric: The metric.
        recorded: Its value in both runs.
        again: Its value in both, as they are made here and now; None if that was not measured.
        factors: The changes.
        findings: What the search found.
        unsubstituted: What the two runs had that the runs here have not.
    """
    remainder = _remainder(recorded, again, findings, unsubstituted)
    return {
        "runs": list(runs),
        "metric": metric,
        "before": recorded[0],
        "after": recorded[1],
        "difference": recorded[1] - recorded[0],
        "answer": sentence(metric, recorded, factors, findings, remainder),
        "factors": [factor.to_json() for factor in factors],
        **findings.to_json(),
        "seed": remainder and remainder.seed,
        "rest": remainder
        and {
            "difference": remainder.rest,
            "stands_out": remainder.stands_out,
            "differences": list(remainder.differences),
        },
    }


def _remainder(
    recorded: Pair, again: Pair | None, findings: Findings, unsubstituted: Sequence[str]
) -> Remainder | None:
    if again is None:
        return None
    rest = (recorded[1] - again[1]) - (recorded[0] - again[0])
    mean = findings.total.mean if findings.total else 0.0
    if abs(rest) < 1e-12 * max(map(abs, (*recorded, *again))):
        stands_out = False
    else:
        # A single difference of two runs: the interval is that of a prediction, with sqrt(2) times the noise.
        degrees = max(1, 2 * (findings.seeds - 1))
        stands_out = abs(rest) > student_quantile(degrees) * math.sqrt(2) * findings.noise
    return Remainder(again[1] - again[0] - mean, rest, unsubstituted, stands_out)


def sentence(
    metric: str, recorded: Pair, factors: Sequence[Factor], findings: Findings, remainder: Remainder | None
) -> str:
    """Return the answer in a sentence or two."""
    before, after = map(_number, recorded)
    moved = recorded[0] != recorded[1]
    difference = f"{metric} went from {before} to {after}" if moved else f"{metric} is {before} in both runs"
    parts = [f"{difference}: {_explained(metric, factors, findings)}"]
    if remainder is not None and remainder.stands_out:
        listed = "; ".join(remainder.differences[:_NAMED])
        more = len(remainder.differences) - _NAMED
        listed += f" and {more} more" if more > 0 else ""
        what = f"What cannot be substituted ({listed})" if listed else "The same inputs computed again"
        parts.append(f"{what} moved it by {_signed(remainder.rest)}.")
    return " ".join(parts)


def _explained(metric: str, factors: Sequence[Factor], findings: Findings) -> str:
    if findings.verdict == "moved":
        return _moved(factors, findings)
    if findings.verdict == "none":
        return _none(metric, factors, findings)
    if findings.total is None:
        return "the budget of runs was spent before anything was settled."
    return _unsettled(factors, findings)


def _moved(factors: Sequence[Factor], findings: Findings) -> str:
    total = findings.total
    assert total is not None, "something moved the metric"
    texts = {factor.name: f" ({factor.before} -> {factor.after})" for factor in factors}
    movers = [share for share in findings.shares if share.stands_out]
    first, *more = [f"{share.name}{texts[share.name]}" for share in movers]
    sizes = [_by(share, total) for share in movers]
    named = ", ".join([f"{first} moved it by {sizes[0]}", *map("{} by {}".format, more, sizes[1:])])
    rest, others = findings.others, ""
    if rest is not None and rest.p < ALPHA and abs(rest.mean) > SMALL * abs(total.mean):
        others = f" The other changes together add {_signed(rest.mean)}."
    return f"{named}.{_among(findings, total)}{others}"


def _by(share: Share, total: Effect) -> str:
    assert share.effect is not None, "it stands out"
    part = f" ({share.effect.mean / total.mean:.0%})" if total.mean else ""
    return f"{_signed(share.effect.mean)}{part}"


def _among(findings: Findings, total: Effect) -> str:
    if findings.exact:
        return f" All changes together make {_signed(total.mean)}; seeds change nothing here."
    return f" All changes together make {_signed(total.mean)}{_interval(total)} over {findings.seeds} seeds."


def _none(metric: str, factors: Sequence[Factor], findings: Findings) -> str:
    what = f"none of the {len(factors)} changes" if len(factors) > 1 else "not the one change that there is"
    if not factors:
        if findings.exact:
            return "only the seed differs, and it changes nothing here."
        return f"none, only the seed differs. {_spread(metric, findings)}"
    total = findings.total
    assert total is not None, "the changes were measured"
    if findings.exact or not any(total.values):
        return f"{what} moved it: with the same seed, {metric} is the same before and after."
    return (
        f"{what} moved it beyond the noise: together they make {_signed(total.mean)}{_interval(total)} over "
        f"{findings.seeds} seeds. {_spread(metric, findings)}"
    )


def _spread(metric: str, findings: Findings) -> str:
    return f"Seeds alone spread {metric} with a standard deviation of {_number(findings.noise)}."


def _unsettled(factors: Sequence[Factor], findings: Findings) -> str:
    total = findings.total
    assert total is not None, "the changes were measured"
    left = [factor.name for factor in factors if factor.name not in findings.other_names]
    which = " or ".join(left) if len(left) <= _NAMED else f"one of {len(left)} changes"
    made = f"the changes make {_signed(total.mean)}{_interval(total)}"
    if findings.spent:
        return (
            f"{made}, but the budget of runs was spent before it was settled which of them; {which} is left."
        )
    return f"{made}, but no single one stands out from the noise; {which} is left."


def _interval(effect: Effect) -> str:
    if effect.low is None or effect.high is None:
        return ""
    return f" (95% interval {_signed(effect.low)} to {_signed(effect.high)})"


def _number(value: float) -> str:
    return number(value, zeros=False)


def _signed(value: float) -> str:
    return f"{value:+.3g}"
