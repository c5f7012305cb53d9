"""Read, check and draft configs."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from trainwright.config import Config, Overrides, Resolved
from trainwright.config import load as load_resolved
from trainwright.config.fields import TypedSection
from trainwright.config.schema import DataConfig, ModelConfig, OptimizerConfig, TrackerConfig
from trainwright.config.tree import Problems
from trainwright.config.tuning import SamplerConfig, TunerConfig
from trainwright.config.versions import is_reference
from trainwright.errors import ConfigError, InputError
from trainwright.records.listing import runs_folder
from trainwright.runs.catalog import Catalog
from trainwright.safe_files import usable_path

if TYPE_CHECKING:
    from trainwright.datasets.tables.table import Table
    from trainwright.datasets.tables.typed import ColumnKind

log = logging.getLogger("trainwright")
_WITH_OPTIONS: Mapping[str, type[TypedSection]] = {
    "model": ModelConfig,
    "optimizer": OptimizerConfig,
    "dataset": DataConfig,
    "tracker": TrackerConfig,
    "sampler": SamplerConfig,
    "tuner": TunerConfig,
}


def check(
    config: Config, overrides: Overrides = (), *, runs_dir: Path | str | None = None, columns: bool = False
) -> Resolved:
    """Read and check a config; no framework is imported.

    Args:
        config: The config.
        overrides: Values in place of the config's.
        runs_dir: The folder of the runs, which keeps versions of data; default `TRAINWRIGHT_RUNS`, or `runs`.
        columns: Look in the first rows of the training file, if it is a file of this machine, for the
            columns that `data.split` and `data.expect` name.

    Raises:
        ConfigError: The config has problems; the error lists all of them.
    """
    resolved = load_resolved(config, overrides, Catalog(runs_folder(runs_dir)))
    _check_tokens(resolved)
    if resolved.config.tuning is not None:
        from trainwright.studies.configs import StudyConfig
        from trainwright.studies.tuning.checks import check_tuning

        check_tuning(StudyConfig(config, overrides, resolved, False, runs_folder(runs_dir)))
    if columns:
        _check_columns(resolved)
    return resolved


def _check_columns(resolved: Resolved) -> None:
    """Refuse columns that the training file does not have; one that cannot be read is left to training.

    Raises:
        ConfigError: A column is not there.
    """
    from trainwright.datasets.tables.table import nearest

    data = resolved.config.data
    path = None if data is None else data.path or data.train_path
    if data is None or path is None or not Path(path).is_file():
        return
    named = [("data.split.key", name) for name in data.split.keys]
    if data.features_from is None:  # which may give these columns
        named += [
            (f"data.split.{key}", name) for key in ("group", "time") if (name := getattr(data.split, key))
        ]
    if data.expect is not None:
        named += [(f"data.expect.column.{name}", name) for name in data.expect.column]
        named += [("data.expect.columns.required", name) for name in data.expect.columns.required]
    try:
        table = _sample(data) if named else None
    except InputError:
        return
    if table is None:
        return
    there, problems = [*table.columns, *table.unread], Problems()
    for key, name in named:
        if name not in there:
            source = next((one for at, one in resolved.sources.items() if at.startswith(key)), None)
            problems.report(f"{path} has no column {name!r}; {nearest(name, there)}", key, source)
    if problems:
        raise ConfigError(problems)


def _sample(config: DataConfig) -> Table | None:
    """Return the first training rows of a table; None for other data."""
    from trainwright import plugins

    cls = plugins.dataset_of(config.type)
    table: Table | None = (
        cls(config, cls.Params(**config.params)).sample() if hasattr(cls, "sample") else None
    )
    return table


def _check_tokens(resolved: Resolved) -> None:
    """Refuse a model of tokens on data that have none, as training would.

    Raises:
        ConfigError: It is one.
    """
    from trainwright import plugins

    model, data = resolved.config.model, resolved.config.data
    framework = model.framework or plugins.framework_of(model.type)
    if (
        data is None
        or framework is None
        or model.type not in plugins.adapter("framework", framework).capabilities.token_models
    ):
        return
    if not getattr(plugins.dataset_of(data.type), "has_tokens", True):
        problems = Problems()
        problems.report(
            f"{model.type} needs text, which data of the type {data.type} are not: write data.type: text, "
            "text_table or text_folder, or take a model of features",
            "model.type",
            resolved.sources["model.type"],
        )
        raise ConfigError(problems)


def columns(resolved: Resolved) -> Mapping[str, ColumnKind]:
    """Return what the columns of the training file are, judged by its first rows; empty for other data.

    Raises:
        DataError: The file cannot be read.
        MissingExtraError: The library that reads it is not installed.
    """
    from trainwright.datasets.tables import checks
    from trainwright.datasets.tables.kinds import infer, infer_target, kept_columns

    config = resolved.config.data
    if config is None or config.features_from is not None:  # whose columns are known in training
        return {}
    if (table := _sample(config)) is None:
        return {}
    keep = kept_columns(is_own=":" in resolved.config.model.type, given=False)
    kinds = infer(table, checks.feature_columns(table, config), config, keep=keep).kinds
    for name in config.targets:
        kinds = {**kinds, name: infer_target(table, config.model_copy(update={"target": name}))}
    return kinds


def names(kind: str | None = None) -> dict[str, str]:
    """Return the names that a config may use, with what is known of each.

    Args:
        kind: `model`, `metric`, `optimizer`, `loss`, `dataset`, `tracker`, `task`, `framework`, `transform`,
            `scheduler`, `pruner` ...; a section of the config (`training`, `data.split`), for its keys; or
            one of these names (`model.gpt`, `dataset.csv`), for all keys of its section. Default: return what
            `kind` may be.

    Raises:
        InputError: It is none of these.
    """
    from trainwright.config.adapters import Kind
    from trainwright.config.reference import keys_of, kinds

    if kind is None:
        return kinds()
    if kind in get_args(Kind):
        return dict.fromkeys(sorted(Catalog().names(kind)), "")  # type: ignore[arg-type]
    of, _, name = kind.partition(".")
    if of in _WITH_OPTIONS and name and (options := Catalog().params(of, name)) is not None:  # type: ignore[arg-type]
        fields = {**options.model_fields, **_WITH_OPTIONS[of].model_fields}
        return {key: field.description or "" for key, field in fields.items() if key != "params"}
    return keys_of(kind)


def init(
    file: Path | str,
    target: str | Sequence[str] | None = None,
    *,
    encoding: str | None = None,
    delimiter: str | None = None,
    sheet: str | None = None,
    model: str | None = None,
) -> str:
    """Return a commented config (YAML) that trains on a data file or folder as it is.

    Args:
        file: A CSV file (which may be compressed), a Parquet, JSON Lines or Excel file, or its URL in a
            store; a folder or a pattern of such files; or a folder of images or texts, with a subfolder
            for each class (of texts alone, the config trains a language model); or a version of data.
        target: The column to predict; several in a list, or divided by commas. A folder has none.
        encoding: The encoding of a CSV file; default: UTF-8, or what its bytes tell.
        delimiter: The character between the cells of a CSV file; default: what its first line tells.
        sheet: The sheet of an Excel workbook; default: the first one with rows.
        model: The value of `model.type`; `auto`: the best of a few models, by training them on a sample of
            the rows; default: boosted trees, of the first of LightGBM, XGBoost, CatBoost and scikit-learn
            that is installed, else a neural network.

    Raises:
        DataError: The file cannot be read or trained on, or has no such column.
        InputError: There is no such model, or no target is given for a table.
    """
    from trainwright.runs.data.versions import local_path
    from trainwright.studies.drafting import draft

    if "://" not in str(file):
        usable_path(file)
    options = {"encoding": encoding, "delimiter": delimiter, "sheet": sheet}
    local = local_path(file, runs_folder()) if is_reference(str(file)) else file
    text = draft(local, target, options=options, model=model)
    return text if local == file else text.replace(str(local), str(file))


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of config files.

    Plugins that cannot be used are left out, with a warning.
    """
    from trainwright import plugins
    from trainwright.config.jsonschema import json_schema

    for line in plugins.broken():
        log.warning("left out of the schema: %s", line)
    return json_schema(Catalog())
