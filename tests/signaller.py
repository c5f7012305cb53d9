"""The command line, in a process that sends itself a signal in a phase.

`signaller.py SIGNAL PHASE COUNT WORDS...`.
"""

import signal
import sys

from trainyard import registry
from trainyard.cli.main import main
from trainyard.testing import victim

if __name__ == "__main__":
    name, phase, count, *words = sys.argv[1:]
    victim.arm(phase, int(count), registry.adapter("framework", "torch"), signal.Signals[name])
    sys.exit(main(words))
