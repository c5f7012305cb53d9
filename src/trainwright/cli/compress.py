"""`compress`: make a smaller model of a run's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

import trainwright
from trainwright.api.documents import run_document
from trainwright.cli import options
from trainwright.cli.output import show, size, table
from trainwright.errors import GateError
from trainwright.records.schemes import SCHEMES

_UNITS = {"bytes": size, "memory": size}


def _share(text: str) -> float:
    """Return a share that is written as a number or in percent."""
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no share; write, for example, 0.5") from None


@click.command()
@options.run_argument
@click.argument("overrides", nargs=-1, metavar="[KEY.PATH=VALUE]...")
@click.option(
    "--quantize",
    metavar=f"[{'|'.join(SCHEMES)}]",
    help="Hold weights in fewer bits; the int8-dynamic and int8-static ones multiply in int8, too.",
)
@click.option(
    "--prune",
    default="0",
    callback=lambda _, __, text: _share(text),
    metavar="SHARE",
    help="Drop this share of the weights of each layer, those of the smallest magnitude; of boosters and "
    "forests, of the trees.",
)
@click.option("--structured", is_flag=True, help="Drop whole channels instead: the tensors become smaller.")
@click.option(
    "--distill",
    metavar="CONFIG",
    help="Train the model of this config, with the run's model as its teacher, and KEY.PATH=VALUE.",
)
@click.option(
    "--gate",
    metavar="EXPRESSION",
    help="What the result has to pass, such as 'val_f1 >= parent - 0.005'; otherwise the exit code is 3, and "
    "no run is kept.",
)
@click.option("--search", is_flag=True, help="Look for the largest compression that passes the gate.")
@options.trust
@options.runs_dir
@options.as_json
def compress(run: str, as_json: bool, runs_dir: str | None, **how: Any) -> None:
    """Make a smaller model of a run, as a child run.

    Both are evaluated on the same rows and measured side by side: bytes, latency, memory, metrics.
    """
    try:
        made = trainwright.compress(run, runs_dir=runs_dir, **how)
    except GateError as error:
        if error.found and not as_json:
            show(None, list(_lines(error.found)), as_json=False)
        raise
    compared = made.compression
    document = run_document(made) | {"compression": compared}
    lines = [*_lines(compared), "", f"run {made.id} ({made.path})"]
    show(document, lines, as_json)


def _lines(compared: Mapping[str, Any]) -> Iterator[str]:
    """Yield the tables of a compression: layers, trials of a search, and both models side by side."""
    if "layers" in compared:
        rows: list[Sequence[Any]] = [
            (
                one["name"],
                one["kind"],
                one["scheme"] or "as it was",
                size(one["before"]),
                size(one["after"]),
                one["note"],
            )
            for one in compared["layers"]
        ]
        yield from table(rows, ("layer", "kind", "stored", "before", "after", "note"))
        yield ""
    if trials := compared.get("search"):
        head = list(trials[0])
        yield from table([[_shown(name, one[name]) for name in head] for one in trials], head)
        yield ""
    if "child" in compared:
        parent, child = compared["parent"], compared["child"]
        rows = [
            (name, _shown(name, parent.get(name)), _shown(name, value), _ratio(parent.get(name), value))
            for name, value in child.items()
        ]
        yield from table(rows, ("", "parent", "child", "child/parent"))
    if "gate" in compared:
        yield f"gate: {compared['gate']['said']}"


def _shown(name: str, value: Any) -> Any:
    if name.startswith("latency_") and value is not None:
        return f"{value:.3g} ms"
    return _UNITS[name](int(value)) if name in _UNITS and value is not None else value


def _ratio(before: Any, after: Any) -> str:
    return f"{after / before:.2f}" if isinstance(before, float) and before else ""
