"""Code beside a config that is in another folder than the one where Trainwright is started."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import trainwright
import warm_commands
from trainwright.errors import InputError

MODULE = """
import torch

def net(width: int = 4) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(width, 2))

def rows():
    x = torch.randn(120, 4, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] > 0).long()
"""
CONFIG = """
data: {0}:rows
model: {{type: "{0}:net", width: 4}}
training: {{epochs: 2, batch_size: 32, threads: 1}}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """Return a project with a config, and a module of its own name, in a subfolder."""
    (tmp_path / "exp").mkdir()
    name = f"beside_{abs(hash(request.node.name))}"
    (tmp_path / "exp" / f"{name}.py").write_text(MODULE)
    (tmp_path / "exp" / "c.yaml").write_text(CONFIG.format(name))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop(name, None)


def command(*words: Any) -> subprocess.CompletedProcess[str]:
    return warm_commands.command(*words, folder=Path.cwd())


def test_it_is_found_by_all_that_follows(project: Path) -> None:
    run = trainwright.train("exp/c.yaml", quiet=True)
    (name,) = {path.stem for path in (project / "exp").glob("*.py")}
    created = json.loads((run.path / "created.json").read_text())
    assert created["code_folder"] == str(project / "exp")
    del sys.modules[name]
    assert command("evaluate", run.id).returncode == 0
    done = command("reproduce", run.id, "-q")
    assert "identical" in done.stdout, done.stderr
    longer = command("resume", run.id, "training.epochs=3", "-q")
    assert longer.returncode == 0, longer.stderr
    assert str(project) not in sys.path
    assert str(project / "exp") not in sys.path


def forget(project: Path) -> None:
    """Forget the module, so that it must be found again."""
    for path in (project / "exp").glob("*.py"):
        sys.modules.pop(path.stem, None)


def test_studies_and_workers_find_it(project: Path) -> None:
    assert trainwright.cross_validate("exp/c.yaml", folds=2, quiet=True).status == "completed"
    forget(project)
    made = trainwright.create("exp/c.yaml")
    assert trainwright.work(made, quiet=True).status == "completed"


SPACE = {"training.learning_rate": {"low": 1e-3, "high": 1e-2}}


def test_a_search_finds_it_when_it_is_resumed_by_its_name(project: Path) -> None:
    tuned = trainwright.tune("exp/c.yaml", space=SPACE, trials=1, quiet=True)
    forget(project)
    assert trainwright.resume_study(tuned.id, {"tuning.trials": 2}, quiet=True).status == "completed"
    for run in trainwright.list_runs():
        forget(project)
        trainwright.evaluate(run.id)
    forget(project)
    assert tuned.best_config is not None
    assert trainwright.train(tuned.best_config, quiet=True).status == "completed"


@pytest.mark.usefixtures("project")
def test_the_workers_of_a_search_find_it() -> None:
    tuned = trainwright.tune("exp/c.yaml", space=SPACE, trials=2, parallel=2, quiet=True)
    assert tuned.status == "completed"


def test_the_working_directory_comes_first(project: Path) -> None:
    (module,) = (project / "exp").glob("*.py")
    (project / module.name).write_text(MODULE)
    run = trainwright.train("exp/c.yaml", quiet=True)
    assert json.loads((run.path / "created.json").read_text())["code_folder"] == ""
    assert sys.modules[module.stem].__file__ == str(project / module.name)


def test_a_run_from_elsewhere_names_no_folder_of_code(project: Path, tmp_path_factory: Any) -> None:
    run = trainwright.train("exp/c.yaml", quiet=True)
    (module,) = (project / "exp").glob("*.py")
    evil = tmp_path_factory.mktemp("evil")
    (evil / module.name).write_text(f"open({str(evil / 'executed')!r}, 'w')\n" + MODULE)
    created = json.loads((run.path / "created.json").read_text())
    del created["sha256"]
    (run.path / "created.json").write_text(json.dumps(created | {"code_folder": str(evil)}))
    module.rename(project / "exp" / "gone.txt")
    done = command("evaluate", run.id)
    assert done.returncode == 2
    assert "there is no module" in done.stderr
    assert not (evil / "executed").exists()


def test_another_module_of_that_name_is_refused(project: Path) -> None:
    trainwright.train("exp/c.yaml", quiet=True)
    (module,) = (project / "exp").glob("*.py")
    (project / "other").mkdir()
    (project / "other" / module.name).write_text(MODULE)
    (project / "other" / "c.yaml").write_text(CONFIG.format(module.stem))
    with pytest.raises(InputError, match=r"is already imported in this process, from .*start a new process"):
        trainwright.train("other/c.yaml", quiet=True)


def test_a_missing_module_is_an_error_that_says_where_it_was_looked_for(project: Path) -> None:
    done = command("train", "exp/c.yaml", "model.type=nowhere_to_be_found:net", "-q")
    assert done.returncode == 2
    assert f"be in the folder where trainwright is started ({project}), or beside the config" in done.stderr


@pytest.mark.parametrize("command", ["train", "doctor"])
def test_a_module_named_like_one_of_python_shadows_nothing(command: str, tmp_path: Path) -> None:
    """Neither for the console script nor for `python -m`; other modules of the folder are found."""
    (tmp_path / "html.py").write_text("raise RuntimeError('html of the folder')")
    (tmp_path / "textwrap.py").write_text("raise RuntimeError('textwrap of the folder')")
    (tmp_path / "mine.py").write_text("from torch import nn\nclass Net(nn.Linear):\n    pass\n")
    (tmp_path / "a.yaml").write_text(
        "data: {type: iris}\nmodel: {type: 'mine:Net', in_features: 4, out_features: 3}\n"
        "training: {max_steps: 2}\n"
    )
    words = ["train", "a.yaml", "-q"] if command == "train" else ["doctor"]
    for start in (
        [sys.executable, "-m", "trainwright"],
        [str(Path(sys.executable).with_name("trainwright"))],
    ):
        done = subprocess.run([*start, *words], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert "of the folder" not in done.stdout + done.stderr
        assert "cannot be imported" not in done.stdout + done.stderr
        assert command == "doctor" or done.returncode == 0, done.stderr
