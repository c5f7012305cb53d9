"""Commands in processes that start fast, for tests that want a process but not a fresh interpreter."""

import os
import subprocess
from pathlib import Path

import pytest

from trainyard.testing.warm import WarmProcesses, shared

TESTS = Path(__file__).parent


def warm(module: str, *imports: str, folder: Path = TESTS) -> WarmProcesses:
    """Return the processes that run `main` of a module in `folder`, which all tests of this process share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
        return shared(module, *imports)


def command(
    *words: object, folder: Path, killed: tuple[str, str, int] = ("-", "-", 0)
) -> subprocess.CompletedProcess[str]:
    """Run `trainyard WORDS` in a process of its own; with `killed`, it gets a signal in a phase.

    It has the environment of the first such command, not that of the test.
    """
    processes = warm("signaller", "numpy", "pandas", "sklearn.datasets", "torch", "trainyard.api")
    return processes.run(*map(str, (*killed, *words)), folder=folder)
