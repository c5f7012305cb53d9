"""Commands in processes that start fast, for tests that want a process but not a fresh interpreter."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from trainwright.testing.framework_suite import DATA_MODULES
from trainwright.testing.warm import WarmProcess, WarmProcesses

TESTS = Path(__file__).parent
IMPORTS = (*DATA_MODULES, "torch")


def warm(
    module: str,
    imports: Sequence[str] = IMPORTS,
    folder: Path = TESTS,
    environment: Mapping[str, str] | None = None,
    number: int = 0,
) -> WarmProcesses:
    """Return the processes that run `main` of a module in `folder`; see `WarmProcesses`."""
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
    return WarmProcesses(module, imports, {"PYTHONPATH": path, **(environment or {})}, number)


def started(*words: object, folder: Path) -> AbstractContextManager[WarmProcess]:
    """Start `trainwright WORDS` in a process of its own, while `command` may run others."""
    return warm("signaller", number=1).started("-", "-", "0", *map(str, words), folder=folder)


def command(
    *words: object, folder: Path, killed: tuple[str, str, int] = ("-", "-", 0)
) -> subprocess.CompletedProcess[str]:
    """Run `trainwright WORDS` in a process of its own; with `killed`, it gets a signal in a phase."""
    return warm("signaller").run(*map(str, (*killed, *words)), folder=folder)
