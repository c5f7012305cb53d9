"""The table of our semantics versions, and what a resume does with it."""

from pathlib import Path

import trainyard
from trainyard import semantics
from trainyard.registry import BUILT_IN

ROOT = Path(trainyard.__file__).parent
# Folders of the package whose code decides bits: every source in them belongs to a part.
DECIDING = ("engine", "tasks", "datasets", "frameworks")
SHARED = ("frameworks/base.py", "frameworks/__init__.py")


def covers(source: str, path: str) -> bool:
    return path == source or path.startswith(f"{source}/")


def test_the_sources_of_every_part_are_there() -> None:
    gone = [
        source for part in semantics.PARTS.values() for source in part.sources if not (ROOT / source).exists()
    ]
    assert gone == []


def test_every_source_that_decides_bits_belongs_to_a_part() -> None:
    sources = [source for part in semantics.PARTS.values() for source in part.sources]
    paths = [path.relative_to(ROOT).as_posix() for name in DECIDING for path in (ROOT / name).rglob("*.py")]
    without = [path for path in paths if path not in SHARED and not any(covers(one, path) for one in sources)]
    assert without == []


def test_a_run_depends_on_its_own_framework_alone() -> None:
    frameworks = set(BUILT_IN["framework"])
    for name in frameworks:
        assert set(semantics.versions(name)) & frameworks == {name}
    assert not set(semantics.versions("of_another_package")) & frameworks
    assert {"order", "streams", "split", "preparation", "loop", "rules", "tasks", "metrics"} <= set(
        semantics.versions("x")
    )
