"""What versions of data cost against `cp` and DVC: `python benchmarks/data_versions.py`.

A folder of small files and one large file are added, added again after one change, and written back. `cp -r`
ends when the system has the files in its memory; `data add` ends when they are on the disk. Files are a
minute old before they are added, as those of users are: younger ones are read again.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import time
from pathlib import Path

from harness import ONE_THREAD, Cost, machine, run, table, temporary_folder
from resume import COMMAND

DVC = ["dvc", "-q"]
SETTLED_SECONDS = 62


def main() -> None:
    """Make the files, time the commands and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=20_000, help="small files, of 1 to 8 KiB")
    parser.add_argument("--gib", type=float, default=1.0, help="size of the large file")
    arguments = parser.parse_args()
    print(machine())
    rows = []
    with temporary_folder() as folder:
        (folder / "small").mkdir()
        (folder / "large").mkdir()
        make_small(folder / "small", arguments.files)
        make_large(folder / "large/table.bin", int(arguments.gib * 2**30))
        for name, change in (("small", folder / "small/7/7.json"), ("large", folder / "large/table.bin")):
            rows += measured(folder, name, change)
    print(table(["data", "work", "s", "CPU s", "peak MiB", "MiB written"], rows))


def make_small(folder: Path, count: int) -> None:
    """Write small files into folders of 1000."""
    rng = random.Random(1)
    for number in range(count):
        inside = folder / str(number // 1000)
        inside.mkdir(exist_ok=True)
        (inside / f"{number}.json").write_bytes(rng.randbytes(rng.randint(1 << 10, 8 << 10)))
    (folder / "7").mkdir(exist_ok=True)
    (folder / "7/7.json").write_bytes(b"before")


def make_large(file: Path, size: int) -> None:
    """Write a large file that cannot be compressed."""
    with file.open("wb") as target:
        for _ in range(size >> 20):
            target.write(os.urandom(1 << 20))


def measured(folder: Path, name: str, change: Path) -> list[list[str]]:
    """Return the rows of the table for one of the folders."""
    time.sleep(SETTLED_SECONDS)
    costs: list[tuple[str, Cost, int]] = []

    def note(work: str, command: list[str], written: Path | None = None) -> None:
        before = size_of(written) if written else 0
        cost = run(command, folder, ONE_THREAD | {"TRAINWRIGHT_CACHE": str(folder / "cache")})
        costs.append((work, cost, size_of(written) - before if written else 0))

    os.sync()
    note("cp -r", ["cp", "-r", name, f"{name}-copy"], folder / f"{name}-copy")
    shutil.rmtree(folder / f"{name}-copy")
    store = folder / "runs/.data"
    note("data add", [*COMMAND, "data", "add", name], store)
    note("data add, no change", [*COMMAND, "data", "add", name], store)
    has_dvc = shutil.which("dvc") is not None
    if has_dvc:
        run(["git", "init", "-q", "."], folder)
        run([*DVC, "init", "-f"], folder)
        note("dvc add", [*DVC, "add", name], folder / ".dvc/cache")
    with change.open("r+b") as file:
        file.write(b"changed")
    note("data add, one change", [*COMMAND, "data", "add", name], store)
    if has_dvc:
        note("dvc add, one change", [*DVC, "add", name], folder / ".dvc/cache")
    note("data get", [*COMMAND, "data", "get", f"{name}@v2", "-o", f"{name}-got"], folder / f"{name}-got")
    run(["diff", "-r", name, f"{name}-got"], folder)
    return [
        [
            name,
            work,
            f"{cost.wall:.2f}",
            f"{cost.cpu:.2f}",
            f"{cost.peak:.0f}",
            f"{written / 2**20:.1f}" if written else "",
        ]
        for work, cost, written in costs
    ]


def size_of(folder: Path) -> int:
    """Return the bytes of the files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    main()
