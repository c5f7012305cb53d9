"""The commands `resume` and `reproduce` where their argument is a study."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn

import click

import trainwright
from trainwright.api.documents import study_document
from trainwright.cli.output import show
from trainwright.cli.proof import UNPROVEN, verdict_lines
from trainwright.cli.studies import watcher
from trainwright.cli.tuning import study_summary
from trainwright.records.status import EXIT_CODES

if TYPE_CHECKING:
    from trainwright.studies.tuning.reproduce import StudyReproduction


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
    study = trainwright.resume_study(
        name,
        overrides,
        runs_dir=runs_dir,
        allow_change=allow_change,
        trust=trust,
        watch=watcher(quiet, as_json),
    )
    show(study_document(study), study_summary(study), as_json)
    click.get_current_context().exit(EXIT_CODES.get(study.status, 1))


def reproduce_study(name: str, runs_dir: str | None, trust: bool, quiet: bool, as_json: bool) -> NoReturn:
    """Repeat the trials of a study, print the verdict, and exit; the code is 3 if they differ."""
    result = trainwright.reproduce_study(name, runs_dir=runs_dir, trust=trust, watch=watcher(quiet, as_json))
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
