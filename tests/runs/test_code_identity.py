"""The code of a run: modules that are imported late, lie in a zip file, or are compiled."""

import importlib
import py_compile
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import trainwright
from small_runs import SMALL, Crash, CrashAt, every_save_on_disk
from trainwright.digest import sha256_file
from trainwright.errors import ChangedInputsError
from trainwright.runs.code_identity import code_inputs

NAMES = ("coded_net", "coded_late", "coded_dynamic", "coded_packed", "coded_compiled", "coded_native")
NET = """
import importlib
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)
        self.calls = 0

    def get_extra_state(self):
        return self.calls

    def set_extra_state(self, calls):
        self.calls = calls

    def forward(self, features):
        self.calls += self.training
        if self.calls > 2:
            from coded_late import SCALE
            features = features * SCALE * importlib.import_module("coded_" + "dynamic").SCALE
        return self.layer(features)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with a module that imports others in its third step."""
    (tmp_path / "coded_net.py").write_text(NET)
    (tmp_path / "coded_late.py").write_text("SCALE = 2.0\n")
    (tmp_path / "coded_dynamic.py").write_text("SCALE = 0.5\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    forget()


def forget() -> None:
    """Forget the modules, as a new process would."""
    for name in NAMES:
        sys.modules.pop(name, None)
    importlib.invalidate_caches()


CONFIG = SMALL | {"model": {"type": "coded_net:Net"}}


def test_modules_that_are_imported_late_are_compared(folder: Path) -> None:
    short = {"training.max_steps": 8}
    run = trainwright.train(CONFIG, short, runs_dir=folder / "runs")
    modules = run.manifest["code"]["modules"]
    assert modules["coded_late"] == sha256_file(folder / "coded_late.py")
    assert modules["coded_dynamic"] == sha256_file(folder / "coded_dynamic.py")
    forget()
    again = trainwright.train(CONFIG, short, runs_dir=folder / "runs", reuse=True)
    assert again.path == run.path
    for name in ("coded_late", "coded_dynamic"):
        forget()
        before = (folder / f"{name}.py").read_text()
        (folder / f"{name}.py").write_text("SCALE = 4.0\n")
        other = trainwright.train(CONFIG, short, runs_dir=folder / "runs", reuse=True)
        assert other.path not in (run.path, again.path)
        (folder / f"{name}.py").write_text(before)


def test_a_killed_run_is_not_resumed_with_another_late_module(folder: Path) -> None:
    with pytest.raises(Crash), every_save_on_disk():
        trainwright.train(CONFIG, runs_dir=folder / "runs", callbacks=[CrashAt(13)])
    forget()
    run = trainwright.get("last", runs_dir=folder / "runs")
    (folder / "coded_late.py").write_text("SCALE = 4.0\n")
    with pytest.raises(ChangedInputsError, match="module coded_late was"):
        trainwright.resume(run)
    (folder / "coded_late.py").write_text("SCALE = 2.0\n")
    assert trainwright.resume(run).status == "completed"


def identity(name: str) -> dict[str, str]:
    importlib.invalidate_caches()
    importlib.import_module(name)
    return dict(code_inputs([name], Path.cwd()).modules)


def test_a_zipped_module_is_identified_by_its_source(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for value in (1, 2):
        archive = folder / f"packed{value}.zip"
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("coded_packed.py", f"from coded_late import SCALE\nVALUE = {value}\n")
        with monkeypatch.context() as patch:
            patch.syspath_prepend(str(archive))
            found.append(identity("coded_packed"))
        forget()
    assert found[0].keys() == {"coded_packed", "coded_late"}
    assert found[0]["coded_packed"] != found[1]["coded_packed"]


def test_a_zipped_module_that_is_known_by_a_relative_path_is_not_taken_for_edited(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(folder / "packed.zip", "w") as file:
        file.writestr("coded_packed.py", "VALUE = 1\n")
    monkeypatch.syspath_prepend("packed.zip")
    importlib.import_module("coded_packed")
    assert code_inputs(["coded_packed"], folder).edited == {}


def test_a_module_that_was_imported_before_the_run_and_is_named_in_a_call_is_found(folder: Path) -> None:
    (folder / "coded_net.py").write_text(
        "import importlib\ndef f(): return importlib.import_module('coded_dynamic')\n"
    )
    importlib.import_module("coded_dynamic")
    assert identity("coded_net").keys() == {"coded_net", "coded_dynamic"}


def test_a_module_that_code_without_a_file_imports_is_found(folder: Path) -> None:
    cell: dict[str, Any] = {"__name__": "notebook"}
    exec("class Net:\n    def forward(self):\n        from coded_late import SCALE", cell)
    importlib.import_module("coded_late")
    assert code_inputs([], folder, model=cell["Net"]()).modules.keys() == {"coded_late", "notebook:Net"}


def test_bytecode_without_a_source_is_identified_by_its_file(folder: Path) -> None:
    source = folder / "coded_compiled.py"
    found = []
    for value in (1, 2):
        source.write_text(f"from coded_late import SCALE\nVALUE = {value}\n")
        py_compile.compile(str(source), cfile=str(folder / "coded_compiled.pyc"))
        source.unlink()
        found.append(identity("coded_compiled"))
        forget()
    assert found[0].keys() == {"coded_compiled", "coded_late"}
    assert found[0]["coded_compiled"] != found[1]["coded_compiled"]


EXTENSION = """
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "coded_native", NULL, -1, NULL};
PyMODINIT_FUNC PyInit_coded_native(void) { return PyModule_Create(&module); }
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_an_extension_is_identified_by_its_file(folder: Path) -> None:
    include = sysconfig.get_path("include")
    if not (Path(include) / "Python.h").is_file():
        pytest.skip("the headers of Python are not installed")
    (folder / "native.c").write_text(EXTENSION)
    library = folder / f"coded_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    subprocess.run(
        ["cc", "-shared", "-fPIC", f"-I{include}", "native.c", "-o", str(library)], check=True, cwd=folder
    )
    assert identity("coded_native") == {"coded_native": sha256_file(library)}


def test_an_object_counts_by_its_attributes_and_code(tmp_path: Path) -> None:
    import torch

    def net(p: Any, body: str = "x") -> Any:
        cell: dict[str, Any] = {"__name__": "notebook"}
        exec(
            "import torch\n"
            "class Net(torch.nn.Module):\n"
            "    SCALE = {'k': 1.0}\n"
            "    def __init__(self, p):\n"
            "        super().__init__()\n"
            "        self.p, self.layer = p, torch.nn.Linear(4, 3)\n"
            f"    def forward(self, x): return self.layer({body})\n",
            cell,
        )
        torch.manual_seed(0)
        return cell["Net"](p)

    config = {key: value for key, value in SMALL.items() if key != "model"}

    def path(model: Any) -> Path:
        short = {"training.max_steps": 2}
        return trainwright.train(config, short, runs_dir=tmp_path, reuse=True, model=model).path

    def frozen(model: Any) -> Any:
        model.layer.bias.requires_grad_(False)
        return model

    def scaled(model: Any) -> Any:
        type(model).SCALE["k"] = 2.0
        return model

    first = path(net([0.1, {"a": 2}]))
    assert path(net([0.1, {"a": 2}])) == first
    assert path(net([0.1, {"a": 3}])) != first
    assert path(net([0.1, {"a": 2}], "x * 2")) != first
    assert path(frozen(net([0.1, {"a": 2}]))) != first
    assert path(scaled(net([0.1, {"a": 2}]))) != first


class Handle:
    """What can be copied, but not compared."""

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("it is a handle")


def test_an_object_without_a_value_is_trained_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    import torch

    class Net(torch.nn.Sequential):
        def __init__(self) -> None:
            super().__init__(torch.nn.Linear(4, 3))
            self.handle = Handle()

    config = {key: value for key, value in SMALL.items() if key != "model"}
    runs = []
    with caplog.at_level("WARNING", "trainwright"):
        for _ in range(2):
            torch.manual_seed(0)
            short = {"training.max_steps": 2}
            runs.append(trainwright.train(config, short, runs_dir=tmp_path, reuse=True, model=Net()).path)
    assert runs[0] != runs[1]
    assert "parts without a value to compare: attribute handle (is a Handle)" in caplog.text


def test_a_data_set_counts_by_its_code(tmp_path: Path) -> None:
    def rows(last: str) -> Any:
        cell: dict[str, Any] = {"__name__": "notebook"}
        exec(
            "import numpy as np\n"
            "CACHE = {}\n"
            "class Rows:\n"
            "    fingerprint = 'the author vouches for it'\n"
            "    def __len__(self): return 200\n"
            "    def __getitem__(self, i):\n"
            f"        CACHE[i] = {last} if i == 198 else i % 3\n"
            "        return np.full(4, i % 3, np.float32), CACHE[i]\n",
            cell,
        )
        return cell["Rows"]()

    config = {key: value for key, value in SMALL.items() if key != "data"}

    def path(last: str) -> Path:
        short = {"training.max_steps": 2}
        return trainwright.train(config, short, runs_dir=tmp_path, reuse=True, data=rows(last)).path

    first = path("0")
    assert path("0") == first
    assert path("1") != first
