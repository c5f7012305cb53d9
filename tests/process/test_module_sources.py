"""Code that is edited after its import: what ran is recorded, and the difference is said."""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import trainwright
from small_runs import SMALL, preempted
from trainwright.errors import ChangedInputsError
from trainwright.process.module_sources import source_hash, watch
from warm_commands import command

NET = """
import torch
from edited_sizes import WIDTH

class Net(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Linear(4, WIDTH), torch.nn.Linear(WIDTH, 3))
"""


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with two modules of the user's."""
    (tmp_path / "edited_net.py").write_text(NET)
    (tmp_path / "edited_sizes.py").write_text("WIDTH = 5\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("edited_net", "edited_sizes"):
        sys.modules.pop(name, None)


def train(**more: Any) -> Any:
    model = importlib.import_module("edited_net").Net()
    return trainwright.train(SMALL, {"training.max_steps": 2}, model=model, **more)


def test_what_was_imported_is_hashed_and_an_edit_is_said(own: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also in a module that the model's own module uses, and for a constant, which no compiled function holds."""
    importlib.import_module("edited_net")
    before = {name: sha256(own / f"{name}.py") for name in ("edited_net", "edited_sizes")}
    (own / "edited_sizes.py").write_text("WIDTH = 6\n")
    with caplog.at_level(logging.WARNING):
        run = train()
    assert [text for text in caplog.messages if "edited after its import" in text and "edited_sizes" in text]
    assert not [text for text in caplog.messages if "module edited_net was edited" in text]
    code = run.manifest["code"]
    assert {name: code["modules"][name] for name in before} == before
    assert code["modules"].keys() - before == {"edited_net:Net", "edited_net:WIDTH"}, "as they are in memory"
    assert code["edited"] == {"edited_sizes": sha256(own / "edited_sizes.py")}
    same = trainwright.reproduce(run, model=importlib.import_module("edited_net").Net())
    assert not [difference for difference in same.inputs if difference.input == "code"]


def test_an_untouched_module_is_not_said_to_be_edited(own: Path, caplog: pytest.LogCaptureFixture) -> None:
    importlib.import_module("edited_net")
    (own / "edited_sizes.py").write_text("WIDTH = 5\n")  # written anew, but the same
    with caplog.at_level(logging.WARNING):
        assert train().manifest["code"]["edited"] == {}
    assert not [text for text in caplog.messages if "edited" in text]


def test_a_module_that_is_imported_again_is_what_it_is_now(own: Path) -> None:
    sizes = importlib.import_module("edited_sizes")
    (own / "edited_sizes.py").write_text("WIDTH = 16\n")
    importlib.reload(sizes)
    code = train().manifest["code"]
    assert code["edited"] == {}
    assert code["modules"]["edited_sizes"] == sha256(own / "edited_sizes.py")


def test_a_source_that_is_gone(own: Path) -> None:
    importlib.import_module("edited_net")
    before = sha256(own / "edited_net.py")
    (own / "edited_net.py").unlink()
    code = train().manifest["code"]
    assert (code["modules"]["edited_net"], code["edited"]) == (before, {"edited_net": "removed"})


def test_a_resume_in_the_process_of_an_edit_is_refused(own: Path) -> None:
    """It would go on with the old code, while the user may mean the new."""
    cut = preempted(own / "runs", {"model.type": "edited_net:Net", "model.params": {}}, at=3)
    source = (own / "edited_net.py").read_text()
    (own / "edited_net.py").write_text(source + "# edited\n")
    with pytest.raises(ChangedInputsError, match=r"code: module edited_net was .* edited on disk"):
        trainwright.resume(cut)
    (own / "edited_net.py").write_text(source)
    assert trainwright.resume(cut).status == "completed"


@pytest.mark.slow
def test_a_fresh_process_reports_the_module_as_changed(own: Path) -> None:
    config = own / "config.yaml"
    config.write_text(json.dumps({**SMALL, "model": {"type": "edited_net:Net", "params": {}}}))
    script = f"""
import edited_net, trainwright  # the module first: it was imported before there was anyone to watch
from pathlib import Path
Path("edited_sizes.py").write_text("WIDTH = 50  # edited\\n")
print(trainwright.train({str(config)!r}, {{"training.max_steps": 2}}).id)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=own, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "module edited_sizes was edited after its import" in done.stderr
    again = command("reproduce", done.stdout.split()[-1], "--json", folder=own)
    assert again.returncode == 3, again.stderr
    inputs = json.loads(again.stdout)["inputs"]
    assert ("code", "module edited_sizes") in [(one["input"], one["what"]) for one in inputs]
    assert "module edited_net" not in [one["what"] for one in inputs]


def test_watching_is_light(own: Path) -> None:
    """It is done once, hashes nothing that is installed, and no import fails of it."""
    finders = list(sys.meta_path)
    watch()
    assert sys.meta_path == finders
    (own / "edited_sizes.py").unlink()
    (own / "edited_sizes.py").mkdir()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("edited_sizes")
    import torch

    assert source_hash("torch", Path(torch.__file__)) is None
    assert source_hash("trainwright", Path(trainwright.__file__)) is None
