"""`studies`: the list of studies, and one of them; what other commands print of a study."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

import trainwright
from trainwright.api.documents import existing, study_document
from trainwright.cli import options
from trainwright.cli.output import made_by, show, table
from trainwright.cli.proof import UNPROVEN, verdict_lines
from trainwright.errors import CheckpointError, OtherFormatError
from trainwright.numerals import number
from trainwright.records.status import EXIT_CODES

if TYPE_CHECKING:
    from trainwright.records.tuning_result import TuningResult
    from trainwright.studies.study import Study, TrialWatcher
    from trainwright.studies.tuning.reproduce import StudyReproduction
    from trainwright.studies.tuning.tuning_view import Tuning

log = logging.getLogger("trainwright")
_SHOWN = 10  # trials of the final table
_REASONS = 3  # why trials have failed
_NOT_PARAMETERS = ("trial", "status", "value", "step", "seconds", "run_id", "error")  # in the rows of trials


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
    from trainwright.studies.tuning.tuning_view import Tuning, trials_of

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


def resume_study(
    name: str,
    overrides: Sequence[str],
    runs_dir: str | None,
    allow_change: bool,
    trust: bool,
    quiet: bool,
    as_json: bool,
) -> NoReturn:
    """Resume a study, print its summary, and exit with the code of its status."""
    study = made_by(
        trainwright.resume_study,
        name,
        overrides,
        runs_dir=runs_dir,
        allow_change=allow_change,
        trust=trust,
        watch=watcher(quiet, as_json),
        quiet=quiet,
    )
    show(study_document(study), study_summary(study), as_json)
    click.get_current_context().exit(EXIT_CODES.get(study.status, 1))


def reproduce_study(name: str, runs_dir: str | None, trust: bool, quiet: bool, as_json: bool) -> NoReturn:
    """Repeat the trials of a study, print the verdict, and exit; the code is 3 if they differ."""
    result = made_by(
        trainwright.reproduce_study,
        name,
        runs_dir=runs_dir,
        trust=trust,
        watch=watcher(quiet, as_json),
        quiet=quiet,
    )
    show(result.to_json(), _verdict_lines(result), as_json)
    click.get_current_context().exit(0 if result.verdict == "identical" else UNPROVEN)


def _verdict_lines(result: StudyReproduction) -> Iterator[str]:
    """Yield the verdict for people, and where the two studies first differ."""
    if result.verdict == "identical":
        repeats = f"identical: {result.repetition} repeats {result.original}"
        yield f"{repeats}: {result.trials[0]} trials, digest {result.digests[0]}"
        return
    if result.verdict == "incomplete":
        yield f"trials identical; {'; '.join(result.uncompared)}"
        yield f"  incomplete: {result.repetition} repeats {result.original} as far as could be compared"
        return
    yield f"different: {result.repetition} does not repeat {result.original}"
    first = "" if result.trial is None else f"first trial that differs: {result.trial}; "
    yield f"  {first}{result.what}"
    if result.run is not None:
        yield from (f"  {line}" for line in verdict_lines(result.run))
    yield from (f"  {reason}" for reason in result.uncompared)
    yield f"  digests: {result.digests[0]}, then {result.digests[1]}"


def study_summary(study: Tuning) -> Iterator[str]:
    """Yield what came of a study, for people."""
    from trainwright.studies.tuning.tuning_view import rows

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
    found = study.typed_result.best
    facts: list[tuple[str, str | Path | None]] = [
        ("study", study.id),
        ("status", study.status),
        *((name, number(value)) for name, value in (found.metrics if found else {}).items()),
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
                _text(trial["value"]),
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


def watcher(quiet: bool, as_json: bool) -> TrialWatcher | None:
    """Return a callback that prints a line for each run that ended; on stderr if stdout gets a document."""
    if quiet:
        return None
    from trainwright.api.progress import trial_lines

    return trial_lines(sys.stderr if as_json else sys.stdout)


def resume_command() -> str:
    """Return the same command, with `--resume` where it would begin a new study otherwise."""
    if sys.argv[1:2] == ["resume"]:
        return shlex.join(["trainwright", *sys.argv[1:]])
    words = [word for word in sys.argv[1:] if word != "--resume"]
    return shlex.join(["trainwright", *words, "--resume"])
