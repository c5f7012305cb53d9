"""What `trainwright runs list` costs with many runs: `python benchmarks/listing.py`.

One small run is trained, and copied under other ids. The list is asked for when no index exists, when one
does, and when one run has changed since.
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path

from harness import ONE_THREAD, Cost, machine, run, table, temporary_folder
from resume import COMMAND

from trainwright.records.listing import find_run
from trainwright.storage.index import FILE

CONFIG = """\
experiment: {name: listing, seed: 1}
data: {type: iris}
model: {type: mlp, hidden: [4]}
training: {max_steps: 4, threads: 1}
tracking: []
"""


def main() -> None:
    """Make the runs, time the command and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    print(machine())
    with temporary_folder() as folder:
        (folder / "config.yaml").write_text(CONFIG)
        run([*COMMAND, "train", "config.yaml"], folder, ONE_THREAD)
        original = find_run("last", folder / "runs")
        empty = [listed(folder) for _ in range(arguments.rounds)]
        for number in range(1, arguments.runs):
            # Hard links: what is read is the same, and a disk of any size will do.
            copy = original.path.with_name(f"{original.id[:-8]}{number:08x}")
            shutil.copytree(original.path, copy, copy_function=os.link)
            (copy / "result.json").unlink()  # whose time says whether the run has changed
            shutil.copy2(original.path / "result.json", copy)
        costs = {"one run": empty, "no index": [], "an index": [], "an index, one run changed": []}
        for _ in range(arguments.rounds):
            (folder / "runs" / FILE).unlink()
            costs["no index"].append(listed(folder))
            costs["an index"].append(listed(folder))
            os.utime(original.path / "result.json")
            costs["an index, one run changed"].append(listed(folder))
    rows = [
        [name, f"{min(cost.wall for cost in some):.2f}", f"{min(cost.cpu for cost in some):.2f}"]
        for name, some in costs.items()
    ]
    print(table([f"{arguments.runs} runs", "least s", "CPU s"], rows))


def listed(folder: Path) -> Cost:
    """Return the cost of the command."""
    return run([*COMMAND, "runs", "list"], folder, ONE_THREAD)


if __name__ == "__main__":
    main()
