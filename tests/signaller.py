"""The command line, in a process that sends itself a signal in a phase, or meets a full disk at a step.

`signaller.py SIGNAL PHASE COUNT WORDS...`, `signaller.py FULL step COUNT WORDS...`, or `- - 0` for neither.
"""

import resource
import signal
import sys

from trainwright import plugins
from trainwright.cli import main as entry
from trainwright.engine.loop import Loop
from trainwright.testing import victim


def fill_disk(step: int) -> None:
    """Let the process write no file beyond a size from a step on: checkpoints do not fit, what is small does."""
    settle = Loop._settle

    def limited(loop: Loop) -> None:
        if loop.state.step == step:
            loop.parts.saver.drain()
            resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, resource.RLIM_INFINITY))
        settle(loop)

    Loop._settle = limited  # type: ignore[method-assign]


def main(name: str, phase: str, count: str, *words: str) -> None:
    """Run a command and exit with its code."""
    if name == "FULL":
        fill_disk(int(count))
    elif name != "-":
        victim.arm(phase, int(count), plugins.adapter("framework", "torch"), signal.Signals[name])
    sys.exit(entry.main(words))


if __name__ == "__main__":
    main(*sys.argv[1:])
