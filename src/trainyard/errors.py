"""The exceptions of Trainyard.

Every error that a user can cause or mend is a `TrainyardError`; its message says what was given, what is
allowed and what to do next. The command line prints the message alone (`--debug` shows the traceback) and
exits with `exit_code`.

    TrainyardError                  1
    ├── InputError                  2   something that the user gave is wrong
    │   ├── ConfigError             2   the config: all its problems at once, each with file, line and column
    │   ├── DataError               2   the data: named with file, column and row
    │   ├── ModelError              2   the model cannot be imported, built or fed with this data
    │   ├── RunNotFoundError        2   no such run, or the prefix is not unique
    │   ├── ChangedInputsError      2   config, data or code differ from the run that is to be resumed
    │   ├── RunLockedError          2   another process owns the run
    │   └── MissingExtraError       2   an optional library is not installed
    ├── CheckpointError             1   a checkpoint cannot be written, or is damaged
    ├── TrainingError               1   the training itself failed (a loss that is not finite, say)
    └── TrackerError                1   a tracker refused or lost us; never stops a run
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trainyard.redact import redacted


class TrainyardError(Exception):
    """Base of all our errors; `exit_code` is what the command line exits with. Messages hold no secrets."""

    exit_code = 1

    def __init__(self, message: str = "") -> None:
        super().__init__(redacted(message))


class InputError(TrainyardError):
    """Something that the user gave is wrong."""

    exit_code = 2


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a config.

    `path` is the dotted key; `file`, `line` and `column` (both from 1) say where it stands, `file` alone being
    set for a key that is missing, and `"command line"` for an override.
    """

    message: str
    path: str = ""
    file: str = ""
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        return ": ".join(part for part in (place, self.path, self.message) if part)


class ConfigError(InputError):
    """A config has problems; all of them are listed."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = [
            replace(problem, message=redacted(problem.message), file=redacted(problem.file))
            for problem in problems
        ]
        count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        super().__init__("\n".join([f"config: {count}", *(f"  {problem}" for problem in self.problems)]))


class DataError(InputError):
    """The data cannot be trained on."""


class ModelError(InputError):
    """The model cannot be imported, built, or fed with this data."""


class RunNotFoundError(InputError):
    """No run answers to this name, or more than one does."""


class ChangedInputsError(InputError):
    """Config, data or code differ from those of the run that is to be resumed."""


class RunLockedError(InputError):
    """Another process owns this run."""


class MissingExtraError(InputError):
    """An optional library is not installed; the message names the extra that brings it."""


class CheckpointError(TrainyardError):
    """A checkpoint cannot be written, or none of those present is whole."""


class TrainingError(TrainyardError):
    """The training failed."""


class TrackerError(TrainyardError):
    """A tracker cannot be reached, or refused a call."""
