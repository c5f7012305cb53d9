"""Make the other sections of the page from a run directory; None where there is nothing to show."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from markupsafe import Markup

from trainwright.config.emit import emit
from trainwright.numerals import number
from trainwright.records.result import Result
from trainwright.records.status import FINAL
from trainwright.redact import redacted
from trainwright.reports import charts, figures, history
from trainwright.reports.evaluations import interval_in_words
from trainwright.reports.next_steps import config_path, runs_option
from trainwright.reports.rundir import Json, RunFiles, numbers, part
from trainwright.reports.scales import duration

Facts = list[tuple[str, str]]
Section = dict[str, Any]

MAX_FEATURES = 80
MAX_EVENTS = 12  # of one kind, that are described in words
_PROFILE_VERSION = 1
_APART = 0.1  # from this distance on, a caption says that a split differs
_MOST_PROCESSES = 16
_SLOW = 1.3  # times of the median, from which a process is marked
_YAML_KEY = re.compile(r"^(\s*(?:- +)*)([^\s#'\"\[{:][^:#]*?)(:)(?=\s|$)(.*)$")
_OF_POSITIVE = ("f1", "precision", "recall", "average_precision")  # of the positive one of two classes
_STATUS_SIGNS = {
    "completed": "✓",
    "failed": "✕",
    **dict.fromkeys(("stopped", "pruned"), "■"),
    **dict.fromkeys(("preempted", "interrupted", "paused"), "‖"),
}
_TIERS = {
    "bitwise": "the same inputs give the same bits",
    "order": "the same samples in the same order; floats may differ in the last digits",
    "statistical": "repeats agree only on average",
}


def retraining(run: RunFiles) -> Section | None:
    """Return the table that compares a retrained run with its parent; None for others."""
    if not run.retraining:
        return None
    parent, child = (numbers(part(run.retraining, one)) for one in ("parent", "child"))
    rows = []
    for name, value in child.items():
        found = numbers(part(run.retraining, "differences", name))
        ends = " to ".join(number(found[end]) for end in ("low", "high") if end in found)
        others = (parent.get(name), value, found.get("effect"))
        cells = ["" if one is None else number(one) for one in (*others, found.get("p_value"))]
        rows.append((name, *cells[:3], ends, cells[3]))
    counts = numbers(part(run.retraining, "rows"))
    return {
        "parent": str(part(run.retraining, "parent").get("run_id", "")),
        "counts": ", ".join(f"{count:,.0f} of {split}" for split, count in counts.items()),
        "gate": str(part(run.retraining, "gate").get("said", "")),
        "rows": rows,
    }


def moment(seconds: Any) -> str:
    """Return a time for people; `seconds` since the epoch, or an ISO 8601 text."""
    try:
        at = (
            datetime.fromtimestamp(seconds, UTC)
            if isinstance(seconds, int | float)
            else datetime.fromisoformat(seconds)
        )
    except (ValueError, OverflowError, OSError, TypeError):
        return "" if seconds is None else str(seconds)
    return f"{at:%d %b %Y, %H:%M:%S}" + (" UTC" if at.utcoffset() is not None and not at.utcoffset() else "")


def headline(run: RunFiles) -> Section:
    """Return the outcome: status, the metrics that count, the digest, and how exactly the run repeats."""
    determinism = run.determinism
    digest, best_digest = run.result and run.result.digest, run.best and run.best.digest
    return {
        "status": run.status,
        "sign": _STATUS_SIGNS.get(run.status, "…"),
        "created": moment(run.manifest and run.manifest.created),
        "figures": _figures(run),
        "evaluated": _evaluated(run.result) if run.result else "",
        "digest": digest,
        "best_digest": best_digest if best_digest != digest else None,
        "tier": determinism and determinism.tier,
        "tier_means": _TIERS[determinism.tier] if determinism else "",
        "tier_reason": determinism.reason.rstrip(".") if determinism else "",
    }


def _evaluated(result: Result) -> str:
    if result.evaluated == "best" and result.best:
        best = result.best
        return f"of the best model, step {number(best.step)} ({best.metric} {number(best.value)})"
    return "of the final model" if result.evaluated else ""


def _figures(run: RunFiles) -> list[dict[str, str]]:
    """Return up to four metrics of the split whose figures count, then steps and time."""
    metrics, result, split = run.metrics, run.result, run.judged_split
    if not metrics:
        curves = run.history.curves.items()
        metrics = {name: curve.last for name, curve in curves if name.startswith("val_")}
    chosen = sorted(
        (name for name in metrics if name.startswith(f"{split}_")), key=lambda name: name.endswith("_loss")
    )
    positive = run.evaluations.get(split, {}).get("positive")
    of_class = {f"{split}_{name}" for name in _OF_POSITIVE} if positive is not None else set()
    figures = [
        _figure(
            "metric",
            history.title(name),
            number(metrics[name]),
            _note(run, split, name, f"of class {positive}" if name in of_class else ""),
        )
        for name in chosen[:4]
    ]
    figures.append(
        _figure("cost", "steps", number(run.steps), f"{result.epochs:.4g} epochs" if result else "")
    )
    if result:
        rate = result.samples_per_second
        note = f"{number(round(rate))} samples/s" if rate and math.isfinite(rate) else ""
        figures.append(_figure("cost", "training time", duration(result.train_seconds), note))
    return figures


def _note(run: RunFiles, split: str, metric: str, of_class: str) -> str:
    ends = interval_in_words(run.evaluations.get(split, {}), metric)
    return ", ".join(part for part in (of_class, f"95%: {ends}" if ends else "") if part)


def _figure(kind: str, name: str, value: str, note: str = "") -> dict[str, str]:
    return {"kind": kind, "name": name, "value": value, "note": note}


def curves(run: RunFiles) -> Section | None:
    """Return the curves, wide and (for phones) narrow, and what the markers on them mean."""
    data, marks = run.history.curves, history.markers(run)
    loss = history.loss_chart(data, marks)
    if loss is None and not data:
        return None
    described = history.first_of_each(marks, MAX_EVENTS)
    decisions = [mark for mark in marks if mark.kind in ("best", "drop", "stop")]
    others = history.other_charts(data, decisions)
    constant = [
        name
        for name in data
        if name not in ("epoch", "loss", "train_loss", "val_loss") and history.constant(data[name])
    ]
    return {
        "loss": loss and Markup(charts.line_chart(loss, 920, 320)),
        "loss_narrow": loss and Markup(charts.line_chart(loss, 380, 270)),
        "others": [(chart.title, Markup(charts.line_chart(chart))) for chart in others],
        "constant": [f"{history.title(name)} {number(data[name].last, zeros=False)}" for name in constant],
        "markers": [(Markup(charts.symbol(mark.kind)), mark.text) for mark in described],
        "more_markers": len(marks) - len(described) + run.history.more_events,
        "single": "loss" in data,
    }


def data(run: RunFiles) -> Section | None:
    """Return what the run learned from."""
    if run.manifest is None:
        return None
    described = run.manifest.data
    rows = {name: split.rows or 0 for name, split in described.splits.items()}
    total = sum(rows.values())
    features = described.features
    return {
        "facts": _facts(
            ("task", described.task),
            ("target", described.target),
            ("classes", _listed(described.classes or [])),
            (f"features ({len(features)})" if features else "features", _listed(features)),
            ("hash of the data", described.hash),
        ),
        "splits": [
            {
                "name": name,
                "rows": number(rows[name]),
                "share": rows[name] / max(1, total),
                "sha256": split.sha256,
            }
            for name, split in described.splits.items()
        ],
        "warnings": [redacted(warning) for warning in described.warnings],
        "content_hashed": described.content_hashed,
        "distributions": _distributions(run),
    }


def _listed(names: list[str]) -> str:
    more = len(names) - MAX_FEATURES
    return ", ".join(names[:MAX_FEATURES]) + (f" and {more} more" if more > 0 else "")


def _facts(*pairs: tuple[str, Any]) -> Facts:
    """Return the pairs that have a value, as text."""
    return [(name, redacted(str(value))) for name, value in pairs if value not in (None, "", [], {})]


def repeat(run: RunFiles) -> Section:
    """Return the commands that repeat or continue this run, and the directory for them."""
    manifest = run.manifest
    git, command = (manifest.code.git, _command(manifest.command)) if manifest else (None, "")
    commands = _own_commands(run)
    if manifest and manifest.trainer:  # a training of another trainer, which belongs to its script
        commands = [("start its script again: it continues where it stopped", f"python {command}")]
    if git:
        commands.append(
            (
                "bring back the code of this run first, if it has changed",
                f"git checkout {shlex.quote(git.commit)}",
            )
        )
    return {
        "commands": commands,
        "directory": manifest and manifest.working_directory,
        "command": command,
        "parent": manifest and manifest.parent and not run.lineage and manifest.parent.run_id,
        "origin": _origin(run),
        "dirty": bool(git and git.dirty),
    }


def _origin(run: RunFiles) -> list[str]:
    """Return sentences about the run that this one comes from, and what differs from it."""
    manifest, lineage = run.manifest, run.lineage
    if lineage is None:
        return []
    said = [f"This run {lineage.in_words()}."]
    if lineage.changed and lineage.relation != "reproduce":
        said.append(f"Changed: {', '.join(lineage.changed)}.")
    if manifest and manifest.initial and manifest.initial.differs:
        said.append(f"It does not go on exactly: {'; '.join(manifest.initial.differs)}.")
    return [redacted(one) for one in said]


def _own_commands(run: RunFiles) -> Facts:
    name = shlex.quote(run.run_id) + runs_option(run)
    if run.status == "created":
        return [("make its first attempt", f"trainwright work {name}")]
    commands = []
    if run.status in FINAL:
        commands.append(("train it again, and compare every bit", f"trainwright reproduce {name}"))
    if run.status != "completed":
        commands.insert(0, ("continue it from its last checkpoint", f"trainwright resume {name}"))
    commands.append(
        (
            "train the same config as a new run",
            f"trainwright train {config_path(run)}",
        )
    )
    return commands


def _command(words: Sequence[str]) -> str:
    """Return the command line as it was typed; nothing for a run that a Python session started."""
    if not words or words[0].startswith("-"):
        return ""
    return redacted(shlex.join([Path(words[0]).name, *words[1:]]))


def inputs(run: RunFiles) -> Section | None:
    """Return code, environment and hashes."""
    manifest = run.manifest
    if manifest is None:
        return None
    code, environment, git = manifest.code, manifest.environment, manifest.code.git
    variables = manifest.observed.variables
    dirty = ", with uncommitted changes" if git and git.dirty else ""
    return {
        "environment": _facts(
            ("Trainwright", code.trainwright),
            ("Python", environment.python),
            ("platform", environment.platform),
            ("processor", environment.cpu),
            ("threads", environment.threads),
            *environment.framework.items(),
            *environment.flags.items(),
        ),
        "identity": _facts(
            ("seed", manifest.seed),
            ("config", manifest.config_hash),
            ("computation", manifest.computation_hash),
            ("data", manifest.data.hash),
            ("code", code.hash),
            ("git commit", f"{git.commit}{dirty}" if git else None),
            ("environment", environment.hash),
            ("initial weights", manifest.weights.initial),
            ("initial weights from", manifest.init_from),
            ("of these", loaded.in_words() if (loaded := manifest.weights.loaded) else None),
            ("initial state", manifest.initial.state_digest if manifest.initial else None),
        ),
        "modules": list(code.modules.items()),
        "observed": [
            *manifest.observed.files.items(),
            *((f"${name}", value) for name, value in variables.items() if value),
        ],
        "packages": list(environment.packages.items()),
    }


def attempts(run: RunFiles) -> list[dict[str, str]]:
    """Return the process lives of the run."""
    last = run.attempts[-1].number if run.attempts else 0
    return [
        {
            "number": str(attempt.number),
            "started": moment(attempt.started),
            "steps": f"{number(attempt.from_step)} to {number(attempt.last_step)}",
            "time": duration(max(0.0, attempt.ended - attempt.started)),
            "status": attempt.status or ("killed, or still training" if attempt.number == last else "killed"),
        }
        for attempt in run.attempts
    ]


def _distributions(run: RunFiles) -> Section | None:
    """Return the figures; None where the run did not describe its data."""
    profile = run.profile
    if profile.get("version") != _PROFILE_VERSION:
        return None
    target = part(profile, "target")
    splits = list(target["counts"])
    return {
        "legend": figures.split_legend(splits),
        "target": _distribution(target),
        "columns": [_distribution(column) for column in profile["columns"]],
        "more": int(profile["more"]),
    }


def _distribution(described: Json) -> Section:
    said = [
        f"{'validation' if split == 'val' else split} differs from training by {shift:.2f}"
        for split, shift in numbers(part(described, "shift")).items()
        if shift >= _APART
    ]
    said += [
        f"{share:.0%} missing in {split}"
        for split, share in numbers(part(described, "missing")).items()
        if share
    ]
    return {
        "title": str(described["name"]),
        "chart": Markup(figures.distribution(described)),
        "caption": "; ".join(said),
        "legend": [],
    }


def processes(run: RunFiles) -> Section | None:
    """Return the table for the newest attempt with several processes, cut to the slowest 16 of them."""
    times = run.history.step_times
    if times is None or len(times.sums) < 2:
        return None
    hosts = [host for host, count in times.hosts for _ in range(count)]
    medians, middles = times.medians(), times.middles()
    factors = [median / max(middles[times.stage(rank)], 1e-9) for rank, median in enumerate(medians)]
    ranks = sorted(range(len(medians)), key=lambda rank: -factors[rank])[:_MOST_PROCESSES]
    return {
        "rows": [
            {
                "rank": rank,
                "host": hosts[rank],
                "stage": times.stage(rank),
                "median": _step_time(medians[rank]),
                "longest": _step_time(times.longest[rank]),
                "factor": f"{factors[rank]:.2f}",
                "slow": factors[rank] > _SLOW,
            }
            for rank in sorted(ranks)
        ],
        "count": len(medians),
        "steps": times.steps,
        "middles": [_step_time(middle) for middle in middles],
    }


def _step_time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def config(run: RunFiles) -> Section | None:
    """Return the config with its keys highlighted: what the user set of it, where that is known, and all."""
    if not run.config:
        return None
    chosen = _chosen(run.settings, "", run.set_keys) if run.set_keys else {}
    return {"set": _highlighted(emit(chosen)) if chosen else None, "all": _highlighted(run.config)}


def _chosen(values: Json, prefix: str, keys: Collection[str]) -> dict[str, Any]:
    """Return the values that the user set, by section; the model's type is always shown."""
    made: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if name in keys or name == "model.type":
            made[key] = value
        elif isinstance(value, Mapping) and (inner := _chosen(value, f"{name}.", keys)):
            made[key] = inner
    return made


def _highlighted(source: str) -> Markup:
    return Markup("\n").join(_yaml_line(line) for line in redacted(source).splitlines())


def _yaml_line(line: str) -> Markup:
    if line.lstrip().startswith("#"):
        return Markup("<i>{}</i>").format(line)
    match = _YAML_KEY.match(line)
    return Markup("{}<b>{}</b>{}{}").format(*match.groups()) if match else Markup("{}").format(line)
