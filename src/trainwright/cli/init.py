"""`init`: from a data file to a first config."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

import trainwright
from trainwright.cli import options
from trainwright.cli.output import show
from trainwright.errors import InputError


@click.command()
@click.argument("file")
@click.option("--target", metavar="COLUMN", help="The column of a table to predict; for several: a,b.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("config.yaml"),
    show_default=True,
)
@click.option(
    "--model",
    metavar="NAME",
    help="The model; auto: compare a few on a sample of the rows.  [default: boosted trees, if installed]",
)
@click.option(
    "--encoding",
    help="The encoding of a CSV file: cp1252, shift_jis ...  [default: utf-8, or detected from its bytes]",
)
@click.option("--delimiter", help="The character between the cells of a CSV file.  [default: detected]")
@click.option("--sheet", help="The sheet of an Excel workbook.  [default: the first one with rows]")
@click.option("--force", is_flag=True, help="Replace the output if it exists.")
@options.as_json
def init(
    file: str,
    target: str | None,
    output: Path,
    model: str | None,
    encoding: str | None,
    delimiter: str | None,
    sheet: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Write a commented config that trains on a data file.

    FILE is a table (a path or URL; CSV, also compressed, Parquet, JSON Lines or Excel), or a folder or a
    quoted pattern of such files, which needs --target. Or it is a folder of images or texts with a subfolder
    for each class, or of texts alone.
    """
    if output.exists() and not force:
        raise _exists(output)
    text = trainwright.init(file, target, encoding=encoding, delimiter=delimiter, sheet=sheet, model=model)
    try:
        with open(output, "w" if force else "x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise _exists(output) from None
    except OSError as error:
        raise InputError(
            f"{output} cannot be written: {error.strerror}; choose another path with -o"
        ) from error
    show(
        {"config": str(output)},
        [f"wrote {output}", f"next: trainwright train {shlex.quote(str(output))}"],
        as_json,
    )


def _exists(output: Path) -> InputError:
    return InputError(f"{output} already exists: choose another name with -o, or replace it with --force")
