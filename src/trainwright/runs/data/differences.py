"""The differences of the data of two runs, files or versions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from trainwright.config.schema import DataConfig
from trainwright.datasets.samples.files import is_pattern, is_url
from trainwright.datasets.tables.diff.compare import table_diff
from trainwright.datasets.tables.diff.result import DataDiff, RecordedChange
from trainwright.errors import TrainwrightError
from trainwright.records.data import DataDescription
from trainwright.records.manifest import Manifest
from trainwright.records.run_dir import RunDir
from trainwright.redact import redacted
from trainwright.runs.data.sources import Source, absolute_paths, open_sources, source_of
from trainwright.runs.data.versions import described
from trainwright.runs.lookup import RunName
from trainwright.runs.run_config import read_config
from trainwright.runs.workdir import working_directory

_READ_BESIDE = 32 << 20  # bytes of two runs' files that are read where runs are compared
_SAME = "the rows of both runs are the same; they are split or prepared differently"


def data_diff(
    first: RunName,
    second: RunName,
    *,
    key: Sequence[str] = (),
    limit: int = 10,
    runs_dir: Path | str | None = None,
    trust: bool = False,
) -> DataDiff:
    """Compare two data sets; see `trainwright.data_diff`."""
    return _diff(*open_sources(first, second, runs_dir, trust=trust), key, limit)


def _diff(one: Source, two: Source, key: Sequence[str] = (), limit: int = 10) -> DataDiff:
    notes = [source.gone for source in (one, two) if source.gone]
    splits = [split for split in one.tables if split in two.tables]
    if not notes:
        notes = [
            f"{source.name} has a file for its {split} split, {other.name} has none"
            for source, other in ((one, two), (two, one))
            for split in source.tables
            if split not in other.tables
        ]
        tables = [
            table_diff(one.tables[split], two.tables[split], key, limit, split if len(splits) > 1 else "")
            for split in splits
        ]
        return DataDiff(one.name, two.name, "rows", tuple(tables), notes=tuple(notes))
    if one.run is None or two.run is None:
        columns = tuple(_beside_file(one, two))
        return DataDiff(one.name, two.name, "columns", recorded=columns, notes=tuple(notes))
    recorded = tuple(_recorded(one, two))
    return DataDiff(one.name, two.name, "records", recorded=recorded, notes=tuple(notes))


def _beside_file(one: Source, two: Source) -> Iterator[RecordedChange]:
    """Yield what a file and the record of a run differ in: the columns that were used, and the rows."""
    sides = [_used(source) or _present(source) for source in (one, two)]
    run = 0 if one.run is not None else 1
    for column in sorted(sides[run][0] - sides[1 - run][0]):
        before, after = ("used", None) if run == 0 else (None, "used")
        yield RecordedChange(f"column {column}", before, after)
    if sides[0][1] != sides[1][1]:
        yield RecordedChange("rows", sides[0][1], sides[1][1])


def _used(source: Source) -> tuple[set[str], int] | None:
    """Return the columns that a run used, and how many rows it had; None of files."""
    if source.run is None or source.manifest is None:
        return None
    data = source.manifest.data
    description = DataDescription.load(source.run.path / source.manifest.data_file)
    columns = (description.preparation or {}).get("columns", []) if description is not None else []
    names = {str(column["name"]) for column in columns} | ({data.target} if data.target else set())
    return names, sum(split.rows or 0 for split in data.splits.values())


def _present(source: Source) -> tuple[set[str], int]:
    (side,) = source.tables.values()
    return set(side.columns), sum(map(len, side.tables(side.columns[:1])))


def _recorded(one: Source, two: Source) -> Iterator[RecordedChange]:
    """Yield what two runs' records of their data differ in."""
    before, after = one.manifest, two.manifest
    assert before is not None
    assert after is not None
    for name in ("task", "target", "features", "classes"):
        old, new = getattr(before.data, name), getattr(after.data, name)
        if old != new:
            yield RecordedChange(name, old, new)
    ranges = [_ranges(source.run, source.manifest) for source in (one, two)]
    for name in [*ranges[0], *(name for name in ranges[1] if name not in ranges[0])]:
        if ranges[0].get(name) != ranges[1].get(name):
            yield RecordedChange(f"range of {name} in training", ranges[0].get(name), ranges[1].get(name))
    for difference in before.differences(after):
        if difference.input == "data":
            yield RecordedChange(difference.what, difference.before, difference.now)


def _ranges(run: RunDir | None, manifest: Manifest | None) -> dict[str, list[object]]:
    if run is None or manifest is None:
        return {}
    description = DataDescription.load(run.path / manifest.data_file)
    return {} if description is None else description.ranges


def in_sentences(first: RunDir, second: RunDir, *, trust: bool = False) -> tuple[str, ...]:
    """Return what differs between the data of two runs: their rows, if these are few enough to be read here.

    Nothing if the runs record the same data. Else there is always a sentence: what differs, why that is not
    known, or which command tells.
    """
    before, after = first.manifest(), second.manifest()
    if before is None or after is None or before.data.hash == after.data.hash:
        return ()
    try:
        if _bytes(first, before, trust=trust) + _bytes(second, after, trust=trust) > _READ_BESIDE:
            return (f"see what differs with `trainwright data diff {first.id} {second.id}`",)
        found = _diff(source_of(first, trust=trust), source_of(second, trust=trust))
    except (TrainwrightError, OSError) as error:
        return (redacted(f"what differs is not known: {error}"),)
    if found.compared == "records":
        return tuple(f"rows are not compared: {note}" for note in found.notes)
    return (*found.sentences(), *found.notes) or (_SAME,)


def _bytes(run: RunDir, manifest: Manifest, *, trust: bool) -> int:
    """Return the bytes of the files of a run's data; of those that are at a URL, very many."""
    data: DataConfig | None = read_config(run, checked=False, trust=trust).config.data
    if data is None:
        return 0
    total = sum(described(pin, run.path.parent.parent).bytes for pin in manifest.data.pins.values())
    if data.path is None and data.train_path is None:
        return total
    for path in absolute_paths(data, working_directory(run)).values():
        if is_url(path) or is_pattern(path):
            return _READ_BESIDE + 1
        files = [Path(path)] if not Path(path).is_dir() else Path(path).rglob("*")
        total += sum(file.stat().st_size for file in files if file.is_file())
    return total
