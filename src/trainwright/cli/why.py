"""`why`: which difference of two runs moved a metric."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

import trainwright
from trainwright.api.documents import existing, study_document
from trainwright.cli import options
from trainwright.cli.output import made_by, show, table
from trainwright.cli.studies import resume_command, watcher
from trainwright.records.status import EXIT_CODES

if TYPE_CHECKING:
    from trainwright.studies.why.why import Why


@click.command()
@click.argument("first", metavar="RUN")
@click.argument("second", metavar="RUN")
@click.option(
    "--metric", metavar="NAME", help="f1, test_f1, val_f1 ...  [default: the first one of the test]"
)
@click.option(
    "--max-runs",
    type=click.IntRange(min=1),
    default=60,
    show_default=True,
    help="Train at most this many runs; runs that exist already are reused, and not counted.",
)
@click.option(
    "--resume",
    is_flag=True,
    help="Continue the newest study of the same runs and metric, or with more --max-runs.",
)
@options.runs_dir
@options.trust
@options.quiet
@options.as_json
def why(first: str, second: str, quiet: bool, as_json: bool, **options: Any) -> None:
    """Find which difference of two runs moved a metric.

    A difference is a key of the config, the data, or the code. The differences are made one by one and in
    groups, each in a run, and the runs are repeated with other seeds until the shares of the few that matter
    stand out from the noise.
    """
    study = made_by(trainwright.why, first, second, watch=watcher(quiet, as_json), quiet=quiet, **options)
    show(study_document(study), _summary(study), as_json)
    click.get_current_context().exit(EXIT_CODES.get(study.status, 1))


def _summary(study: Why) -> Iterator[str]:
    from trainwright.reports.why import HEAD, share_rows

    result = study.result
    yield ""
    if result:
        yield from table(share_rows(result), HEAD)
        yield ""
        for text in result["data"]:
            yield f"data: {text}"
        for note in [*result["notes"], *(result["rest"] or {}).get("differences", [])]:
            yield f"not substituted: {note}"
        for factor in result["factors"]:
            if factor["merged"]:
                yield f"{factor['name']}: one change, as a config with only a part of it would be invalid"
    trained = f"{result['trained']} of at most {result['max_runs']}" if result else ""
    facts = [
        ("study", study.id),
        ("status", study.status),
        ("runs trained", trained),
        ("report", existing(study.path / "report.html") or ""),
    ]
    yield from table([fact for fact in facts if fact[1]])
    if study.status in ("preempted", "interrupted"):
        yield f"continue with: {resume_command()}"
    if result:
        yield ""
        yield result["answer"]
    if result.get("spent"):
        yield "give a larger --max-runs, and --resume"
