"""`runs clean` and `runs delete`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainwright.cli import options
from trainwright.cli.output import say, show, size, table
from trainwright.numerals import counted, listed
from trainwright.records.status import UNFINISHED

if TYPE_CHECKING:
    from trainwright.runs.deletion import Deletable

_AGE = re.compile(r"(\d+(?:\.\d+)?) ?([a-z]+)")
_UNITS = {
    1: "s sec secs second seconds",
    60: "m min mins minute minutes",
    3600: "h hour hours",
    86400: "d day days",
    7 * 86400: "w week weeks",
}
_SECONDS = {word: seconds for seconds, words in _UNITS.items() for word in words.split()}
_CHILDREN = 3  # that a note names


class _Age(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A duration, such as `30d`, in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds that a text means."""
        if isinstance(value, float):
            return value
        match = _AGE.fullmatch(value.strip().lower())
        if match is None or match[2] not in _SECONDS:
            self.fail(
                f"{value!r} is no duration; write a number with s, m, h, d or w, such as 30d", param, ctx
            )
        return float(match[1]) * _SECONDS[match[2]]


yes = click.option("--yes", is_flag=True, help="Delete them without asking.")
dry_run = click.option("--dry-run", is_flag=True, help="Delete nothing: only say what would be deleted.")


@click.command()
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice([*UNFINISHED, "completed"]),
    help="Delete runs of this status, with or without checkpoints; may be given several times.  "
    "[default: crashed and failed runs without a checkpoint to resume from]",
)
@click.option(
    "--older-than",
    type=_Age(),
    metavar="AGE",
    help="Delete runs, and studies with all their runs, that have ended and did nothing for so long: 30d.",
)
@click.option("--experiment", metavar="NAME", help="Only the runs of this experiment.")
@click.option(
    "--keep-best",
    type=click.IntRange(min=1),
    metavar="N",
    help="Of each experiment, keep the N runs or studies with the best values of their checkpoint.metric, "
    "and delete the others that have ended.",
)
@yes
@dry_run
@options.runs_dir
@options.as_json
def clean(
    statuses: Sequence[str],
    older_than: float | None,
    experiment: str | None,
    keep_best: int | None,
    runs_dir: str | None,
    **how: bool,
) -> None:
    """Delete runs that nobody needs, after asking.

    All criteria that are given must hold. Runs that trackers lack values of are left.
    """
    from trainwright.records.listing import runs_folder
    from trainwright.runs.cleaning import Criteria, cleanable

    criteria = Criteria(statuses or None, older_than, experiment, keep_best)
    _delete([*cleanable(runs_folder(runs_dir), criteria)], runs_dir, **how)


@click.command()
@click.argument("runs", nargs=-1, required=True)
@click.option(
    "--force", is_flag=True, help="Delete also a single run of a study, and what trackers lack values of."
)
@yes
@dry_run
@options.runs_dir
@options.as_json
def delete(runs: Sequence[str], force: bool, runs_dir: str | None, **how: bool) -> None:
    """Delete runs, and studies with their runs, after asking."""
    from trainwright.api.housekeeping import to_delete

    _delete(to_delete(runs, runs_dir, force=force), runs_dir, **how)


def _delete(
    chosen: Sequence[Deletable], runs_dir: str | None, *, yes: bool, dry_run: bool, as_json: bool
) -> None:
    """Say what is to be deleted, ask, and delete it.

    Raises:
        UsageError: Nobody can be asked.
    """
    from trainwright.api.housekeeping import is_gone

    sizes = {one.folder.path: one.bytes() for one in chosen}
    if chosen and not (yes or dry_run):
        if not as_json:
            say(
                "\n".join(
                    [*_lines(chosen, sizes), *_notes(chosen, runs_dir), f"would delete {_sum(chosen, sizes)}"]
                )
            )
        if as_json or not sys.stdin.isatty():
            raise click.UsageError("nobody can be asked here: add --yes to delete them, or --dry-run")
        if not click.confirm("Go on?"):
            say("nothing was deleted")
            return
    deletes = bool(chosen) and not dry_run
    was_listed = deletes and not yes
    notes = [] if was_listed else [*_notes(chosen, runs_dir)]
    gone = [one for one in chosen if not deletes or is_gone(one)]
    verb = "would delete" if dry_run or not chosen else "deleted"
    listed = [
        {
            "run_id": one.folder.id,
            "path": str(one.folder.path),
            "status": one.status,
            "bytes": sizes[one.folder.path],
            "runs": [run.id for run in one.runs] if one.is_study else None,
        }
        for one in gone
    ]
    lines = [] if was_listed else [*_lines(gone, sizes), *notes]
    total = sum(sizes[one.folder.path] for one in gone)
    show(
        {"deleted": deletes, "bytes": total, "runs": listed},
        [*lines, f"{verb} {_sum(gone, sizes)}"] if chosen else ["nothing to delete"],
        as_json,
    )


def _lines(chosen: Sequence[Deletable], sizes: dict[Path, int]) -> list[str]:
    rows = [
        (
            one.folder.id,
            one.folder.experiment,
            one.status,
            counted(len(one.attempts), "run") if one.is_study else "",
            size(sizes[one.folder.path]),
        )
        for one in chosen
    ]
    return table(rows) if rows else []


def _notes(chosen: Sequence[Deletable], runs_dir: str | None) -> Iterator[str]:
    """Yield which other runs have begun with those that are deleted."""
    from trainwright.records.listing import runs_folder
    from trainwright.runs.data.pin_holders import released
    from trainwright.runs.deletion import children_of, users_of_weights

    folder = runs_folder(runs_dir)
    for parent, children in children_of(chosen, folder).items():
        named = listed(children, _CHILDREN)
        yield f"{parent} is the parent of {named}, which keeps its own copy of what it began with"
    for source, users in users_of_weights(chosen, folder).items():
        named = listed(users, _CHILDREN)
        yield f"{named} began with the weights of {source}, and cannot be reproduced without it"
    for version in released([run for one in chosen for run in one.runs], folder):
        yield f"no other run holds {version}: `trainwright data gc --keep N` may delete it then"


def _sum(chosen: Sequence[Deletable], sizes: dict[Path, int]) -> str:
    """Return how much is deleted: `12 runs, 1.3 GiB`."""
    runs = sum(len(one.attempts) if one.is_study else 1 for one in chosen)
    studies = sum(one.is_study for one in chosen)
    of = f" and {studies} {'study' if studies == 1 else 'studies'}" if studies else ""
    return f"{counted(runs, 'run')}{of}, {size(sum(sizes[one.folder.path] for one in chosen))}"
