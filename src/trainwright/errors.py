"""The exceptions of Trainwright.

Every error that a user can cause or correct is a `TrainwrightError`; its message says what was given, what is
allowed and what to do next. The command line prints only the message (`--debug` shows the traceback) and
exits with `exit_code`.

    TrainwrightError                  1
    ├── InputError                  2   something that the user gave is wrong
    │   ├── ConfigError             2   the config: all its problems at once, each with file, line and column
    │   ├── LoaderBatchSizeError    2   the user's data loaders have another batch size than the config
    │   ├── DataError               2   the data: named with file, column and row
    │   │   └── ExpectationError    3   the data are not as the config expects
    │   ├── ModelError              2   the model cannot be built or fed with this data
    │   ├── CodeError               2   code that the config names cannot be imported
    │   ├── RunNotFoundError        2   no such run, or the prefix is not unique
    │   ├── ChangedInputsError      2   config, data or code differ from those of the run
    │   ├── RunLockedError          2   another process owns the run
    │   │   └── RunLostError        2   another attempt has taken the run over while this one trained
    │   └── MissingExtraError       2   an optional library is not installed
    ├── CheckpointError             1   a checkpoint cannot be written, or is damaged
    │   └── OtherFormatError        2   another version of Trainwright wrote it, in a format of its own
    ├── TrainingError               1   the training itself failed (a loss that is not finite, say)
    │   ├── RunGoneError            1   the run directory was renamed or removed meanwhile
    │   └── WorldError              1   another process of the attempt is gone
    ├── DifferentArtifactError      3   an exported model does not predict what its run does
    ├── GateError                   3   a model does not pass its gate
    └── TrackerError                1   a tracker cannot be reached; never stops a run

Ctrl-C ends a verb with `Interrupted`, which is a `KeyboardInterrupt`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainwright.redact import redacted


class TrainwrightError(Exception):
    """Base of all our errors; the command line exits with `exit_code`. Messages hold no secrets."""

    exit_code = 1

    def __init__(self, message: str = "") -> None:
        super().__init__(redacted(message))

    def __reduce__(self) -> tuple[Callable[..., TrainwrightError], tuple[Any, ...]]:
        """Let errors of every class travel to another process."""
        return _remade, (type(self), self.args, self.__dict__)


def _remade(
    cls: type[TrainwrightError], args: tuple[Any, ...], attributes: dict[str, Any]
) -> TrainwrightError:
    """Make an error of its message and attributes, whatever the arguments of its class are."""
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(attributes)
    return error


class Interrupted(KeyboardInterrupt):
    """An end by Ctrl-C; `run` is the run, or the study, that can be resumed: None if there is none yet."""

    def __init__(self, message: str, run: Any) -> None:
        super().__init__(message)
        self.run = run


class InputError(TrainwrightError):
    """Something that the user gave is wrong."""

    exit_code = 2


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a config.

    `path` is the dotted key; `file`, `line` and `column` (both from 1) are its position. For a missing key
    only `file` is set; for an override `file` is `"command line"`.
    """

    message: str
    path: str = ""
    file: str = ""
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        position = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        return ": ".join(part for part in (position, self.path, self.message) if part)


class LoaderBatchSizeError(InputError):
    """Data loaders that a function returned have another batch size than the run, for which none was set."""

    def __init__(self, message: str, batch_size: int) -> None:
        super().__init__(message)
        self.batch_size = batch_size


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
    """The data cannot be used for training."""


class ExpectationError(DataError):
    """The data are not as `data.expect` demands."""

    exit_code = 3


class ModelError(InputError):
    """The model cannot be built, or fed with this data."""


class CodeError(InputError):
    """Code that the config names cannot be imported."""


class RunNotFoundError(InputError):
    """No run has this name, or more than one has."""


class ChangedInputsError(InputError):
    """Config, data or code differ from those of the run to be resumed."""


class RunLockedError(InputError):
    """Another process owns this run."""


class RunLostError(RunLockedError):
    """Another attempt has taken this run over; this one writes nothing more.

    The exit code is 2, as for a run that another process owns: trying again would only take it back.
    `owner` says which process has the run now.
    """

    def __init__(self, message: str, owner: str = "") -> None:
        super().__init__(message)
        self.owner = owner


class MissingExtraError(InputError):
    """An optional library is not installed; the message names the extra that installs it."""


class CheckpointError(TrainwrightError):
    """A file of a run (checkpoint, record, lock) cannot be written or read, or is damaged."""


class OtherFormatError(CheckpointError):
    """A file of a run was written by another version of Trainwright, in a format of its own."""

    exit_code = 2


class TrainingError(TrainwrightError):
    """The training failed."""


class RunGoneError(TrainingError):
    """The run directory went away while the run trained."""

    def __init__(self, path: object) -> None:
        super().__init__(
            f"the run directory {path} is gone: it was renamed or removed while the run trained; "
            "put it back and resume the run, or train again"
        )


class WorldError(TrainingError):
    """Another process of the attempt is gone, or the processes do not find each other."""


class DivergedError(TrainingError):
    """Processes that should hold the same state do not, which another try would not mend."""


class GateError(TrainwrightError):
    """A model does not pass its gate; `found` says how it compares, as JSON."""

    exit_code = 3

    def __init__(self, message: str, found: Any = None) -> None:
        super().__init__(message)
        self.found = found


class DifferentArtifactError(TrainwrightError):
    """An exported model does not predict what its run predicts, or cannot be opened."""

    exit_code = 3


class TrackerError(TrainwrightError):
    """A tracker cannot be reached, or has refused a call."""


# Of an `OSError`: the disk is full, or cannot be written or read.
OF_DISKS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)


_OUTSIDE = (
    OSError,
    ImportError,
    CheckpointError,
    RunGoneError,
    CodeError,
    MissingExtraError,
    ChangedInputsError,
    RunLockedError,
    RunNotFoundError,
)


def is_from_outside(error: BaseException) -> bool:
    """Return whether an error is neither a fault nor a result of the training, which may succeed later.

    A file cannot be written or read, code or a package is missing, inputs have changed, or another process
    owns the run.
    """
    return any(isinstance(one, _OUTSIDE) for one in _with_causes(error))


def is_of_code(error: BaseException) -> bool:
    """Return whether code or a package of a model is missing, or cannot be imported."""
    return any(isinstance(one, ImportError | CodeError | MissingExtraError) for one in _with_causes(error))


def is_of_disks(error: BaseException) -> bool:
    """Return whether a disk or a file of a run cannot be written or read."""
    return any(
        isinstance(one, CheckpointError | RunGoneError)
        or (isinstance(one, OSError) and one.errno in OF_DISKS)
        for one in _with_causes(error)
    )


def _with_causes(error: BaseException) -> list[BaseException]:
    causes = [error]
    while (cause := causes[-1].__cause__) is not None:
        causes.append(cause)
    return causes
