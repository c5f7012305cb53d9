"""`data`: versions of data beside the runs, their differences, and what a config expects of them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

import trainwright
from trainwright.cli import options
from trainwright.cli.data_diff import diff
from trainwright.cli.output import show, size, table
from trainwright.errors import ExpectationError
from trainwright.numerals import counted

_LISTED = 20  # names of files that `show` prints
_VERSION = "VERSION"


@click.group()
def data() -> None:
    """Keep versions of data, compare and check them.

    A version is NAME@v3, NAME@TAG or NAME@latest, and `data.path` in a config may be one.
    """


@data.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--name", metavar="NAME", help="The data set.  [default: the name of PATH without its ending]")
@click.option("--tag", metavar="TAG", help="Another name for the version, which a later one may get.")
@click.option("-m", "--message", default="", metavar="TEXT", help="A note on the version.")
@options.runs_dir
@options.as_json
def add(
    path: Path, name: str | None, tag: str | None, message: str, runs_dir: str | None, as_json: bool
) -> None:
    """Keep a file or folder as the next version of a data set.

    Content that is there already takes no space again. The same content as that of the newest version makes
    no new one.
    """
    from trainwright.api.data import data_add

    added = data_add(path, name, tag=tag, message=message, runs_dir=runs_dir)
    verb = "added" if added["new"] else "no new version: the content is that of"
    show(added, [f"{verb} {added['version']}: {_counted(added)}"], as_json)


@data.command()
@click.argument("version", metavar=_VERSION)
@click.argument("tag")
@options.runs_dir
@options.as_json
def tag(version: str, tag: str, runs_dir: str | None, as_json: bool) -> None:
    """Give a version another name: TAG, which a later one may get."""
    from trainwright.api.data import data_tag

    tagged = data_tag(version, tag, runs_dir=runs_dir)
    show(tagged, [f"{tagged['name']}@{tag} is {tagged['version']}"], as_json)


@data.command("log")
@click.argument("name", required=False)
@options.runs_dir
@options.as_json
def log_(name: str | None, runs_dir: str | None, as_json: bool) -> None:
    """List the versions of a data set, or of all, newest first."""
    from trainwright.api.data import data_log

    found = data_log(name, runs_dir=runs_dir)
    rows = [
        (
            one["version"],
            _when(one["time"]),
            one["user"],
            f"{one['files']:,}",
            size(one["bytes"]),
            " ".join(one["tags"]),
            one["deleted"] or one["message"],
        )
        for one in found
    ]
    head = ("version", "added", "by", "files", "size", "tags", "")
    show(
        found, table(rows, head) if rows else ["there is no data set yet: trainwright data add FILE"], as_json
    )


@data.command("show")
@click.argument("version", metavar=_VERSION)
@options.runs_dir
@options.as_json
def show_(version: str, runs_dir: str | None, as_json: bool) -> None:
    """Show what is known of a version, and the runs that hold it."""
    from trainwright.api.data import data_show

    found = data_show(version, runs_dir=runs_dir)
    show(found, _shown(found), as_json)


@data.command()
@click.argument("version", metavar=_VERSION)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The file or folder to write.")
@options.runs_dir
@options.as_json
def get(version: str, output: Path | None, runs_dir: str | None, as_json: bool) -> None:
    """Write the files of a version, verified; damage is named, and nothing is written then."""
    from trainwright.api.data import data_get

    path = data_get(version, output, runs_dir=runs_dir)
    show({"path": str(path)}, [f"wrote {path}"], as_json)


@data.command()
@click.argument("version", metavar=_VERSION)
@click.option("--force", is_flag=True, help="Delete it although runs hold it.")
@options.runs_dir
@options.as_json
def delete(version: str, force: bool, runs_dir: str | None, as_json: bool) -> None:
    """Delete a version; `data gc` frees its space."""
    from trainwright.api.data import data_delete

    gone = data_delete(version, force=force, runs_dir=runs_dir)
    lines = [f"deleted {gone['version']}"]
    if gone["runs"] and gone["same"] is not None:
        lines.append(f"{gone['same']} has the same content, so its runs can still be reproduced")
    elif gone["runs"]:
        lines.append(f"these runs cannot be reproduced any more: {', '.join(gone['runs'])}")
    show(gone, lines, as_json)


@data.command()
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    metavar="N",
    help="Delete all but the N newest versions of each data set, those with tags, and those that runs hold.",
)
@click.option("--force", is_flag=True, help="With --keep: delete versions although runs hold them.")
@click.option("--dry-run", is_flag=True, help="Delete nothing: only say what would be deleted.")
@options.runs_dir
@options.as_json
def gc(keep: int | None, force: bool, dry_run: bool, runs_dir: str | None, as_json: bool) -> None:
    """Delete what no version needs: what deleted versions, and commands that were killed, have left."""
    from trainwright.api.data import data_gc

    if force and keep is None:
        raise click.UsageError("--force says which versions --keep N may delete: give both, or neither")
    swept = data_gc(keep=keep, force=force, dry_run=dry_run, runs_dir=runs_dir)
    verb = "would delete" if dry_run else "deleted"
    lines = [f"{verb} {one}" for one in swept.versions]
    lines += [f"kept {one}, the data of {', '.join(runs)}" for one, runs in swept.kept.items()]
    show(swept._asdict(), [*lines, f"{verb} {swept.objects:,} objects that no version needs"], as_json)


@data.command()
@click.argument("file", metavar="CONFIG")
@click.argument("overrides", nargs=-1, metavar="[KEY.PATH=VALUE]...")
@options.runs_dir
@options.as_json
def check(file: str, overrides: Sequence[str], runs_dir: str | None, as_json: bool) -> None:
    """Compare the data of a config with its section data.expect.

    The exit code is 3 if they are not as expected, which is said line by line.
    """
    document = trainwright.check_data(file, overrides, runs_dir=runs_dir)
    lines = [
        f"{'ok ' if one['met'] else 'NOT'} {one['key']}{': ' if one['said'] else ''}{one['said']}"
        for one in document["expectations"]
    ]
    unmet = sum(not one["met"] for one in document["expectations"])
    lines.append(
        f"{file}: {unmet} of {len(document['expectations'])} expectations not met" if unmet else f"{file}: ok"
    )
    show({"file": file, **document}, lines, as_json)
    if unmet:
        click.get_current_context().exit(ExpectationError.exit_code)


def _shown(found: Mapping[str, Any]) -> Iterator[str]:
    names: Sequence[str] = found["names"]
    rows = [
        ("version", found["version"]),
        ("added", f"{_when(found['time'])} by {found['user']} on {found['host']}"),
        ("content", found["content"]),
        ("size", _counted(found)),
        *([("tags", " ".join(found["tags"]))] if found["tags"] else []),
        *([("message", found["message"])] if found["message"] else []),
        *([("runs", " ".join(found["runs"]))] if found["runs"] else []),
    ]
    yield from table(rows)
    yield ""
    yield from names[:_LISTED]
    if found["files"] > _LISTED:
        yield f"... and {found['files'] - _LISTED:,} more"


def _counted(one: Mapping[str, Any]) -> str:
    return f"{counted(one['files'], 'file')}, {size(one['bytes'])}"


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


data.add_command(diff)
