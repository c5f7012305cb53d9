"""The table of commands; a command's module is imported when the command is used."""

from __future__ import annotations

from importlib import import_module

import click

import trainwright

_MODULES = {
    "init": "init",
    "train": "train",
    "resume": "train",
    "fork": "train",
    "retrain": "retrain",
    "create": "work",
    "work": "work",
    "take-part": "take_part",
    "stop": "stop",
    "reproduce": "train",
    "cross-validate": "benchmark",
    "benchmark": "benchmark",
    "tune": "tuning",
    "do-stints": "tuning",
    "serve-stints": "tuning",
    "studies": "studies",
    "why": "why",
    "evaluate": "models",
    "predict": "models",
    "generate": "generate",
    "explain": "models",
    "drift": "monitoring",
    "monitor": "monitoring",
    "export": "exporting",
    "certificate": "certificate",
    "compress": "compress",
    "serve": "serve",
    "report": "models",
    "runs": "runs",
    "data": "data",
    "config": "config",
    "plan": "plan",
    "doctor": "doctor",
}


class _LazyGroup(click.Group):
    """A group whose commands are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names of all commands."""
        return list(_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import and return a command, or None if there is none of this name."""
        if cmd_name not in _MODULES:
            return None
        command: click.Command = getattr(
            import_module(f"trainwright.cli.{_MODULES[cmd_name]}"), cmd_name.replace("-", "_")
        )
        return command


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="RUN is a path, a URL, a run id, a unique prefix of one, or `last`.",
)
@click.option("--debug", is_flag=True, help="Show tracebacks; can be given anywhere on the command line.")
@click.version_option(trainwright.__version__, message="trainwright %(version)s")
def cli(debug: bool) -> None:  # taken off the command line before click sees it
    """Train models from one config file, resume them exactly after a crash, prove them by training again."""
