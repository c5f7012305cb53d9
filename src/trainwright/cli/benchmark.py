"""`cross-validate` and `benchmark`: the commands that train the same config several times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

import trainwright
from trainwright.api.documents import existing, study_document
from trainwright.cli import options
from trainwright.cli.output import made_by, show, table
from trainwright.cli.studies import resume_command, watcher
from trainwright.errors import InputError
from trainwright.records.status import EXIT_CODES

if TYPE_CHECKING:
    from pathlib import Path

    from trainwright.studies.benchmark import Benchmark
    from trainwright.studies.cross_validation import CrossValidation


_reuse = click.option(
    "--reuse/--no-reuse",
    default=True,
    help="Take completed runs with the same inputs instead of training them again.  [default: reuse]",
)


@click.command("cross-validate")
@click.argument("config")
@click.argument("overrides", nargs=-1, metavar="[KEY.PATH=VALUE]...")
@click.option(
    "--folds", type=click.IntRange(min=2), help="Number of folds.  [default: data.split.folds, or 5]"
)
@click.option(
    "--resume",
    is_flag=True,
    help="Continue the newest unfinished cross-validation of the same config and data.",
)
@_reuse
@options.runs_dir
@options.quiet
@options.as_json
def cross_validate(
    config: str,
    overrides: Sequence[str],
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Train one run per fold, and test it on that fold."""
    study = made_by(
        trainwright.cross_validate, config, overrides, watch=watcher(quiet, as_json), quiet=quiet, **options
    )
    from trainwright.reports.studies import METRICS_HEAD, metric_rows

    rows = metric_rows(study.typed_result.metrics)
    files = {"out of fold": existing(study.path / "out_of_fold.csv")}
    show(study_document(study), _summary(study, [METRICS_HEAD, *rows] if rows else [], files), as_json)
    click.get_current_context().exit(EXIT_CODES.get(study.status, 1))


@click.command()
@click.argument("config")
@click.argument("overrides", nargs=-1, metavar="[KEY.PATH=VALUE]...")
@click.option("--models", required=True, metavar="A,B,...", help="The values of model.type to compare.")
@click.option(
    "--param",
    "params",
    multiple=True,
    metavar="MODEL.KEY=VALUE",
    help="An option of one model; may be given several times.",
)
@click.option(
    "--folds",
    type=click.IntRange(min=2),
    help="Cross-validate each model in this many folds.  [default: train each once]",
)
@click.option(
    "--metric",
    metavar="NAME",
    help="The metric to rank by: f1, test_f1, val_f1 ...  [default: the first one]",
)
@click.option(
    "--resume",
    is_flag=True,
    help="Continue the newest unfinished benchmark of the same models and data; retry failed models.",
)
@_reuse
@options.runs_dir
@options.quiet
@options.as_json
def benchmark(
    config: str,
    overrides: Sequence[str],
    models: str,
    params: Sequence[str],
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Train several models on the same rows, and rank them.

    A model that fails becomes a row of the table and the others are trained; the exit code is 1 then.
    """
    names = [name.strip() for name in models.split(",") if name.strip()]
    study = made_by(
        trainwright.benchmark,
        config,
        overrides,
        models=names,
        params=_params(params, names),
        watch=watcher(quiet, as_json),
        quiet=quiet,
        **options,
    )
    from trainwright.reports.studies import BENCHMARK_HEAD, benchmark_rows

    ranked = study.typed_result.models
    rows = [BENCHMARK_HEAD, *benchmark_rows(ranked)] if ranked else []
    files = {"table": existing(study.path / "table.csv")}
    show(
        study_document(study),
        [*_summary(study, rows, files), *(f"{model}: {error}" for model, error in study.failed.items())],
        as_json,
    )
    click.get_current_context().exit(EXIT_CODES.get(study.status, 1))


def _params(texts: Sequence[str], models: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Parse `MODEL.KEY=VALUE` into options by model; the value is YAML."""
    from trainwright.config.tree import Problems, plain
    from trainwright.config.yaml import read_value

    params: dict[str, dict[str, Any]] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        model = next((model for model in models if name.startswith(f"{model}.")), None)
        problems = Problems()
        node = read_value(value, "command line", problems)
        if not equals or model is None or node is None:
            why = (
                problems[0].message
                if problems
                else f"expected MODEL.KEY=VALUE with a model of {', '.join(models)}"
            )
            raise InputError(f"--param {text}: {why}")
        params.setdefault(model, {})[name.removeprefix(f"{model}.")] = plain(node)
    return params


def _summary(
    study: CrossValidation | Benchmark, rows: Sequence[Sequence[str]], files: Mapping[str, str | None]
) -> Iterator[str]:
    yield ""
    yield from table(rows) if rows else ()
    yield from [""] if rows else []
    paths: dict[str, str | Path | None] = {"report": existing(study.path / "report.html"), **files}
    facts = [("study", study.id), ("status", study.status), ("directory", study.path)]
    yield from table([*facts, *(item for item in paths.items() if item[1])])
    if study.status in ("preempted", "interrupted"):
        yield f"continue with: {resume_command()}"
