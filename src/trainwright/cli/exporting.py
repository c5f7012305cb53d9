"""`export`: write a run's model for use elsewhere, with a certificate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

import trainwright
from trainwright.cli import options
from trainwright.cli.output import show


class _Export(click.Command):
    """A command whose help lists the formats."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write a line for each format; they are imported for it."""
        from trainwright.api.formats import formats

        lines = [
            (name, f"{cls.summary}; legacy: use {cls.successor}" if cls.successor else cls.summary)
            for name, cls in formats().items()
        ]
        with formatter.section("Formats"):
            formatter.write_dl(lines)


@click.command(cls=_Export)
@options.run_argument
@click.argument("path", type=click.Path(path_type=Path), required=False)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The same as PATH.")
@click.option(
    "--format",
    "form",
    help="One of the formats below.  [default: by the suffix of PATH; without one, that of the library]",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(0, 1),
    help="The largest difference of an output, beside its size where that is above 1.  [default: 1e-5]",
)
@click.option("--licence", "--license", help="The terms of use, for the certificate.")
@click.option(
    "--option",
    "chosen_options",
    metavar="NAME=VALUE",
    multiple=True,
    help="An option of the format, as docs/export.md lists them; may be given several times.",
)
@click.option(
    "--gate",
    help="What the exported model has to pass on the run's validation rows, such as "
    "'val_f1 >= parent - 0.005'. If it does not, nothing is written, and the exit code is 3.",
)
@click.option(
    "--max-shard-size",
    metavar="SIZE",
    callback=options.size,
    help="With --format safetensors: make PATH a folder with files of at most this size, such as 5GB, and an "
    "index of them, as transformers does.",
)
@click.option("--force", is_flag=True, help="Replace PATH if it exists.")
@options.trust
@options.runs_dir
@options.as_json
def export(
    run: str,
    path: Path | None,
    output: Path | None,
    form: str | None,
    tolerance: float | None,
    licence: str | None,
    chosen_options: tuple[str, ...],
    gate: str | None,
    max_shard_size: int | None,
    force: bool,
    trust: bool,
    runs_dir: str | None,
    as_json: bool,
) -> None:
    """Export a run's model, with a certificate.

    It is written to PATH, opened there by the format's own runtime, and compared with the run. What differs
    is not written: exit code 3.
    """
    if (path is None) == (output is None):
        raise click.UsageError("say once where to write it: export RUN PATH, or -o PATH")
    path = path or output
    assert path is not None
    if path.exists() and not force:
        raise click.BadParameter(
            f"{path} already exists: choose another name, or replace it with --force", param_hint="PATH"
        )
    made = trainwright.export(
        run,
        path,
        form,
        max_shard_size=max_shard_size,
        tolerance=tolerance,
        licence=licence,
        options=_pairs(chosen_options),
        gate=gate,
        runs_dir=runs_dir,
        trust=trust,
    )
    _show_certificate(made, as_json)


def _pairs(words: Sequence[str]) -> dict[str, str]:
    """Return the values of options by name."""
    for word in words:
        if "=" not in word:
            raise click.BadParameter(f"{word}: give NAME=VALUE", param_hint="--option")
    return dict(word.split("=", 1) for word in words)


def _show_certificate(made: Path, as_json: bool) -> None:
    """Say what the certificate of an exported model says."""
    from trainwright.api.formats import formats
    from trainwright.exporters.certificates.script import reader_of
    from trainwright.records.artifact import certificate_of, read_certificate

    known = read_certificate(made)
    compared, latency = known.compared, known.latency_seconds
    lines = [f"{made} ({known.format}, {sum(one['bytes'] for one in known.files.values()):,} bytes)"]
    if "rows" in compared:
        counts = " and ".join(f"{count} {name}" for name, count in compared["rows"].items())
        lines.append(
            f"compared with the run on {counts} rows, in batches of "
            f"{', '.join(map(str, compared['batches']))}: largest difference "
            f"{compared['largest_difference']:.3g}, mean {compared['mean_difference']:.3g}"
        )
        if compared["equal_labels"] is not None:
            lines[-1] += f"; {compared['equal_labels']:.2%} of labels equal"
    if "gate" in compared:
        lines.append(f"gate: {compared['gate']}")
    if "tensors" in compared:
        lines.append(f"compared with the run: {compared['tensors']} tensors")
    if latency:
        times = [f"{seconds * 1e3:.3g} ms for {n} rows" for n, seconds in latency.items() if n.isdigit()]
        lines.append(f"a call takes {', '.join(times)}".replace(" 1 rows", " 1 row"))
    lines += [f"certificate: {certificate_of(made)}", f"verify it: trainwright certificate verify {made}"]
    if reader_of(made).exists():
        lines[-1] = f"verify it anywhere: python {reader_of(made)} verify"
    if advice := formats()[known.format].advice:
        lines.append(advice.format(path=made))
    show({"path": str(made), "format": known.format, "certificate": known.to_json()}, lines, as_json)
