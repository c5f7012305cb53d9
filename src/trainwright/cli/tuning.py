"""`tune`: the search for hyperparameters; `studies`: what there is of studies."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import trainwright
from trainwright.api.documents import existing, study_document
from trainwright.cli import options
from trainwright.cli.output import show, table
from trainwright.cli.studies import resume_command, watcher
from trainwright.errors import CheckpointError, OtherFormatError
from trainwright.numerals import number
from trainwright.records.status import EXIT_CODES
from trainwright.require import close_process

if TYPE_CHECKING:
    from trainwright.records.tuning_result import TuningResult
    from trainwright.studies.study import Study
    from trainwright.studies.tuning.study import Tuning

log = logging.getLogger("trainwright")
_SHOWN = 10  # trials of the final table
_REASONS = 3  # why trials have failed
_NOT_PARAMETERS = ("trial", "status", "value", "step", "seconds", "run_id", "error")  # in the rows of trials


@click.command()
@click.argument("config")
@click.argument("overrides", nargs=-1, metavar="[KEY.PATH=VALUE]...")
@click.option(
    "--resume",
    is_flag=True,
    help="Continue the newest unfinished study of the same config, space and data; tuning.trials may be "
    "larger.",
)
@click.option(
    "--from",
    "start_from",
    metavar="STUDY",
    help="Start from what another study learned: from those of its trials that lie in the space.",
)
@click.option(
    "--suggest",
    is_flag=True,
    help="Train nothing: print a `tuning` section for the config's model, to add to the file.",
)
@options.runs_dir
@options.quiet
@options.as_json
def tune(
    config: str, overrides: Sequence[str], quiet: bool, as_json: bool, suggest: bool, **options: Any
) -> None:
    """Search for the best hyperparameters; each trial is a run.

    They are the keys in the config's `tuning.space`. A study that is killed goes on with --resume: no trial
    is lost, repeated or changed.
    """
    if suggest:
        section = trainwright.suggest_tuning(config, overrides)
        show({"tuning": section}, [section.rstrip("\n")], as_json)
        return
    study = trainwright.tune(config, overrides, watch=watcher(quiet, as_json), **options)
    show(study_document(study), study_summary(study), as_json)
    click.get_current_context().exit(EXIT_CODES.get(study.status, 1))


@click.command("do-stints", hidden=True)
@click.argument("answers", type=int)
@click.argument("parent", type=int)
@click.argument("log_level", type=int)
@click.pass_context
def do_stints(ctx: click.Context, answers: int, parent: int, log_level: int) -> None:
    """Train the trials that arrive on stdin, and write to the descriptor ANSWERS how each ended."""
    from trainwright.studies.tuning.workers import do_stints as do

    _as_worker(ctx, do, answers, parent, log_level)


@click.command("serve-stints", hidden=True)
@click.argument("answers", type=int)
@click.argument("parent", type=int)
@click.argument("log_level", type=int)
@click.pass_context
def serve_stints(ctx: click.Context, answers: int, parent: int, log_level: int) -> None:
    """Train the trials that arrive on stdin, and ask on the descriptor ANSWERS after each evaluation."""
    from trainwright.studies.tuning.tuner_worker import serve

    _as_worker(ctx, serve, answers, parent, log_level)


def _as_worker(
    ctx: click.Context, do: Callable[[int], str | None], answers: int, parent: int, log_level: int
) -> None:
    from trainwright.runs.processes.ranks import end_with

    end_with(parent)
    close_process()
    logging.getLogger("trainwright").setLevel(log_level)
    status = do(answers)
    ctx.exit(EXIT_CODES[status] if status is not None else 0)  # type: ignore[index]


@click.group()
def studies() -> None:
    """List and show searches, cross-validations and benchmarks."""


@studies.command("list")
@options.runs_dir
@options.as_json
def list_studies(runs_dir: str | None, as_json: bool) -> None:
    """List the studies, newest first."""
    from trainwright.records.listing import local_runs_folder
    from trainwright.studies.study import all_studies

    documents = [_brief(study) for study in all_studies(local_runs_folder(runs_dir, "studies"))]
    head = ("study", "experiment", "kind", "status", "result")
    rows = [
        [document[key] for key in ("study_id", "experiment", "kind", "status", "summary")]
        for document in documents
    ]
    show(documents, table(rows, head) if rows else ["no studies"], as_json)


@studies.command("show")
@click.argument("study")
@options.runs_dir
@options.as_json
def show_study(study: str, runs_dir: str | None, as_json: bool) -> None:
    """Show a study: its trials, and where its report is."""
    from trainwright.records.listing import local_runs_folder
    from trainwright.studies.study import find_study
    from trainwright.studies.tuning.study import Tuning, trials_of

    chosen = find_study(study, local_runs_folder(runs_dir, "studies"))
    document: dict[str, Any] = _brief(chosen) | {"path": str(chosen.path), "result": chosen.result}
    for problem in chosen.problems():
        log.warning("%s", problem)
    facts = [(key, document[key]) for key in ("study_id", "kind", "status", "path")]
    if digest := chosen.result.get("digest"):
        facts.append(("digest", digest))
    lines = table([*facts, ("report", existing(chosen.path / "report.html") or "none")])
    if chosen.record.kind == "tune":
        tuning, trials = Tuning(chosen.path), trials_of(chosen.path)
        document["trials"], rows = [one.to_json() for one in trials], [one.to_row() for one in trials]
        lines += ["", *table(_ranked(tuning, rows, len(rows)))]
        lines += _failures(rows)
        lines += _front_note(tuning.typed_result)
    else:
        document["runs"] = [run.to_json() for run in chosen.record.runs]
        lines += ["", *table([(_label(run["label"]), run["run_id"]) for run in document["runs"]])]
    show(document, lines, as_json)


def _brief(study: Study) -> dict[str, Any]:
    """Return what a list says of a study."""
    from trainwright.records.tuning_result import TuningResult

    named = {"study_id": study.id, "experiment": study.path.parent.name}
    try:
        record = study.record
        if problems := study.problems():
            raise CheckpointError("; ".join(problems))
        found = TuningResult.of(study.result if record.kind == "tune" else {})
        summary = f"best {found.metric} {number(found.best.value, zeros=False)}" if found.best else ""
        return named | {
            "kind": record.kind,
            "status": study.status,
            "created": record.created,
            "summary": summary,
        }
    except CheckpointError as error:
        status = "other-version" if isinstance(error, OtherFormatError) else "damaged"
        return named | {"kind": "", "status": status, "created": 0.0, "summary": str(error)}


def _label(label: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in label.items())


def study_summary(study: Tuning) -> Iterator[str]:
    """Yield what came of a study, for people."""
    from trainwright.studies.tuning.study import rows

    trials = rows(study.path)
    yield ""
    if ranked := _ranked(study, trials):
        yield from table(ranked)
        if (more := len(trials) + 1 - len(ranked)) > 0:
            yield f"and {more} more: trainwright studies show {study.id}"
        yield from _failures(trials)
        yield from _front_note(study.typed_result)
        yield ""
    best = study.best_config
    facts: list[tuple[str, str | Path | None]] = [
        ("study", study.id),
        ("status", study.status),
        ("digest", study.digest),
        ("directory", study.path),
        ("report", existing(study.path / "report.html")),
        ("best config", best),
    ]
    yield from table([fact for fact in facts if fact[1]])
    if study.typed_result.order == "free":
        yield "order: free, so the digest is that of these trials, and not of the config"
    if study.status in ("preempted", "interrupted"):
        yield f"continue with: {resume_command()}"
    elif best is not None:
        yield f"train it again with: trainwright train {best}"


def _ranked(study: Tuning, trials: Sequence[dict[str, Any]], most: int = _SHOWN) -> list[list[str]]:
    """Return the best trials as rows of a table, with the names of the parameters above them."""
    result = study.typed_result
    sign, front = -1 if result.mode == "max" else 1, result.front or []
    ordered = sorted(
        trials,
        key=lambda trial: (
            trial["trial"] not in front,
            trial["value"] is None,
            sign * (trial["value"] or 0.0),
            trial["trial"],
        ),
    )
    if not ordered:
        return []
    first = result.metric or "value"
    bounded = [text.split()[0] for text in result.constraints]
    more = [name for name in dict.fromkeys([*result.metrics, *bounded]) if name != first]
    others = {*_NOT_PARAMETERS, first, *more}
    keys = list(dict.fromkeys(key for trial in trials for key in trial if key not in others))
    head = ["trial", first, *more, "status", *(_short(key, keys) for key in keys)]
    return [
        head,
        *(
            [
                f"{trial['trial']}{' *' if trial['trial'] in front else ''}",
                "" if trial["value"] is None else f"{trial['value']:.5g}",
                *(_text(trial.get(name)) for name in more),
                trial["status"],
                *(_text(trial[key], null="null") if key in trial else "" for key in keys),
            ]
            for trial in ordered[:most]
        ),
    ]


def _failures(trials: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return why trials have failed: a line for each of the first reasons."""
    reasons: dict[str, list[str]] = {}
    for trial in trials:
        if trial["status"] == "failed":
            reasons.setdefault(str(trial.get("error", "it has no value")), []).append(str(trial["trial"]))
    lines = [
        f"failed: {', '.join(numbers[:_SHOWN])}{' ...' if len(numbers) > _SHOWN else ''}: {reason}"
        for reason, numbers in reasons.items()
    ]
    more = len(lines) - _REASONS
    return lines[:_REASONS] + ([f"and {more} more reasons, in the report of the study"] if more > 0 else [])


def _front_note(result: TuningResult) -> list[str]:
    """Return what the stars of the table mean, where there are several metrics or constraints."""
    if result.front is None:
        return []
    metrics, bounds = result.metrics, " and ".join(result.constraints)
    kept = f" of those that keep {bounds}" if bounds else ""
    if not result.front:
        return [f"no trial keeps {bounds}" if bounds else "no trial has all metrics"]
    if len(metrics) == 1:
        return [f"*: the best{kept}"]
    named = ", ".join(f"{name} ({mode})" for name, mode in metrics.items())
    return [
        f"*: the Pareto front{kept}: no other trial is as good in {named}",
        f"best: the one of the front with the best {result.metric}, the first metric",
    ]


def _short(key: str, keys: Sequence[str]) -> str:
    """Return the last part of a key, or two of `optimizer.type`, if that tells it apart from the others."""
    last = ".".join(key.split(".")[-2 if key.endswith(".type") else -1 :])
    return last if sum(f".{other}".endswith(f".{last}") for other in keys) == 1 else key


def _text(value: Any, null: str = "") -> str:
    return null if value is None else number(value, zeros=False) if isinstance(value, float) else str(value)
