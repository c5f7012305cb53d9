"""A run directory, read for people: what is missing or damaged is left out and named, and nothing raises."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

from trainwright.config.tree import Problems, plain
from trainwright.config.yaml import read as read_config
from trainwright.errors import CheckpointError, TrainwrightError
from trainwright.records import journal
from trainwright.records.document import parse_json
from trainwright.records.lineage import Lineage
from trainwright.records.manifest import DeterminismRecord, Manifest
from trainwright.records.result import BestModel, Result
from trainwright.records.run_dir import RunDir
from trainwright.records.status import ShownStatus, Status
from trainwright.reports.journal import History, read_history
from trainwright.reports.segment_cache import Attempt
from trainwright.safe_files import read_regular
from trainwright.storage.seals import problems as sealed_problems

Json = Mapping[str, Any]
Content = TypeVar("Content")
_NOT_SHOWN = ("checkpoints/", "best/", "log:", "attempts/")  # begin problems that take nothing from a page


@dataclass(frozen=True)
class RunFiles:
    """The contents of a run directory; a part that is missing is empty or None.

    `status` is the status of the run, or `damaged` where its records do not tell. `problems` names the files
    that could not be read, or are not what was written. The journal is read once, when `history` is first
    used. `set_keys` are the dotted keys of the values that the user set, as far as they are known.
    """

    folder: Path
    status: ShownStatus
    config: str = ""
    manifest: Manifest | None = None
    lineage: Lineage | None = None
    result: Result | None = None
    evaluations: Mapping[str, Json] = field(default_factory=dict)
    profile: Json = field(default_factory=dict)
    compression: Json = field(default_factory=dict)
    retraining: Json = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    set_keys: Sequence[str] = ()

    @cached_property
    def history(self) -> History:
        """The contents of the journal."""
        history = read_history(self.folder / "journal")
        if self.result and history.attempts and not history.attempts[-1].status:
            # A kill between writing the result and ending the journal leaves no `end` line.
            history.attempts[-1] = replace(history.attempts[-1], status=self.result.status)
        return history

    @cached_property
    def settings(self) -> Json:
        """The values of the config; empty where they cannot be read."""
        root = read_config(self.config, "config.yaml", Problems())
        return {} if root is None else plain(root)

    @property
    def attempts(self) -> list[Attempt]:
        """The process lives of the run."""
        return self.history.attempts

    def check_replaces(self, page: Path) -> None:
        """Refuse to replace a page that was written when more of the run could be read.

        Raises:
            CheckpointError: The page is there, and a file that it is made of is damaged or missing.
        """
        lost = [problem for problem in self.problems if not problem.startswith(_NOT_SHOWN)]
        if lost and page.exists():
            raise CheckpointError(
                f"{lost[0]}; {page} is kept, as a new one would show less: write the new one elsewhere with "
                "--output"
            )

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self.manifest.run_id if self.manifest else self.folder.name

    @property
    def experiment(self) -> str:
        """The name of the run's experiment."""
        return self.manifest.experiment if self.manifest else self.folder.parent.name

    @property
    def steps(self) -> int:
        """The last step that was trained."""
        if self.result:
            return self.result.steps
        return max((attempt.last_step for attempt in self.attempts), default=0)

    @property
    def passed_objects(self) -> bool:
        """True if the data, or the model, were given in Python."""
        return bool(self.manifest and self.manifest.objects)

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the evaluated model; empty before its evaluation."""
        return self.result.metrics if self.result else {}

    @property
    def judged_split(self) -> Literal["test", "val"]:
        """The split whose figures count: the test split where it was evaluated, else validation."""
        is_tested = "test" in self.evaluations or any(name.startswith("test_") for name in self.metrics)
        return "test" if is_tested else "val"

    @property
    def best(self) -> BestModel | None:
        """The best model, if the run has come to an end with one."""
        return self.result.best if self.result else None

    @property
    def determinism(self) -> DeterminismRecord | None:
        """The determinism tier of the run, from its result or, before the end, its manifest."""
        if self.result and self.result.determinism:
            return self.result.determinism
        return self.manifest.determinism if self.manifest else None


@contextmanager
def understanding(folder: Path) -> Iterator[None]:
    """Say that tables are damaged that have their checksum, but not the form that Trainwright writes.

    Raises:
        CheckpointError: What is done with them inside fails.
    """
    try:
        yield
    except (OSError, TrainwrightError):
        raise
    except Exception as error:  # whatever a value of another type leads to
        raise CheckpointError(
            f"{folder / 'evaluation'}: a table there is not as Trainwright writes it "
            f"({type(error).__name__}: {error}); move the folder away to report without its tables"
        ) from error


def part(data: Json, *keys: str) -> Json:
    """Return a nested object, empty if there is none."""
    for key in keys:
        inner = data.get(key)
        data = inner if isinstance(inner, Mapping) else {}
    return data


def numbers(data: Json) -> dict[str, float]:
    """Return the entries that are numbers, those that JSON has no number for included."""
    return {name: float(value) for name, value in data.items() if _is_number(value)}


def _is_number(value: Any) -> bool:
    if isinstance(value, str):
        return value in ("NaN", "Infinity", "-Infinity")
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) < 10**300  # a float can hold it
    return isinstance(value, float)


def read_run(folder: Path) -> RunFiles:
    """Read a run directory, as far as it is there and undamaged."""
    run, problems = RunDir(folder), list[str]()
    damaged = sealed_problems(run)
    manifest = _undamaged(run.manifest, Manifest.FILE, folder, problems)
    created = run.creation()
    if manifest is None and created is None and not problems:
        problems.append(f"{Manifest.FILE}: missing, so the inputs of this run are not known")
    result = _undamaged(run.result, Result.FILE, folder, problems)
    if result and 0 < result.attempts < _newest_attempt(folder / "journal"):
        result = None  # it says how an earlier attempt ended
    evaluations = {split: _read_tables(folder, split, problems) for split in ("train", "val", "test")}
    profile = _read_tables(folder, "data", problems)
    compression, retraining = (_read_tables(folder, name, problems) for name in ("compression", "retraining"))
    named = {problem.partition(":")[0] for problem in problems}
    problems += [problem for problem in damaged if problem.partition(":")[0] not in named]
    return RunFiles(
        folder,
        _undamaged(lambda: _status(run), "status", folder, problems) or "damaged",
        _read_config(run, manifest, problems),
        manifest,
        _undamaged(run.lineage, Lineage.FILE, folder, problems),
        result,
        {split: tables for split, tables in evaluations.items() if tables},
        profile,
        compression,
        retraining,
        problems,
        (created.settings if created else None) or (),
    )


def _undamaged(
    read: Callable[[], Content | None], name: str, folder: Path, problems: list[str]
) -> Content | None:
    """Return what `read` returns; None if it is damaged, which is added to the problems."""
    try:
        return read()
    except CheckpointError as error:
        message = str(error).removeprefix(f"{folder.absolute() / name} ")
        problems.append(f"{name}: {message}; left out of this report")
        return None


def _status(run: RunDir) -> Status:
    """Return the status; the owner of a run writes its report while the attempt ends."""
    return (run.recorded_end() or "running") if run.is_owned() else run.status_on_disk()


def _newest_attempt(folder: Path) -> int:
    """Return the number of the newest attempt that has a journal, or 0."""
    try:
        for path in reversed(journal.segments(folder)):
            if next(iter(journal.SegmentReader(path)), None) is not None:
                return int(path.stem)
    except OSError:
        pass  # `History.problems` says so
    return 0


def _read_text(folder: Path, name: str, problems: list[str]) -> str | None:
    """Return the text of a file; None if it is not there, or cannot be read."""
    try:
        return read_regular(folder / name, depth=name.count("/") + 1).decode(errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        problems.append(f"{name}: cannot be read ({error.strerror})")
        return None


def _read_config(run: RunDir, manifest: Manifest | None, problems: list[str]) -> str:
    """Return the resolved config; empty if it is not the one that the manifest was made from."""
    text = _read_text(run.path, run.config_file.name, problems)
    try:
        if text is not None and manifest and manifest.config_sha256 != run.config_sha256():
            problems.append(
                f"{run.config_file.name}: its content is not what was written; left out of this report"
            )
            return ""
    except OSError:
        pass  # `_read_text` has said so
    return text or ""


def _read_tables(folder: Path, split: str, problems: list[str]) -> Json:
    """Return the tables of an evaluation; empty if there are none, or if they are damaged."""
    name = f"evaluation/{split}.json"
    source = _read_text(folder, name, problems)
    if source is None:
        return {}
    try:
        return parse_json(source.encode(errors="replace"))
    except (ValueError, RecursionError):
        problems.append(f"{name}: damaged, and left out of this report")
        return {}
