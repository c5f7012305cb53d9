"""Write the model card of a run: Markdown, with the metadata in YAML that model hubs read."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from trainwright.numerals import number
from trainwright.redact import printable, redacted
from trainwright.reports import history
from trainwright.reports.diagnosis import diagnose
from trainwright.reports.framework import framework_of
from trainwright.reports.pages import moment
from trainwright.reports.rundir import Json, RunFiles, read_run, understanding
from trainwright.reports.templates import write_page
from trainwright.reports.verdict import section as verdict_of
from trainwright.reports.verdict import source_of, task_of_run

FILE = "model-card.md"
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~])")
_MOST_NAMES = 30


def write_card(run_dir: Path, path: Path | None = None) -> Path:
    """Write the model card of a run to a file, by default into the run directory, and return its path.

    What is not known of an unfinished or damaged run is left out.

    Raises:
        CheckpointError: A table of its evaluation has a form that cannot be shown; or a file is damaged, and
            the card in the run directory, which may say more, is kept.
        OSError: The file cannot be written.
    """
    run = read_run(run_dir)
    if path is None:
        run.check_replaces(path := run_dir / FILE)
    with understanding(run_dir):
        lines = [*_metadata(run), "", *_body(run)]
    write_page(path, "\n".join(lines).rstrip() + "\n")
    return path


def plain(value: object) -> str:
    """Return a value as text of one line that Markdown and HTML leave as it is."""
    return _SPECIAL.sub(r"\\\1", " ".join(printable(redacted(str(value))).split())).replace("\\<", "&lt;")


def _metadata(run: RunFiles) -> Iterator[str]:
    """Yield the block of YAML that hubs read: library, task, metrics with their values."""
    from ruamel.yaml import YAML

    text = io.StringIO()
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.allow_unicode = True
    yaml.dump(_hub_fields(run), text)
    yield "---"
    yield redacted(text.getvalue()).rstrip()
    yield "---"


def _hub_fields(run: RunFiles) -> Json:
    task = task_of_run(run)
    tag = task.hub_tag if task else ""
    if tag.startswith("tabular") and run.manifest is not None and not run.manifest.data.features:
        tag = ""  # images and the like, which hubs name by what they are
    metrics = {name: value for name, value in _tested(run).items() if math.isfinite(value)}
    fields: dict[str, Any] = {
        "library_name": _library(run),
        "pipeline_tag": tag,
        "tags": ["trainwright", *([task.name] if task else [])],
        "metrics": [_bare(name) for name in metrics if not name.endswith("_loss")],
    }
    if metrics and tag:
        fields["model-index"] = [{"name": printable(run.experiment), "results": [_result(run, tag, metrics)]}]
    return {name: value for name, value in fields.items() if value}


def _result(run: RunFiles, tag: str, metrics: dict[str, float]) -> Json:
    source = printable(source_of(run.settings) or "data")
    return {
        "task": {"type": tag},
        "dataset": {"name": Path(source).name, "type": Path(source).stem, "split": run.judged_split},
        "metrics": [{"type": _bare(name), "value": value} for name, value in metrics.items()],
    }


def _bare(name: str) -> str:
    return name.partition("_")[2]


def _tested(run: RunFiles) -> dict[str, float]:
    """Return the metrics of the split whose figures count."""
    return {name: value for name, value in run.metrics.items() if name.startswith(f"{run.judged_split}_")}


def _library(run: RunFiles) -> str:
    """Return the name that hubs give the library of the model."""
    framework = framework_of(run)
    return "trainwright" if framework is None else framework.library.hub_name


def _body(run: RunFiles) -> Iterator[str]:
    yield f"# {plain(run.experiment)}"
    made = verdict_of(run)
    if made is not None:
        yield from ("", plain(made["asked"]))
        if made["title"]:
            yield from ("", f"**{plain(made['title'])}.** {plain(' '.join(made['sentences']))}".rstrip())
    yield from _performance(run, made)
    yield from _limits(run)
    yield from _data(run)
    yield from _use(run)
    yield from _proof(run)


def _performance(run: RunFiles, made: Json | None) -> Iterator[str]:
    table = made and made["table"]
    if table:
        head = [table["rows_of"], *table["names"]]
        rows = [[name, *(cell for cell, _is_best in row)] for name, row in table["rows"]]
        yield from ("", "## How good it is", "", *_table(head, rows))
    elif metrics := _tested(run):
        rows = [[history.title(name), number(value)] for name, value in metrics.items()]
        yield from ("", "## How good it is", "", *_table(["metric", "value"], rows))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for row in (head, ["---"] * len(head), *rows):
        yield f"| {' | '.join(cell if cell == '---' else plain(cell) for cell in row)} |"


def _limits(run: RunFiles) -> Iterator[str]:
    """Yield what speaks against the use of the model: the diagnosis, and classes that it finds badly."""
    lines = [f"- **{plain(one.title)}**: {plain(one.seen)}." for one in diagnose(run)]
    for row in run.evaluations.get(run.judged_split, {}).get("per_class") or ():
        if float(row["recall"]) < 0.5 and float(row["support"]) > 0:
            lines.append(
                f"- It finds {float(row['recall']):.0%} of the {number(row['support'])} rows of "
                f"{plain(row['label'])}."
            )
    if lines:
        yield from ("", "## Limits", "", *lines[:_MOST_NAMES])


def _data(run: RunFiles) -> Iterator[str]:
    if run.manifest is None:
        return
    data = run.manifest.data
    yield from ("", "## Data", "")
    if source := source_of(run.settings):
        yield f"- source: {plain(source)}"
    yield f"- target: {plain(data.target or 'none')} ({plain(data.task)})"
    for title, names in (("classes", data.classes or []), ("features", data.features)):
        if names:
            more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
            yield f"- {title}: {plain(', '.join(map(str, names[:_MOST_NAMES])))}{more}"
    if data.positive is not None:
        yield f"- positive class: {plain(data.positive)}"
    rows = ", ".join(f"{name} {number(split.rows or 0)}" for name, split in data.splits.items())
    yield f"- rows: {rows}"
    yield from (f"- {plain(warning)}" for warning in data.warnings[:_MOST_NAMES])


def _use(run: RunFiles) -> Iterator[str]:
    yield from ("", "## Use", "", "```python", "import trainwright", "")
    name = run.run_id if re.fullmatch(r"[\w.-]+", run.run_id) else "RUN"
    yield f'predictor = trainwright.load("{name}")'
    yield from ("predictions = predictor.predict(rows)  # a data frame with the columns of the data", "```")


def _proof(run: RunFiles) -> Iterator[str]:
    yield from ("", "## Proof", "")
    made = run.manifest and moment(run.manifest.created)
    facts = {
        "run": run.run_id,
        "made": made,
        "digest of the weights": (run.best and run.best.digest) or (run.result and run.result.digest),
        "data": run.manifest and run.manifest.data.hash,
        "git commit": run.manifest and run.manifest.code.git and run.manifest.code.git.commit,
        "determinism": run.determinism and run.determinism.tier,
    }
    yield from (f"- {name}: {plain(value)}" for name, value in facts.items() if value)
    yield from ("", "`trainwright reproduce` trains it again and compares every bit.")
