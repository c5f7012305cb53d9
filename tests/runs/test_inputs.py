"""The inputs of a run: what is looked at, and how differences are told."""

import ast
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trainwright.config import Resolved, load
from trainwright.digest import sha256_file
from trainwright.frameworks.base import Framework
from trainwright.records.manifest import Difference, Environment, Manifest
from trainwright.runs.code_identity import code_inputs
from trainwright.runs.environment import environment_inputs, imported_packages
from trainwright.runs.manifest import code_roots
from trainwright.runs.objects import Objects


def of(**inputs: Any) -> Manifest:
    """A manifest with some inputs."""
    return Manifest(run_id="r", experiment="e", **inputs)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of the user's, whose module uses others in every way there is."""
    folder = tmp_path / "ours_alone"
    (folder / "deep").mkdir(parents=True)
    sources = {
        "ours_alone/__init__.py": "",
        "ours_alone/deep/__init__.py": "",
        "ours_alone/model.py": (
            "import json\nimport numpy as np\nimport solo_module\nfrom .sizes import WIDTH\nfrom ours_alone.deep import inner\n"
            "from ours_alone.deep.functions import helper\nfrom . import late as later\n"
        ),
        "ours_alone/sizes.py": "WIDTH = 8\n",
        "ours_alone/late.py": "",
        "ours_alone/deep/inner.py": "from ..base import Base\n",
        "ours_alone/deep/functions.py": "def helper():\n    return 1\n",
        "ours_alone/base.py": "class Base:\n    pass\n",
        "ours_alone/unused.py": "",
        "solo_module.py": "import ours_alone.model\n",
    }
    for name, source in sources.items():
        (tmp_path / name).write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__("ours_alone.model")
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] in ("ours_alone", "solo_module")]:
        del sys.modules[name]


def test_all_modules_that_the_users_code_uses_are_hashed(package: Path) -> None:
    found = code_inputs(["ours_alone.model"], package).modules
    used = ("", ".base", ".deep", ".deep.functions", ".deep.inner", ".late", ".model", ".sizes")
    assert sorted(found) == sorted([*(f"ours_alone{name}" for name in used), "solo_module"])
    assert found["ours_alone.sizes"] == sha256_file(package / "ours_alone" / "sizes.py")


def test_neither_python_nor_installed_libraries_nor_trainwright_count_as_the_users(package: Path) -> None:
    assert (
        code_inputs(["json", "numpy", "pytest", "trainwright.order", "no_such_module"], package).modules == {}
    )


def test_a_change_in_a_used_module_changes_the_hash_and_in_another_does_not(package: Path) -> None:
    before = code_inputs(["ours_alone.model"], package)
    (package / "ours_alone" / "unused.py").write_text("CHANGED = 1\n")
    assert code_inputs(["ours_alone.model"], package).hash == before.hash
    (package / "ours_alone" / "sizes.py").write_text("WIDTH = 9\n")
    now = code_inputs(["ours_alone.model"], package)
    assert now.hash != before.hash
    assert [d.what for d in of(code=before).differences(of(code=now))] == ["module ours_alone.sizes"]


def test_all_that_the_config_names_by_import_paths_is_an_input() -> None:
    """Each from a module of its own, which no other one imports."""
    words = {
        "data": {
            "type": "of_data:Rows",
            "collate": "of_batches:pad",
            "transforms": [{"type": "of_images:noisy", "strength": 1}],
        },
        "model": "of_model:Net",
        "training": {
            "loss": "of_loss:poly",
            "optimizer": "of_optimizer:Sign",
            "scheduler": "of_rates:sawtooth",
        },
        "evaluation": {"metrics": ["accuracy", "of_metrics:profit"]},
        "tracking": [{"type": "mlflow", "uri": "of_nothing:0"}],
    }
    config = load(words, {}).config
    own = {
        "of_data",
        "of_batches",
        "of_images",
        "of_model",
        "of_loss",
        "of_optimizer",
        "of_rates",
        "of_metrics",
    }
    roots = code_roots(Resolved(config), Objects(), Framework, {})
    assert {name for name in roots if name.startswith("of_")} == own


def test_a_source_that_cannot_be_parsed_any_more_is_no_traceback(package: Path) -> None:
    """Edited between import and manifest: what was imported is hashed, and what is on disk beside it."""
    path = package / "ours_alone" / "model.py"
    before = sha256_file(path)
    path.write_text("def broken(:\n")
    code = code_inputs(["ours_alone.model"], package)
    assert code.modules["ours_alone.model"] == before
    assert code.edited == {"ours_alone.model": sha256_file(path)}


def test_the_commit_is_recorded_but_compared_by_nobody(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(
            ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c", *words],
            check=True,
            capture_output=True,
        )

    assert code_inputs([], tmp_path).git is None
    git("init", "-q")
    (tmp_path / "file").write_text("1")
    git("add", ".")
    git("commit", "-qm", "first")
    clean = code_inputs([], tmp_path)
    assert (clean.git.dirty, clean.git.diff_sha256, len(clean.git.commit)) == (
        False,
        None,
        40,
    )
    (tmp_path / "file").write_text("2")
    dirty = code_inputs([], tmp_path)
    assert dirty.git.dirty
    assert dirty.git.diff_sha256
    assert dirty.hash == clean.hash
    (tmp_path / "inside").mkdir()
    assert code_inputs([], tmp_path / "inside").git == dirty.git
    assert of(code=clean).differences(of(code=dirty)) == []


def test_a_repository_without_commits_and_a_machine_without_git(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    assert code_inputs([], tmp_path).git is None
    monkeypatch.setenv("PATH", "")
    assert code_inputs([], tmp_path).git is None


def test_outside_a_repository_no_process_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GIT_DIR", raising=False)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("git is asked"))
    assert code_inputs([], tmp_path).git is None


def test_flags_that_change_what_is_computed_are_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_SCHEDULE", "ONEDNN_MAX_CPU_ISA", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    before = environment_inputs(2, {"torch": "2.13"})
    monkeypatch.setenv("OMP_SCHEDULE", "static")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "SSE41")
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=3:glibc.cpu.hwcaps=-FMA,-AVX2")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "never recorded")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/tmp/torchinductor")  # as torch itself does
    now = environment_inputs(2, {"torch": "2.13"})
    assert "TORCHINDUCTOR_CACHE_DIR" not in now.flags
    assert now.flags["OMP_SCHEDULE"] == "static"
    assert "never recorded" not in str(now)
    assert now.hash != before.hash
    found = of(environment=before).differences(of(environment=now))
    assert sorted(str(difference) for difference in found) == [
        "environment: flags GLIBC_TUNABLES was absent, is glibc.cpu.hwcaps=-AVX2,-FMA",
        "environment: flags OMP_SCHEDULE was absent, is static",
        "environment: flags ONEDNN_MAX_CPU_ISA was absent, is SSE41",
    ]


def test_variables_whose_effect_a_library_reports_count_by_the_effect() -> None:
    """Where both runs have asked it; where one has not, as they are."""

    def environment(resolved: dict[str, str], **flags: str) -> Environment:
        return Environment(flags=flags, resolved=resolved)

    def differences(before: Environment, now: Environment) -> list[str]:
        return [one.what for one in before.differences(now)]

    plain, spelled = {"NPY_DISABLE_CPU_FEATURES": "FMA3"}, {"NPY_DISABLE_CPU_FEATURES": "AVX512F,FMA3"}
    assert not differences(environment({"numpy": "SSE"}, **plain), environment({"numpy": "SSE"}, **spelled))
    assert differences(environment({"numpy": "SSE FMA3"}), environment({"numpy": "SSE"}, **plain)) == [
        "resolved numpy"
    ]
    assert differences(environment({"numpy": "SSE"}, **plain), environment({})) == [
        "flags NPY_DISABLE_CPU_FEATURES"
    ]


ASKED = """
import numpy, torch
from trainwright.runs.environment import environment_inputs
print(environment_inputs(1, {}).to_json())
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the variables name instructions of x86")
def test_libraries_are_asked_what_they_resolved() -> None:
    """Of numpy's own answer, and of torch's and OpenBLAS's, to variables that take instructions away."""

    def asked(**variables: str) -> dict[str, Any]:
        command = [sys.executable, "-c", ASKED]
        done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, check=True)
        return dict(ast.literal_eval(done.stdout.decode())["resolved"])

    plain = asked()
    less = asked(
        NPY_DISABLE_CPU_FEATURES="X86_V3", ATEN_CPU_CAPABILITY="default", OPENBLAS_CORETYPE="Nehalem"
    )
    assert less["aten"] == "DEFAULT"
    assert "X86_V3" not in less["numpy"].split()
    cores = {name: core for name, core in less.items() if name.startswith("openblas")}
    assert set(cores.values()) <= {"Nehalem"}
    assert less.keys() == plain.keys()


def test_threads_packages_and_framework_are_in_the_environment() -> None:
    before = environment_inputs(1, {"torch": "2.12", "device": "cpu"})
    now = environment_inputs(2, {"torch": "2.13", "device": "cpu"})
    assert before.packages["numpy"]
    assert [(d.what, d.before, d.now) for d in of(environment=before).differences(of(environment=now))] == [
        ("threads", 1, 2),
        ("framework torch", "2.12", "2.13"),
    ]


def manifest(**changes: Any) -> Manifest:
    content: dict[str, Any] = {
        "run_id": "r",
        "experiment": "e",
        "computation": {"training.epochs": 3},
        "data": {
            "splits": {"train": {"rows": 10, "sha256": "a" * 64}, "val": {"rows": 2, "sha256": "b" * 64}}
        },
        "code": {"trainwright": "1", "trainwright_sha256": "c", "modules": {}},
        "environment": {
            "python": "3.11",
            "threads": 1,
            "imported": {"numpy": "2.0"},
            "packages": {"numpy": "2.0", "other": "1"},
        },
        "weights": {"initial": "d"},
    }
    return Manifest.model_validate(content | changes)


def test_equal_manifests_do_not_differ() -> None:
    assert manifest().differences(manifest(created="later", command=["other"], run_id="other")) == []
    # An empty mapping is given to a model of one's own.
    given = manifest(computation={"training.epochs": 3, "model.params.options": {}})
    assert manifest().differences(given) != []


def test_differences_come_in_the_order_of_their_kinds_and_name_what_is_there_on_one_side_only() -> None:
    now = manifest(
        computation={"training.epochs": 4, "training.more": None},
        data={"splits": {"train": {"rows": 11, "sha256": "e" * 64}}},
        code={"trainwright": "1", "trainwright_sha256": "c", "modules": {"mine": "f"}},
        environment={"python": "3.12", "threads": 1, "imported": {}, "packages": {"other": "2"}},
        weights={"initial": "g"},
    )
    found = [(d.input, d.what, d.before, d.now) for d in manifest().differences(now)]
    assert found == [
        ("config", "training.epochs", 3, 4),
        ("data", "train split, rows", 10, 11),
        ("data", "train split, sha256", "a" * 64, "e" * 64),
        ("data", "val split, rows", 2, None),
        ("data", "val split, sha256", "b" * 64, None),
        ("code", "module mine", None, "f"),
        ("environment", "python", "3.11", "3.12"),
        ("environment", "package numpy", "2.0", None),
        ("weights", "initial", "d", "g"),
    ]


def test_a_difference_in_words_is_short() -> None:
    assert (
        str(Difference("data", "train split, sha256", "a" * 64, None))
        == f"data: train split, sha256 was {'a' * 16}…, is absent"
    )


def test_what_only_records_and_reports_need_is_no_part_of_the_environment() -> None:
    """Else the second run of a process differs from the first, which made a report."""
    import jinja2
    import pydantic

    assert {jinja2.__name__, pydantic.__name__} <= sys.modules.keys()
    packages = imported_packages()
    assert "numpy" in packages
    assert {"Jinja2", "MarkupSafe", "pydantic", "pydantic_core", "click", "rich"}.isdisjoint(packages)
