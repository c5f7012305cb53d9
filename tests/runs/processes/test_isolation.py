"""Many runs in one worker process: each gets the bits of a fresh process, whatever the ones before did there."""

import functools
import importlib
import json
import locale
import multiprocessing
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import trainwright
from small_runs import SMALL
from trainwright.errors import InputError, ModelError
from trainwright.frameworks.keras.backend import import_keras
from trainwright.runs import environment
from trainwright.runs.processes.isolation import as_fresh_process
from warm_commands import IMPORTS, command, warm

# What holds for the whole process is changed, and a number is drawn and a state kept while the module lives.
LEAKY = """
import os, sys, warnings
import numpy as np, torch
import sizes
os.environ["SCALE"] = "7"
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "lib"))
torch.set_default_dtype(torch.float64)
np.seterr(all="raise")
warnings.simplefilter("error")
NOISE = torch.from_numpy(np.random.rand(4).astype("float32"))
MADE = []

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        MADE.append(self)
        self.inner = torch.nn.Linear(4, sizes.HIDDEN + len(MADE), dtype=torch.float32)
        self.outer = torch.nn.Linear(sizes.HIDDEN + len(MADE), 3, dtype=torch.float32)
        self.dropout = torch.nn.Dropout(0.3)

    def forward(self, x):
        return self.outer(self.dropout(torch.relu(self.inner(x + NOISE))))
"""
PLAIN = """
import os, warnings
import numpy as np, torch
import sizes
try:
    from only_in_lib import SCALE
except ImportError:
    SCALE = float(os.environ.get("SCALE", "2")) + float(np.exp(np.float32(-1000)))
warnings.warn("no error", UserWarning)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, sizes.HIDDEN)
        self.outer = torch.nn.Linear(sizes.HIDDEN, 3)

    def forward(self, x):
        return self.outer(torch.tanh(self.inner(x * SCALE)))
"""


def project(folder: Path, model: str, hidden: int, seed: int) -> Path:
    """A folder with a config and modules, which have the same names in each project."""
    (folder / "lib").mkdir(parents=True)
    (folder / "lib" / "only_in_lib.py").write_text("SCALE = 5.0\n")
    (folder / "model.py").write_text(model)
    (folder / "sizes.py").write_text(f"HIDDEN = {hidden}\n")
    config = SMALL | {
        "experiment": {"name": folder.name, "seed": seed},
        "model": {"type": "model:Net"},
        "training": SMALL["training"] | {"max_steps": 9},
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def created(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(folder)
    return str(trainwright.create("config.json", runs_dir="runs").path)


def outcome(run: str) -> tuple[str | None, Mapping[str, float]]:
    result = trainwright.get(run)
    assert result.status == "completed", result
    return result.digest, result.metrics


@pytest.mark.slow
def test_runs_of_two_projects_in_a_row_have_the_bits_of_fresh_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaky = project(tmp_path / "leaky", LEAKY, hidden=5, seed=1)
    plain = project(tmp_path / "plain", PLAIN, hidden=9, seed=2)
    fresh = {folder: created(folder, monkeypatch) for folder in (leaky, plain)}
    for run in fresh.values():
        done = command("work", run, "-q", folder=tmp_path)
        assert done.returncode == 0, done.stderr
    order = [plain, leaky, leaky, plain, leaky]
    runs = [created(folder, monkeypatch) for folder in order]
    done = command("work", *runs, "-q", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [outcome(run) for run in runs] == [outcome(fresh[folder]) for folder in order]
    manifests = [trainwright.get(run).manifest for run in (runs[3], fresh[plain])]
    assert manifests[0]["environment"] == manifests[1]["environment"]
    assert manifests[0]["code"] == manifests[1]["code"]


def test_code_that_was_edited_between_two_runs_is_imported_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project(tmp_path / "edited", PLAIN, hidden=4, seed=1)
    runs = [created(folder, monkeypatch) for _ in range(2)]
    trainwright.work(runs[0])
    (folder / "sizes.py").write_text("HIDDEN = 11  # edited\n")
    trainwright.work(runs[1])
    first, second = (trainwright.get(run).manifest for run in runs)
    assert first["code"]["modules"]["sizes"] != second["code"]["modules"]["sizes"]
    assert second["code"]["edited"] == {}
    assert first["weights"] != second["weights"]
    assert not {"model", "sizes"} & set(sys.modules)


def test_a_module_that_was_written_between_two_runs_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python has listed its folder for the first run, and looks again only when the folder's time changes."""
    folder = project(tmp_path / "growing", PLAIN, hidden=4, seed=1)
    runs = [created(folder, monkeypatch) for _ in range(2)]
    trainwright.work(runs[0])
    listed = folder.stat()
    (folder / "growth.py").write_text("HIDDEN = 11\n")
    (folder / "model.py").write_text(PLAIN.replace("import sizes", "import growth as sizes"))
    os.utime(folder, ns=(listed.st_atime_ns, listed.st_mtime_ns))
    trainwright.work(runs[1])
    assert "growth" in trainwright.get(runs[1]).manifest["code"]["modules"]


def test_a_module_is_found_where_the_process_knows_as_many_folders_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"of_{name}.py").touch()
        monkeypatch.syspath_prepend(tmp_path / name)
        with as_fresh_process():
            importlib.import_module(f"of_{name}")
        if name == "first":
            sys.path_importer_cache.pop(str(tmp_path / name))
            sys.path.remove(str(tmp_path / name))
    listed = (tmp_path / "second").stat()
    (tmp_path / "second" / "growth.py").touch()
    os.utime(tmp_path / "second", ns=(listed.st_atime_ns, listed.st_mtime_ns))
    with as_fresh_process():
        importlib.import_module("growth")


def test_packages_are_those_of_each_run_where_as_many_modules_are_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("site-packages/alpha", "own/helper", "own/last"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.py").touch()
    for folder in ("site-packages", "own"):
        monkeypatch.syspath_prepend(tmp_path / folder)
    monkeypatch.setattr(environment, "packages", lambda: {"alpha": "1.0"})
    packages = []
    for imported in ("helper", "alpha"):
        (tmp_path / "own" / "model.py").write_text(f"import {imported}, last\n")
        with as_fresh_process():
            importlib.import_module("model")
            packages.append(environment.imported_packages())
    sys.modules.pop("alpha")
    assert packages == [[], ["alpha"]]


def test_what_a_process_imports_again_between_two_runs_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a notebook whose modules were edited: as many as before, the last one has the same name."""
    for name in ("before", "after", "final", "of_the_run"):
        (tmp_path / f"{name}.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("before", "after"):
        importlib.import_module(name)
        importlib.import_module("final")
        with as_fresh_process():
            importlib.import_module("of_the_run")
        assert {name, "final"} < set(sys.modules)
        assert "of_the_run" not in sys.modules
        for mine in (name, "final"):
            del sys.modules[mine]


def test_a_module_that_the_process_has_from_another_project_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook that works for another project: its own modules cannot be forgotten."""
    other = project(tmp_path / "other", PLAIN, hidden=4, seed=1)
    monkeypatch.syspath_prepend(str(other))
    monkeypatch.setitem(sys.modules, "sizes", __import__("sizes"))
    monkeypatch.setitem(sys.modules, "model", __import__("model"))
    run = created(project(tmp_path / "mine", PLAIN, hidden=4, seed=1), monkeypatch)
    with pytest.raises(
        InputError, match=r"(?s)'model' is already imported.*other.*mine.*start a new process"
    ):
        trainwright.work(run, trust=True)


# -- libraries


def config(model: str, **params: Any) -> dict[str, Any]:
    return SMALL | {"model": {"type": model, "params": params}, "training": {"max_steps": 8, "threads": 2}}


BATCHES = {"max_steps": 8, "batch_size": 16}
KINDS: dict[str, dict[str, Any]] = {
    "torch": SMALL | {"training": BATCHES | {"threads": 1}},
    "bitwise": SMALL | {"training": BATCHES | {"threads": 2, "determinism": "bitwise"}},
    "keras": config("keras_mlp", backend="torch", hidden=[8], dropout=0.2) | {"training": BATCHES},
    "forest": SMALL | {"model": "random_forest", "training": {"threads": 2}},
    "xgboost": config("xgboost", subsample=0.7),
    "lightgbm": config("lightgbm", subsample=0.7, subsample_freq=1),
    "catboost": config("catboost"),
}


def check_order(run_command: Any, kinds: Sequence[str], folder: Path) -> None:
    """Let one process train a run of each kind, in this order, and one process each kind."""

    def worked(kinds: Sequence[str]) -> list[Any]:
        runs = [str(trainwright.create(KINDS[kind], runs_dir=folder).path) for kind in kinds]
        done = run_command("work", *runs, "-q", folder=folder)
        assert done.returncode == 0, done.stderr
        return [outcome(run) for run in runs]

    fresh = {kind: worked([kind])[0] for kind in set(kinds)}
    assert worked(kinds) == [fresh[kind] for kind in kinds]


@pytest.mark.slow
def test_five_runs_in_a_row_have_the_bits_of_fresh_processes(tmp_path: Path) -> None:
    check_order(command, ["bitwise", "xgboost", "torch", "forest", "torch"], tmp_path)


@pytest.mark.soak
def test_each_kind_of_run_after_each_other_has_the_bits_of_a_fresh_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An order in which each follows each, itself included."""
    after = {kind: list(KINDS) for kind in KINDS}
    way, order = ["torch"], list[str]()
    while way:  # an Eulerian circuit
        if after[way[-1]]:
            way.append(after[way[-1]].pop())
        else:
            order.append(way.pop())
    assert len(order) == len(KINDS) ** 2 + 1
    monkeypatch.setenv("KERAS_BACKEND", "torch")  # for the process that imports it, and is forked
    processes = warm("signaller", (*IMPORTS, "keras"))
    check_order(functools.partial(processes.run, "-", "-", "0"), order, tmp_path)


def test_another_backend_of_keras_is_refused_where_the_config_names_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A fresh process would use the default one."""
    keras = SimpleNamespace(config=SimpleNamespace(backend=lambda: "torch"))
    monkeypatch.setitem(sys.modules, "keras", keras)  # type: ignore[misc]
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    assert import_keras() is keras
    monkeypatch.delenv("KERAS_BACKEND")
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    with pytest.raises(
        ModelError, match="already uses torch in this process, and this run would use tensorf"
    ):
        import_keras()
    (tmp_path / "keras.json").write_text('{"backend": "torch"}')
    assert import_keras() is keras


def test_settings_of_libraries_are_those_of_a_fresh_process() -> None:
    import sklearn
    import torch
    from torch.optim import optimizer as optimizers

    torch.set_default_dtype(torch.float64)
    torch.set_float32_matmul_precision("medium")
    torch.set_grad_enabled(False)
    torch.set_default_device("meta")
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.mkldnn.set_flags(False)
    torch.backends.mkldnn.conv.fp32_precision = "bf16"
    torch.backends.mha.set_fastpath_enabled(False)
    torch.nn.modules.module.register_module_forward_hook(lambda *_: torch.zeros(1))
    optimizers.register_optimizer_step_post_hook(_ignore)
    sklearn.set_config(transform_output="pandas", assume_finite=True)
    with as_fresh_process():
        now = (
            torch.get_default_dtype(),
            torch.get_float32_matmul_precision(),
            torch.is_grad_enabled(),
            torch.get_default_device(),
            torch.backends.cudnn.allow_tf32,
        )
        assert now == (torch.float32, "highest", True, torch.device("cpu"), True)
        mkldnn = torch.backends.mkldnn
        assert (mkldnn.enabled, mkldnn.conv.fp32_precision) == (True, "none")
        assert torch.backends.mha.get_fastpath_enabled()
        assert torch.nn.Identity()(1) == 1, "a hook of the process runs for every module"
        assert not optimizers._global_optimizer_post_hooks
        settings = sklearn.get_config()
        assert (settings["transform_output"], settings["assume_finite"]) == ("default", False)


# -- the rest of the process


def _ignore(*_: object) -> None:
    pass


CHANGES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "a variable": (lambda: os.environ.get("HOME"), lambda: os.environ.update(HOME="/nowhere")),
    "a new variable": (lambda: os.environ.get("XLA_FLAGS"), lambda: os.environ.update(XLA_FLAGS="--other")),
    "no variable": (lambda: os.environ.get("PATH"), lambda: os.environ.pop("PATH")),
    "search path": (lambda: list(sys.path), lambda: sys.path.insert(0, "/nowhere")),
    "signal": (lambda: signal.getsignal(signal.SIGALRM), lambda: signal.signal(signal.SIGALRM, _ignore)),
    "numpy": (np.geterr, lambda: np.seterr(all="raise")),
    "numpy's generator": (
        np.random.get_bit_generator,
        lambda: np.random.set_bit_generator(np.random.PCG64()),
    ),
    "warnings": (lambda: list(warnings.filters), lambda: warnings.simplefilter("error")),
    "locale": (lambda: locale.setlocale(locale.LC_ALL), lambda: locale.setlocale(locale.LC_ALL, "C")),
    "start": (
        lambda: multiprocessing.get_start_method(allow_none=True),
        lambda: multiprocessing.set_start_method("spawn", force=True),
    ),
    "processors": (
        lambda: os.sched_getaffinity(0),
        lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}),
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_run_changes_in_the_process_is_undone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read, change = CHANGES[name]
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    locale.setlocale(locale.LC_ALL, "C.UTF-8")
    before = read()
    with as_fresh_process():
        change()
        assert read() != before
    assert read() == before


def test_it_is_undone_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--mine")

    def fail() -> None:
        os.environ["XLA_FLAGS"] = "--other"
        raise ModelError("the run failed")

    with pytest.raises(ModelError), as_fresh_process():
        fail()
    assert os.environ["XLA_FLAGS"] == "--mine"


def test_libraries_and_plugins_stay_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what they set for all libraries of the process when they were imported stays set."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "part.py").write_text("VALUE = 1\n")  # `mine` is a namespace package
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("colorsys", "mine", "mine.part"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delenv("KMP_INIT_AT_FORK", raising=False)
    with as_fresh_process():
        __import__("colorsys")
        __import__("mine.part")
        os.environ["KMP_INIT_AT_FORK"] = "FALSE"
    assert "colorsys" in sys.modules
    assert not {"mine", "mine.part"} & set(sys.modules)
    assert os.environ["KMP_INIT_AT_FORK"] == "FALSE"


FREED = """
import contextlib, resource
import numpy as np
from trainwright.runs.processes.isolation import keeping_freed_memory

def pages_of_a_step():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [np.ones(1 << 17) for _ in range(20)]  # 1 MiB each
    del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

with keeping_freed_memory():
    pages_of_a_step()
    print(max(pages_of_a_step() for _ in range(3)))
print(pages_of_a_step())
"""


@pytest.mark.skipif(
    sys.platform != "linux", reason="glibc's allocator can be told to keep memory, others not"
)
def test_a_step_gets_the_memory_that_the_last_one_freed():
    done = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True, check=True)
    kept, at_end = map(int, done.stdout.split())
    page = os.sysconf("SC_PAGE_SIZE")
    assert kept < 20  # new pages from the system, of 20 MiB
    assert at_end > 10 * 2**20 / page  # which it had given back then
