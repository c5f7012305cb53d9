"""The table of our semantics versions, and what a resume does with it."""

from pathlib import Path

import pytest

import trainwright
from trainwright import semantics
from trainwright.registry import BUILT_IN
from trainwright.semantics import Part, computing_by, in_force, older_versions, version, versions
from trainwright.types import DataInfo, features_spec

ROOT = Path(trainwright.__file__).parent
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


def test_only_versions_that_are_kept_are_older_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {
        "kept": Part(3, "", (), kept=(1, 2)),
        "gone": Part(3, "", (), kept=(2,)),
        "same": Part(1, "", ()),
    }
    monkeypatch.setattr(semantics, "PARTS", parts)
    assert older_versions({"kept": 2, "gone": 1, "same": 1}) == {"kept": 2}
    assert older_versions({}) == {"kept": 1}, "a part that is not named had version 1"
    assert older_versions({"kept": 3, "gone": 2, "another": 7}) == {"gone": 2}
    with computing_by({"kept": 2}):
        assert older_versions(None) == {"kept": 2}, "without a record, those in force"
        assert (version("kept"), version("gone"), version("kept", {})) == (2, 3, 3)
        assert versions("x", in_force()) == {"kept": 2, "gone": 3, "same": 1}
    assert version("kept") == 3


def test_what_describes_the_data_remembers_the_versions() -> None:
    with computing_by({"metrics": 1}):
        info = DataInfo("classification", features_spec((2,)), 2)
    assert version("metrics", info.semantics) == 1
    assert version("metrics") > 1
