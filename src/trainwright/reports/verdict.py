"""Make the beginning of the page: what was asked, and whether the answer beats the simplest ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from trainwright.numerals import number
from trainwright.plugins import adapters, task_of
from trainwright.redact import redacted
from trainwright.reports import history
from trainwright.reports.evaluations import interval_of
from trainwright.reports.rundir import Json, RunFiles, numbers, part
from trainwright.tasks.base import Task
from trainwright.types import DataInfo

Section = dict[str, Any]
Level = Literal["good", "fair", "poor"]
Gain = Literal["better", "worse", "alike"]
SPLITS = {"test": "test", "val": "validation", "train": "training"}
_CLEAR = 2.0  # standard errors of a mean, from which a difference is more than chance
_FEW = 50  # rows of an evaluation that says little
_MOST_METRICS = 5
CHANCE = 0.5  # area under the ROC curve
_SIMPLE = ("linear", "table")  # the names of baselines that look at the rows


class Ranking(NamedTuple):
    """The area under the ROC curve of two classes, and how far chance alone may move it from one half.

    `error` is the standard deviation of the area of answers without any skill (Mann and Whitney, 1947).
    """

    area: float
    error: float
    interval: tuple[float, float] | None = None

    @property
    def is_skilled(self) -> bool:
        """Return whether rows are ranked better than by chance: the whole interval is above one half."""
        low = self.interval[0] if self.interval else self.area - _CLEAR * self.error
        return low > CHANCE


def ranking(tables: Json) -> Ranking | None:
    """Return how an evaluation ranks the rows of two classes; None where that is not known.

    The area is that of the metric where it was computed, else of the points of the ROC curve that were kept.
    """
    told = part(tables, "thresholds")
    if not told:
        return None
    positive, negative = float(told["positive"]), float(told["negative"])
    name = f"{tables.get('split')}_roc_auc"
    area = numbers(part(tables, "metrics")).get(name, np.nan)
    if not np.isfinite(area):
        hits = np.array([*told["tp"], positive]) / positive
        alarms = np.array([*told["fp"], negative]) / negative
        area = float(np.sum(np.diff(alarms) * (hits[1:] + hits[:-1]) / 2))
    error = float(np.sqrt((positive + negative + 1) / (12 * positive * negative)))
    return Ranking(area, error, interval_of(tables, name))


class BaselineVerdict(NamedTuple):
    """A comparison of a model with the baselines: in one word, one line, and sentences that say why."""

    level: Level
    title: str
    sentences: list[str]


def section(run: RunFiles) -> Section | None:
    """Return what was asked, the verdict, and the table of the model and its baselines."""
    if run.manifest is None:
        return None
    judged = evaluated(run)
    made: Section = {"asked": _asked(run), "level": "", "title": "", "sentences": [], "table": None}
    if judged is None:
        return made
    split, tables = judged
    verdict = judge(tables)
    rows = f"{tables['rows']} {SPLITS[split]} {task_of(str(tables['task'])).samples}"
    names = ["this model", *(_short_name(one) for one in part(tables, "compared").get("baselines", ()))]
    return made | {
        "level": verdict.level,
        "title": verdict.title,
        "sentences": verdict.sentences,
        "table": {"names": names, "rows": _rows(tables), "rows_of": rows},
    }


def evaluated(run: RunFiles) -> tuple[str, Json] | None:
    """Return the split whose figures count, and its tables; None if it was compared with nothing."""
    tables = run.evaluations.get(run.judged_split, {})
    return (run.judged_split, tables) if part(tables, "compared").get("baselines") else None


def judge(tables: Json) -> BaselineVerdict:
    """Judge an evaluation by its gains over the baselines."""
    baselines = {str(one["name"]): one for one in tables["compared"]["baselines"]}
    constant = baselines["constant"]
    words, rows = str(constant["words"]), int(tables["rows"])
    if not part(constant, "gains"):
        said = "The metrics of this task say nothing of single rows: a difference may be chance."
        return BaselineVerdict("fair", f"Not judged against {words}", [said])
    answers, certainty = gains(constant)
    simple = next((one for name, one in baselines.items() if name in _SIMPLE), None)
    level, title = _title(answers, certainty, words, simple)
    about = task_of(str(tables["task"])).judged_in_words
    sentences = [about[certainty]] if answers != certainty and certainty in about else []
    if answers != "better" and (ranks := _ranks_in_words(tables)):
        level, title = "fair", f"{title}, but it ranks rows better than chance"
        sentences = [ranks, *(one for one in sentences if certainty == "worse")]
    if simple is not None and answers == "better" and gains(simple)[0] == "alike":
        another = "a linear model" if simple["name"] == "linear" else str(simple["words"])
        sentences.append(f"Use the simpler one: {another} answers these rows as well, within their noise.")
    if rows < _FEW:
        sentences.append(f"It was judged on {rows} rows only, so this may be chance.")
    return BaselineVerdict(level, title, sentences)


def _ranks_in_words(tables: Json) -> str:
    """Return how rows of two classes are ranked, where that is better than chance, and what comes of it."""
    confusion, ranks = part(tables, "confusion"), ranking(tables)
    if not confusion or ranks is None or not ranks.is_skilled:
        return ""
    counts = np.array(confusion["matrix"], np.float64)
    rare = int(counts.sum(axis=1).argmin())
    label = confusion["labels"][rare]
    sums = (counts[:, rare].sum(), counts.sum(), counts[rare].sum())
    answered, rows, true = (number(int(one)) for one in sums)
    return (
        f"The area under its ROC curve is {number(ranks.area)}, where chance has 0.5. At the threshold of "
        f"0.5, it answers “{label}” for {answered} of {rows} rows, of which {true} are: choose another "
        "threshold (--threshold; the table is below)."
    )


def gains(baseline: Json) -> tuple[Gain, Gain]:
    """Return whether the model's answers are better than a baseline's, and whether its certainty is."""
    told = [_gain(one) for one in part(baseline, "gains").values()]
    if not told:
        return "alike", "alike"
    return told[0], told[-1]


def _gain(gain: Json) -> Gain:
    values = numbers(gain)
    mean, error = values["mean"], values["error"]
    if abs(mean) <= _CLEAR * error or mean == 0:
        return "alike"
    return "better" if mean > 0 else "worse"


def _title(answers: Gain, certainty: Gain, words: str, simple: Json | None) -> tuple[Level, str]:
    if answers == "worse":
        return "poor", f"Worse than {words}"
    if answers == "alike":
        return ("fair" if certainty == "better" else "poor"), f"No better than {words}"
    if simple is None:
        return "good", f"Better than {words}"
    another = "a linear model" if simple["name"] == "linear" else str(simple["words"])
    if (gain := gains(simple)[0]) == "worse":
        return "fair", f"Better than {words}, but worse than {another}"
    if gain == "alike":
        return "good", f"Better than {words}, and about as good as {another}"
    return "good", f"Better than {words}, and than {another}"


def _short_name(baseline: Json) -> str:
    names = {"constant": "constant answer", "linear": "linear model", "table": "table"}
    return names.get(str(baseline["name"]), str(baseline["name"]))


def _rows(tables: Json) -> list[tuple[str, list[tuple[str, bool]]]]:
    """Return the metrics of the model beside those of its baselines; what is clearly best is marked."""
    own = numbers(part(tables, "metrics"))
    others = [numbers(part(one, "metrics")) for one in tables["compared"]["baselines"]]
    shared = [name for name in own if all(name in other for other in others)][:_MOST_METRICS]
    rows = {name: [own[name], *(one[name] for one in others)] for name in shared}
    return [(history.title(name), _marked(tables, name, row)) for name, row in rows.items()]


def _marked(tables: Json, name: str, values: list[float]) -> list[tuple[str, bool]]:
    """Return a row of values; one is marked that is better than the others by more than noise."""
    sign = -1.0 if is_lower_better(name) else 1.0
    ranked = [sign * value if np.isfinite(value) else -np.inf for value in values]
    best = int(np.argmax(ranked))
    compared = range(1, len(values)) if best == 0 else [best]  # baselines are compared with the model alone
    is_clear = all(_differs(tables, name, values[0], index, values[index]) for index in compared)
    return [(number(value), is_clear and index == best) for index, value in enumerate(values)]


def _differs(tables: Json, name: str, own: float, index: int, other: float) -> bool:
    """Return whether a metric of the model differs from that of a baseline by more than noise."""
    gain = part(tables["compared"]["baselines"][index - 1], "gains", name.partition("_")[2])
    if gain:
        return _gain(gain) != "alike"
    ends = interval_of(tables, name)
    return ends is not None and not ends[0] <= other <= ends[1] and own != other


def is_lower_better(name: str) -> bool:
    """Return whether less is better of a metric with the prefix of its split."""
    bare = name.partition("_")[2]
    modes = {task.metrics[bare].mode for _, task in adapters("task") if bare in task.metrics}
    return modes == {"min"} or bare == "loss"


def task_of_run(run: RunFiles) -> Task | None:
    """Return the task of a run as far as its manifest describes it; None if it is not known."""
    data = run.manifest.data if run.manifest else None
    if data is None or data.task is None:
        return None
    count = len(data.classes) if data.classes else 1
    info = DataInfo(data.task, {}, count, data.classes, target=data.target or "target")
    try:
        return task_of(data.task)(info)
    except Exception:  # of a plugin that is not installed here
        return None


def _asked(run: RunFiles) -> str:
    """Return one sentence: which model was asked for what, and from which data."""
    assert run.manifest is not None, "the caller checks it"
    data, task = run.manifest.data, task_of_run(run)
    question = task.asked() if task else f"answer {data.target}"
    model = part(run.settings, "model").get("type", "")
    count = len(data.features)
    columns = f", from {number(count)} {'feature' if count == 1 else 'features'}" if count else ""
    splits = [
        f"{number(split.rows or 0)} {task.samples if task else 'rows'} to {purpose}"
        for name, purpose in (("train", "learn from"), ("val", "validate"), ("test", "test"))
        if (split := data.splits.get(name)) is not None
    ]
    source, of = source_of(run.settings), " of" if columns else ", from"
    return redacted(
        f"The model {model} was asked to {question}{columns}{f'{of} {source}' if source else ''}: "
        f"{', '.join(splits)}."
    )


def source_of(settings: Mapping[str, Any]) -> str:
    """Return the name of the data: a file, or the type of a well-known data set."""
    data = part(settings, "data")
    return str(data.get("path") or data.get("train_path") or data.get("type") or "")
