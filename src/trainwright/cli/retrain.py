"""`retrain`: train the config of a run on other data, and compare the models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

import trainwright
from trainwright.api.documents import run_document
from trainwright.cli import options
from trainwright.cli.output import made_by, say, show, table
from trainwright.cli.train import exit_code, progress_callbacks, say_result
from trainwright.errors import GateError
from trainwright.numerals import number
from trainwright.world import is_follower


@click.command()
@options.run_argument
@click.argument("overrides", nargs=-1, metavar="[KEY.PATH=VALUE]...")
@click.option("--data", required=True, metavar="PATH", help="The file, folder or version to train on.")
@click.option("--warm-start", is_flag=True, help="Begin with the weights of the run.")
@click.option(
    "--gate",
    metavar="EXPRESSION",
    help="What the new model has to pass, such as 'test_f1 >= parent - 0.01'; otherwise the exit code is 3.",
)
@options.trust
@options.runs_dir
@options.quiet
@options.as_json
def retrain(
    run: str,
    overrides: Sequence[str],
    runs_dir: str | None,
    quiet: bool,
    as_json: bool,
    **how: Any,
) -> None:
    """Train the config of a run on other data, as a child run.

    Both models are then compared on the test and validation rows of the new data that the first one has not
    learned from.
    """
    try:
        with progress_callbacks(quiet, as_json) as callbacks:
            made = made_by(
                trainwright.retrain,
                run,
                overrides,
                runs_dir=runs_dir,
                callbacks=callbacks,
                quiet=quiet,
                **how,
            )
    except GateError as error:
        if error.found:
            show(error.found, _lines(error.found), as_json)
        raise
    if is_follower():
        pass
    elif as_json:
        show(run_document(made) | {"retraining": made.retraining}, (), as_json)
    else:
        say("\n".join(_lines(made.retraining)))
        say_result(made, runs_dir)
    click.get_current_context().exit(exit_code(made))


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield both models side by side, and what the gate says."""
    if not found:
        return
    for split, count in found["rows"].items():
        left = found["left_out"][split]
        more = f" ({left:,} that the parent learned from are left out)" if left else ""
        yield f"{count:,} {split} rows{more}"
    rows = []
    for name, one in found["differences"].items():
        interval = " to ".join(number(one[end]) for end in ("low", "high") if end in one)
        values = (found["parent"][name], found["child"][name], one["effect"])
        rows.append((name, *values, interval, one.get("p_value")))
    yield from table(rows, ("", "parent", "child", "difference", "95% interval", "p"))
    if "gate" in found:
        yield f"gate: {found['gate']['said']}"
