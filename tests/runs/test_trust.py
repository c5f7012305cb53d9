"""What a run directory from someone else may import, verb by verb."""

from __future__ import annotations

import importlib
import json
import logging
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import trainwright
from small_runs import SMALL, preempted, reseal
from trainwright.digest import sha256_json
from trainwright.errors import CheckpointError, InputError
from trainwright.records.run_dir import RunDir
from trainwright.require import import_path, importing_by
from trainwright.runs.run import Run
from trainwright.runs.trust import RunImports
from trainwright.runs.workdir import code_folders, working_directory, working_for

NET = """
import torch
from pandas import read_pickle
from torch.nn import Linear
from torch.optim import SGD

class Net(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Linear(4, 3))

class Plain: ...

def make():
    return Net()
"""
MARKED = "from pathlib import Path\nPath({mark!r}).touch()\n" + NET


class Bomb:
    """Creates a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A completed run of a built-in model, to be copied."""
    return trainwright.train(SMALL, {"training.max_steps": 3}, runs_dir=tmp_path_factory.mktemp("made")).path


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A preempted one."""
    return preempted(tmp_path_factory.mktemp("begun"), at=7).path


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's working directory; modules that tests make there or elsewhere are forgotten afterwards."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    known = set(sys.modules)
    yield folder
    for name in [
        name for name in sys.modules if name not in known and name.split(".")[0] in ("planted", "came")
    ]:
        del sys.modules[name]
    importlib.invalidate_caches()


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """The file that exists if code of the attacker ran."""
    return tmp_path / "code-ran"


def foreign(source: Path, folder: Path, **sections: Any) -> Run:
    """A copy of a run, `folder/runs/...`, with other sections in its config."""
    path = folder / "runs" / source.parent.name / source.name
    shutil.copytree(source, path)
    config = yaml.safe_load((path / "config.yaml").read_text())
    (path / "config.yaml").write_text(yaml.safe_dump(config | sections))
    for file in path.glob("*/step-*/manifest.json"):  # which says what the config was
        edit(file, run_files={})
    reseal(path)
    return Run(path)


def edit(file: Path, **values: Any) -> None:
    """Changes a record as one can who knows the format."""
    data = json.loads(file.read_text()) | values
    data.pop("sha256", None)
    file.write_text(json.dumps(data | {"sha256": sha256_json(data)}))


def records(run: Run, folder: Path | str) -> None:
    """Makes a run say that it was started in a folder."""
    for file in [run.path / "created.json", run.path / "manifest.json", *(run.path / "attempts").iterdir()]:
        edit(file, working_directory=str(folder))


def rows(here: Path) -> Path:
    (here / "rows.csv").write_text("a,b,c,d\n1,2,3,4\n")
    return here / "rows.csv"


VERBS: dict[str, Callable[[Run, Path], Any]] = {
    "load": lambda run, _: trainwright.load(run),
    "predict": lambda run, here: trainwright.predict(run, rows(here)),
    "evaluate": lambda run, _: trainwright.evaluate(run),
    "explain": lambda run, _: trainwright.explain(run),
    "export": lambda run, here: trainwright.export(run, here / "model.onnx"),
    "reproduce": lambda run, _: trainwright.reproduce(run),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("name", ["torch:load", "torch.hub:load", "joblib:load", "pandas:read_pickle"])
def test_no_verb_calls_a_librarys_function_as_a_model(
    verb: str, name: str, made: Path, here: Path, mark: Path
) -> None:
    (here / "bomb").write_bytes(pickle.dumps(Bomb(mark)))
    params = {"f": str(here / "bomb"), "weights_only": False} if name == "torch:load" else {}
    run = foreign(made, here.parent / "them", model={"type": name, "framework": "torch", "params": params})
    with pytest.raises(InputError, match=rf"'{name}' is not imported: .*(?s:.*)--trust") as caught:
        VERBS[verb](run, here)
    assert len(str(caught.value).splitlines()) <= 4
    assert not mark.exists()


@pytest.mark.parametrize("verb", ["evaluate", "explain", "reproduce", "predictor"])
@pytest.mark.parametrize(
    "name", ["pandas:read_pickle", "numpy:load", "joblib:load", "sympy:sympify", "torch:load"]
)
def test_no_verb_calls_a_librarys_function_for_the_data(
    verb: str, name: str, made: Path, here: Path, mark: Path
) -> None:
    (here / "bomb").write_bytes(pickle.dumps(Bomb(mark)))
    params = {"filepath_or_buffer": str(here / "bomb")} if name.startswith("pandas") else {}
    run = foreign(made, here.parent / "them", data={"type": name, "params": params})
    verbs = {**VERBS, "predictor": lambda run, _: trainwright.load(run).evaluate("test")}
    with pytest.raises(InputError, match=rf"data\.type: '{name}' is not imported"):
        verbs[verb](run, here)
    assert not mark.exists()


def test_a_missing_module_may_be_in_the_folder_where_the_run_was_started(made: Path, here: Path) -> None:
    started = here.parent / "mine"
    run = foreign(made, started, model={"type": "planted:Net"})
    records(run, started)
    with pytest.raises(InputError, match="there is no module 'planted'") as caught:
        trainwright.load(run)
    assert f"start trainwright in the folder where it was started, {started}\n" in str(caught.value)
    assert "--trust" in str(caught.value)
    with pytest.raises(InputError, match="it must be installed, or be in the folder"):
        trainwright.load(run, trust=True)  # which searches that folder, too


def test_compare_says_why_it_makes_no_test(made: Path, here: Path, mark: Path) -> None:
    (here / "bomb").write_bytes(pickle.dumps(Bomb(mark)))
    data = {"type": "pandas:read_pickle", "params": {"filepath_or_buffer": str(here / "bomb")}}
    run = foreign(made, here.parent / "them", data=data)
    edit(run.path / "result.json", digest="0" * 64)
    edit(run.path / "manifest.json", config_sha256=RunDir(run.path).config_sha256())
    assert "'pandas:read_pickle' is not imported" in str(trainwright.compare(made, run).untested)
    assert not mark.exists()


@pytest.mark.parametrize("folder", ["inside", "relative", "elsewhere"])
def test_a_resume_takes_no_code_that_came_with_the_run(
    folder: str, begun: Path, here: Path, mark: Path
) -> None:
    run = foreign(begun, here.parent / "them", model={"type": "planted:Net"})
    where = {
        "inside": run.path / "code",
        "relative": Path("../them/runs"),
        "elsewhere": here.parent / "other",
    }[folder]
    where.mkdir(exist_ok=True)
    (where / "planted.py").write_text(MARKED.format(mark=str(mark)))
    records(run, where)
    for verb in (trainwright.resume, trainwright.reproduce):
        if verb is trainwright.reproduce:
            edit(run.path / "result.json", status="completed")
            edit(max((run.path / "attempts").iterdir()), status="completed")
        with pytest.raises(InputError, match="there is no module 'planted'"):
            verb(run)
    assert not mark.exists()


def test_a_run_in_the_working_directory_brings_no_code_along(made: Path, here: Path, mark: Path) -> None:
    """Neither from the run directory, nor from the folder that it was unpacked with."""
    came = here / "came"
    for inside, module in (("", "came.planted"), ("runs", "came.runs.planted")):
        run = foreign(made, came, model={"type": f"{module}:Net"})
        (came / inside / "planted.py").write_text(MARKED.format(mark=str(mark)))
        with pytest.raises(InputError, match=rf"'{module}:Net' is not imported"):
            trainwright.load(run)
        shutil.rmtree(came)
    assert not mark.exists()


def test_in_a_run_directory_nothing_is_imported_from_it(
    made: Path, here: Path, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even by our own libraries: nothing in it may stand before them."""
    run = foreign(made, here, model={"type": "planted:Net"})
    (run.path / "planted.py").write_text(MARKED.format(mark=str(mark)))
    monkeypatch.chdir(run.path)
    monkeypatch.syspath_prepend(str(run.path))  # as `python -m trainwright` has it
    with pytest.raises(InputError, match="there is no module 'planted'"):
        trainwright.load(run)
    assert not mark.exists()


def test_only_a_private_folder_above_the_working_directory_counts(
    made: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run says where it was started; anyone may have written that into one that is not signed."""
    run = foreign(made, here.parent / "them")
    own = RunDir.create(here / "runs", "exp", "")
    (here / "sub").mkdir()
    monkeypatch.chdir(here / "sub")
    assert code_folders(own) == [here, here / "sub"]
    records(run, here)
    assert code_folders(RunDir(run.path)) == [here / "sub"]
    edit(own.path / "created.json", signature=None)
    assert code_folders(own, resume=True) == [here / "sub"]
    here.chmod(0o777)
    assert code_folders(RunDir.create(here / "runs", "exp", "")) == [here / "sub"]
    assert code_folders(RunDir(run.path), trust=True) == [here / "sub", here]


def test_ones_own_run_resumes_from_anywhere(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its folder of runs is in the folder of its code; a copy elsewhere needs `trust`."""
    (here / "planted.py").write_text(NET)
    cut = preempted(Path("runs"), {"model.type": "planted:Net", "model.params": {}}, at=3)
    copy = foreign(cut.path, tmp_path / "copy")
    del sys.modules["planted"]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="there is no module 'planted'"):
        trainwright.resume(copy)
    assert trainwright.resume(cut).status == "completed"
    assert sys.modules.pop("planted").__file__ == str(here / "planted.py")
    with pytest.raises(InputError, match="there is no module 'planted'"):
        trainwright.reproduce(cut)
    assert trainwright.reproduce(cut, trust=True).verdict == "identical"
    assert trainwright.resume(copy, trust=True).digest == cut.digest


def test_trust_announces_each_import_once(made: Path, here: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = foreign(made, here.parent / "them", data={"type": "sklearn.datasets:load_iris"})
    with caplog.at_level(logging.WARNING):
        trainwright.evaluate(run, trust=True)
    (line,) = [text for text in caplog.messages if "imports" in text]
    assert line == f"run {run.id} is trusted: it imports sklearn.datasets:load_iris"


def test_train_resume_takes_what_the_users_own_config_names(here: Path) -> None:
    """A library's function, too: but not those that the config of the run names instead."""
    overrides = {"model": {"type": "torch.nn:Linear", "params": {"in_features": 4, "out_features": 3}}}
    own = {"model.type": "planted:make", "model.framework": "torch", "model.params": {}}
    (here / "planted.py").write_text("from torch.nn import Linear\ndef make():\n    return Linear(4, 3)\n")
    cut = preempted(Path("runs"), own, at=3)
    config = (cut.path / "config.yaml").read_text()
    (cut.path / "config.yaml").write_text(config.replace("planted:make", "torch.hub:load"))
    with pytest.raises(InputError, match=r"'torch.hub:load' is not imported"):
        trainwright.train(SMALL, own, runs_dir="runs", resume=True)
    (cut.path / "config.yaml").write_text(config)
    assert trainwright.train(SMALL, own, runs_dir="runs", resume=True).path == cut.path
    assert trainwright.train(SMALL, overrides, runs_dir="runs").status == "completed"


@pytest.mark.parametrize(
    ("path", "passes"),
    [
        ("torch.nn:Linear", True),
        ("sklearn.ensemble:RandomForestClassifier", True),
        ("planted:Net", True),
        ("planted:make", True),
        ("planted:Plain", True),
        ("sklearn.metrics:cohen_kappa_score", True),
        ("sklearn.metrics:PrecisionRecallDisplay", False),
        ("sklearn.metrics:cluster.entropy", False),
        ("planted:Linear", True),  # of a framework, and a class of models
        ("planted:read_pickle", False),  # imported there, but not defined
        ("torch.optim:ASGD", True),
        ("torch.optim.lr_scheduler:LambdaLR", False),
        ("planted:SGD", True),
        ("torch.utils.data:DataLoader", False),
        ("torch.package:PackageImporter", False),
        ("torch:load", False),
        ("sklearn.datasets:load_iris", False),
        ("sklearn.externals.array_api_compat:numpy", False),
        ("yaml:unsafe_load", False),
        ("trainwright:clean", False),
        ("trainwright.runs.trust:RunImports", False),
    ],
)
def test_a_path_is_imported_only_where_the_rules_allow_it(
    path: str, passes: bool, made: Path, here: Path
) -> None:
    (here / "planted.py").write_text(NET)
    sys.path.insert(0, str(here))
    rule = RunImports(RunDir(made), [here])
    try:
        with importing_by(rule):
            if passes:
                assert import_path(path) is not None
            else:
                with pytest.raises(InputError, match="is not imported"):
                    import_path(path)
        with importing_by(RunImports(RunDir(made), [], named=[path])):
            import_path(path)
    finally:
        sys.path.remove(str(here))


def test_the_packages_of_a_module_are_judged_before_they_are_imported(
    made: Path, here: Path, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Importing a module runs the code of the packages that it is in, too."""
    elsewhere = here.parent / "elsewhere" / "planted"
    elsewhere.mkdir(parents=True)
    (elsewhere / "__init__.py").write_text(MARKED.format(mark=str(mark)))
    (elsewhere / "inner.py").symlink_to(here / "inner.py")
    (here / "inner.py").write_text(NET)
    monkeypatch.syspath_prepend(str(elsewhere.parent))
    with importing_by(RunImports(RunDir(made), [here])), pytest.raises(InputError, match="is not imported"):
        import_path("planted.inner:Net")
    assert not mark.exists()


def test_a_virtual_environment_in_the_project_is_no_code_of_the_users(
    made: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = here / ".venv" / "lib" / "python3" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "installed.py").write_text(NET)
    monkeypatch.syspath_prepend(str(packages))
    with importing_by(RunImports(RunDir(made), [here])), pytest.raises(InputError, match="is not imported"):
        import_path("installed:make")


def test_what_the_users_own_config_named_in_this_process_is_imported_again(
    made: Path, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "on_the_path"
    elsewhere.mkdir()
    (elsewhere / "named_before.py").write_text(NET)
    monkeypatch.syspath_prepend(str(elsewhere))
    rule = RunImports(RunDir(made), [here])
    with importing_by(rule), pytest.raises(InputError, match="is not imported"):
        import_path("named_before:make")
    import_path("named_before:make")  # as `train` does for the user's own config
    with importing_by(rule):
        import_path("named_before:make")


def test_git_is_not_asked_in_a_folder_that_came_with_a_run(made: Path, here: Path, mark: Path) -> None:
    """The settings of a repository can name programs for git to run."""
    from trainwright.runs.code_identity import code_inputs

    run = foreign(made, here.parent / "them")
    records(run, here.parent / "them")
    theirs = working_directory(RunDir(run.path))
    assert theirs == here.parent / "them"
    import subprocess

    for words in (["init", "-q"], ["config", "core.fsmonitor", f"touch {mark}; false"], ["add", "."]):
        subprocess.run(["git", "-C", str(theirs), *words], check=True, capture_output=True)
    mark.unlink(missing_ok=True)
    with importing_by(RunImports(RunDir(run.path), [here])):
        assert code_inputs([], theirs).git is None
    assert not mark.exists()


@pytest.mark.parametrize("version", ["1.0\n--index-url http://127.0.0.1/", "1.0 @ http://127.0.0.1/a.whl"])
def test_an_export_does_not_have_pip_install_what_a_run_from_someone_else_names(
    version: str, made: Path, here: Path
) -> None:
    run = foreign(made, here.parent / "them")
    manifest = json.loads((run.path / "manifest.json").read_text())
    packages = manifest["environment"]["packages"] | {"numpy": version}
    environment = manifest["environment"] | {"packages": packages, "imported": {}}
    edit(run.path / "manifest.json", environment=environment, config_sha256=RunDir(run.path).config_sha256())
    with pytest.raises(CheckpointError, match="is not a version of numpy"):
        trainwright.export(run, here / "model", "mlflow")
    assert not (here / "model").exists()


def test_processes_of_a_foreign_run_import_nothing_from_the_folder_that_it_names(
    here: Path, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They start in that folder: a module there must not stand before ours, or before a library."""
    started = here.parent / "theirs"
    started.mkdir()
    monkeypatch.chdir(started)
    made = trainwright.train(SMALL, {"training.max_steps": 2, "distributed.virtual.data": 2})
    edit(made.path / "created.json", signature=None)
    edit(made.path / "manifest.json", placement={"distributed.nproc": 2})
    for name in ("trainwright", "torch"):
        (started / f"{name}.py").write_text(MARKED.format(mark=str(mark)))
    child = [sys.executable, "-c", "import sys; sys.exit(any(map(sys.path.__contains__, ('', sys.argv[1]))))"]
    monkeypatch.chdir(here)
    answer = trainwright.reproduce(made)
    assert answer.digests[0] == answer.digests[1]
    assert not mark.exists()
    with working_for(RunDir(made.path), started):  # as joblib starts processes
        assert subprocess.run([*child, str(started)], check=False).returncode == 0
    with working_for(RunDir(made.path), started, trust=True):
        assert subprocess.run([*child, str(started)], check=False).returncode == 1
