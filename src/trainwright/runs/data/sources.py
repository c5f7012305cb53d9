"""Data sets that are compared: files, and the tables of runs as they were when these were trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainwright import plugins
from trainwright.config.file_types import ENDINGS, FILE_TYPES, ending_of
from trainwright.config.schema import DataConfig, RunConfig
from trainwright.datasets.samples.files import is_pattern, is_url, paths_by_split
from trainwright.datasets.tables.diff.side import Side
from trainwright.datasets.tables.frames import row_chunks
from trainwright.errors import InputError, RunNotFoundError, TrainwrightError
from trainwright.records.listing import runs_folder
from trainwright.records.manifest import Manifest
from trainwright.records.run_dir import RunDir
from trainwright.runs.data.identity import data_inputs
from trainwright.runs.data.versions import local_path, with_local_data
from trainwright.runs.lookup import RunName, find
from trainwright.runs.run import Run
from trainwright.runs.run_config import read_config
from trainwright.runs.wiring import load_data
from trainwright.runs.workdir import working_directory, working_for

_TABLES = (*ENDINGS, "npz", "requests")  # types of data that are rows of columns in files


@dataclass(frozen=True)
class Source:
    """A data set that is compared.

    `tables` are those that can be read, by the split that a run reads from them (`train` where it splits them
    itself, and for files). Of a run, there are its directory and manifest, and in `gone` why its rows cannot
    be read. `params` are the options of a run's reader.
    """

    name: str
    tables: Mapping[str, Side] = field(default_factory=dict)
    run: RunDir | None = None
    manifest: Manifest | None = None
    gone: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)


def open_sources(
    first: RunName, second: RunName, runs_dir: Path | str | None, *, trust: bool = False
) -> tuple[Source, Source]:
    """Return the data sets that a user names; a file beside a run is read with the options of the run."""
    names = (first, second)
    opened = {
        name: _opened(name, runs_dir, {}, trust=trust) for name in names if _path(name, runs_dir) is None
    }
    params = next((source.params for source in opened.values()), {})
    one, two = (opened.get(name) or _opened(name, runs_dir, params, trust=trust) for name in names)
    return one, two


def _opened(name: RunName, runs_dir: Path | str | None, params: Mapping[str, Any], *, trust: bool) -> Source:
    """Return the data set that a user names: a version, a file, a folder or a pattern of tables, or a run.

    Raises:
        InputError: There is no such version, file or run, or a file cannot be read.
    """
    if (path := _path(name, runs_dir)) is not None:
        return Source(str(name), {"train": _side(str(name), row_chunks(path, params))})
    try:
        return source_of(find(name, runs_dir), trust=trust)
    except RunNotFoundError as error:
        raise InputError(f"{name} is no file or folder of tables, and {error}") from error


def _path(name: RunName, runs_dir: Path | str | None) -> str | None:
    """Return the path of the files that a name stands for; None if it is the name of a run.

    The files of a version are brought to this machine.
    """
    if isinstance(name, Run):
        return None
    path = str(local_path(str(name), runs_folder(runs_dir)))
    return path if _is_of_files(path) else None


def _is_of_files(name: str) -> bool:
    if is_url(name):
        return ending_of(name) in FILE_TYPES or is_pattern(name) or name.endswith("/")
    path = Path(name).expanduser()
    try:
        return is_pattern(name) or (path.exists() and not (path / "config.yaml").is_file())
    except OSError:  # too long for a path
        return False


def _side(name: str, chunks: Any) -> Side:
    if hasattr(chunks, "keep_nested"):
        chunks.keep_nested()
    return Side(name, chunks)


def source_of(run: RunDir, *, trust: bool = False) -> Source:
    """Return the data of a run, which are read through its config.

    Rows count only if the run would get from them what it was trained on: its data are loaded to see that.

    Raises:
        InputError: The run ended before its data were recorded.
    """
    manifest = run.manifest()
    if manifest is None or manifest.data.hash is None:
        raise InputError(f"run {run.id} ended before its data were recorded: there is nothing to compare")
    if manifest.objects:
        return Source(run.id, {}, run, manifest, manifest.objects_in_words())
    folder = working_directory(run)
    try:
        with working_for(run, folder, allow_change=True, trust=trust):
            config = read_config(run, trust=trust).config
            data = _tabular(config)
            # This comes first: it refuses files and hosts that a run of someone else must not use.
            if load_data(config).once(data_inputs).hash != manifest.data.hash:
                return Source(run.id, {}, run, manifest, f"the data of run {run.id} have changed since")
            tables = _tables(run, with_local_data(data)[0], folder)
    except (TrainwrightError, OSError) as error:
        return Source(run.id, {}, run, manifest, f"the rows of run {run.id} cannot be read: {error}")
    return Source(run.id, tables, run, manifest, params=data.params)


def _tabular(config: RunConfig) -> DataConfig:
    """Return the data section of a config whose data are rows of columns in files.

    Raises:
        InputError: They are something else.
    """
    if config.data is None or config.data.type not in _TABLES:
        kind = "none" if config.data is None else config.data.type
        raise InputError(f"they are no tables in files (data.type: {kind})")
    return config.data


def _tables(run: RunDir, data: DataConfig, folder: Path) -> dict[str, Side]:
    return {
        split: _side(f"run {run.id}, {split}" if len(paths) > 1 else f"run {run.id}", _chunks(data, path))
        for paths in [absolute_paths(data, folder)]
        for split, path in paths.items()
    }


def absolute_paths(data: DataConfig, folder: Path) -> dict[str, str]:
    """Return the files of a config by split, wherever they are read from later.

    Raises:
        DataError: The config names no files.
    """
    paths = paths_by_split(data).items()
    return {
        str(split): path if is_url(path) else str(folder / Path(path).expanduser()) for split, path in paths
    }


def _chunks(data: DataConfig, path: str) -> Any:
    reader = plugins.adapter("dataset", data.type)
    return reader(data, reader.Params(**data.params)).chunks(path)
