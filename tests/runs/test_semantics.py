"""The table of our semantics versions, and what is told of parts that have changed."""

from pathlib import Path

import trainwright
from trainwright.plugins import BUILT_IN
from trainwright.runs import semantics
from trainwright.runs.semantics import changed, in_words

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


def test_parts_that_changed_are_told_in_words() -> None:
    ours = semantics.versions("torch")
    assert changed(ours) == changed({}) == []
    others = changed(ours | {"rules": semantics.PARTS["rules"].version + 1, "of_another_version": 1})
    assert others == ["rules", "of_another_version"]
    assert in_words(others) == f"{semantics.PARTS['rules'].decides} (rules), of_another_version"
