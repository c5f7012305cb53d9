"""`package`: write a folder that serves a model."""

from __future__ import annotations

from pathlib import Path

import click

import trainwright
from trainwright.cli import options
from trainwright.cli.output import show


class _Package(click.Command):
    """A command whose help lists the systems."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write a line for each system; they are imported for it."""
        from trainwright.plugins import adapters

        lines = [
            (name, f"{cls.summary}; legacy: use {cls.successor}" if cls.successor else cls.summary)
            for name, cls in adapters("server")
        ]
        with formatter.section("Systems"):
            formatter.write_dl(lines)


@click.command(cls=_Package)
@click.argument("run", metavar="RUN|ARTIFACT")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="The folder to make.")
@click.option("--to", default="trainwright", show_default=True, help="The system that serves it, as below.")
@click.option("--name", help="The name of the service.  [default: that of the experiment]")
@click.option("--replicas", type=int, default=3, show_default=True, help="The processes that serve it.")
@click.option("--force", is_flag=True, help="Replace the folder if it exists.")
@options.trust
@options.runs_dir
@options.as_json
def package(
    run: str,
    output: Path,
    to: str,
    name: str | None,
    replicas: int,
    force: bool,
    trust: bool,
    runs_dir: str | None,
    as_json: bool,
) -> None:
    """Write a folder that serves a model.

    It serves by containers, in Kubernetes, or by a script, and stands alone: the model and its certificate,
    requirements with hashes, a load balancer, monitoring, and a README for operators.
    """
    if output.exists() and not force:
        raise click.BadParameter(
            f"{output} already exists: choose another name, or replace it with --force", param_hint="-o"
        )
    made = trainwright.package(run, output, to, name=name, replicas=replicas, runs_dir=runs_dir, trust=trust)
    lines = [
        f"{made.path}: service {made.name} for {to}, with the model in the format {made.format}",
        f"read {made.path / 'README.md'}; in short: cd {made.path} && {made.start}",
    ]
    show({"path": str(made.path), "to": to, **made._asdict() | {"path": str(made.path)}}, lines, as_json)
