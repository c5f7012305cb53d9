"""Inputs that nobody declared: the user's code reads them, and runs record and compare them."""

import os
import sqlite3
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import save_file

import trainwright
from trainwright.callbacks.base import Callback
from trainwright.datasets.samples.file_hashes import hash_of
from trainwright.errors import ChangedInputsError, DataError, InputError
from trainwright.process.observation.observing import observing
from trainwright.process.observation.record import current
from trainwright.records.manifest import Manifest, ObservedInputs
from trainwright.records.run_dir import RunDir
from trainwright.runs.unrepeatable_calls import unrepeatable_calls

_HEAD = """
import json, os
from pathlib import Path
import numpy as np

def rows(scale):
    x = np.random.default_rng(0).normal(size=(90, 3)).astype("float32")
    return x, (x[:, 0] + 0 * float(scale) > 0).astype("int64")

"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's folder, which modules are imported from."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path.parent / f"{tmp_path.name}-cache"))
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def write_code(project: Path, name: str, body: str) -> dict[str, Any]:
    """Write a module whose function makes the rows, and return the config of a run on them."""
    lines = textwrap.indent(textwrap.dedent(body).strip(), "    ")
    (project / f"{name}.py").write_text(f"{_HEAD}def data():\n{lines}\n    return rows(scale)\n")
    return {"experiment": name, "data": {"type": f"{name}:data"}, "model": "logistic"}


def observed(run: trainwright.Run) -> ObservedInputs:
    """What a run has read."""
    return RunDir(run.path).require_manifest().observed


def _database(value: int) -> None:
    with sqlite3.connect("it.db") as database:
        database.execute("create table if not exists t (a)")
        database.execute("delete from t")
        database.execute(f"insert into t values ({value})")
    database.close()


def _zipped(value: int) -> None:
    with zipfile.ZipFile("it.zip", "w") as archive:
        archive.writestr("value.txt", str(value))
        archive.writestr("zipped_of_it.py", f"A = {value} + 10")


def _tokenizer(value: int) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    Tokenizer(WordLevel({"a": value}, unk_token="a")).save("it.json")


def _compiled(value: int) -> None:
    import torch

    torch.jit.save(torch.jit.trace(lambda x: x * value, torch.ones(1)), "it.pt")


def _cached(folder: str, value: int) -> None:
    place = Path(os.environ["XDG_CACHE_HOME"]) / folder
    place.mkdir(parents=True, exist_ok=True)
    (place / "it.txt").write_text(str(value))


# What reads something, what makes it, and how its change is called.
CASES: dict[str, tuple[str, Callable[[int], Any], str]] = {
    "a file of JSON": (
        "scale = json.loads(Path('it.json').read_text())",
        lambda v: Path("it.json").write_text(str(v)),
        "file: it.json was",
    ),
    "a file in a folder": (
        "scale = open('deep/it.txt').read()",
        lambda v: (Path("deep").mkdir(exist_ok=True), Path("deep/it.txt").write_text(str(v))),
        "file: deep/it.txt was",
    ),
    "a file outside": (
        "scale = (Path.cwd().parent / 'outside.txt').read_text()",
        lambda v: Path("../outside.txt").write_text(str(v)),
        "outside.txt was",
    ),
    "an array": ("scale = np.load('it.npy')", lambda v: np.save("it.npy", v), "file: it.npy was"),
    "a memory map": (
        "scale = np.load('it.npy', mmap_mode='r')[0]",
        lambda v: np.save("it.npy", [v]),
        "file: it.npy was",
    ),
    "a file descriptor": (
        "descriptor = os.open('it.txt', os.O_RDONLY)\nscale = os.read(descriptor, 9)\nos.close(descriptor)",
        lambda v: Path("it.txt").write_text(str(v)),
        "file: it.txt was",
    ),
    "a table": (
        "import pandas as pd\nscale = pd.read_csv('it.csv').a[0]",
        lambda v: pd.DataFrame({"a": [v]}).to_csv("it.csv"),
        "file: it.csv was",
    ),
    "Arrow's reader": (
        "import pyarrow.parquet as pq\nscale = pq.read_table('it.parquet')['a'][0].as_py()",
        lambda v: pd.DataFrame({"a": [v]}).to_parquet("it.parquet"),
        "file: it.parquet was",
    ),
    "HDF5": (
        "import h5py\nscale = h5py.File('it.h5')['a'][0]",
        lambda v: h5py.File("it.h5", "w").create_dataset("a", data=[v]).file.close(),
        "file: it.h5 was",
    ),
    "safetensors": (
        "from safetensors.numpy import load_file\nscale = load_file('it.safetensors')['a'][0]",
        lambda v: save_file({"a": np.array([v])}, "it.safetensors"),
        "file: it.safetensors was",
    ),
    "a database": (
        "import sqlite3\nscale = sqlite3.connect('it.db').execute('select a from t').fetchone()[0]",
        _database,
        "file: it.db was",
    ),
    "a file that is executed": (
        "names = {}\nexec(Path('it.txt').read_text(), names)\nscale = names['A']",
        lambda v: Path("it.txt").write_text(f"A = {v}"),
        "file: it.txt was",
    ),
    "a script that is run": (
        "import runpy\nscale = runpy.run_path('script.py')['A']",
        lambda v: Path("script.py").write_text(f"A = {v} + 10"),
        "file: script.py was",
    ),
    "a module by its path": (
        "from importlib.util import module_from_spec, spec_from_file_location\n"
        "spec = spec_from_file_location('by_path', 'by_path.py')\nmodule = module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\nscale = module.A",
        lambda v: Path("by_path.py").write_text(f"A = {v} + 10"),
        "file: by_path.py was",
    ),
    "a file in a zip file": (
        "import zipfile\nscale = zipfile.ZipFile('it.zip').read('value.txt')",
        _zipped,
        "file: it.zip was",
    ),
    "a variable": (
        "scale = os.environ.get('SCALE_OF_IT', 1)",
        lambda v: os.environ.__setitem__("SCALE_OF_IT", str(v)),
        "variable: SCALE_OF_IT was",
    ),
    "a variable by getenv": (
        "scale = os.getenv('SCALE_OF_IT')",
        lambda v: os.environ.__setitem__("SCALE_OF_IT", str(v)),
        "variable: SCALE_OF_IT was",
    ),
    "the names in a folder": (
        "scale = len(sorted(Path('many').glob('*.txt')))",
        lambda v: (Path("many").mkdir(exist_ok=True), Path(f"many/{v}.txt").write_text("")),
        "file: many/ was",
    ),
    "a file that is not there": (
        "try:\n    scale = open('perhaps.txt').read()\nexcept FileNotFoundError:\n    scale = 1",
        lambda v: Path("perhaps.txt").write_text("2") if v > 1 else None,
        "file: perhaps.txt was missing, is",
    ),
    "a question": (
        "scale = 2 if os.path.exists('flag') else 1",
        lambda v: Path("flag").touch() if v > 1 else None,
        "file: flag was missing, is",
    ),
    "a helper that is imported late": (
        "import helper_of_it\nscale = helper_of_it.A",
        lambda v: Path("helper_of_it.py").write_text(f"A = {v} + 10"),
        "code: module helper_of_it was",
    ),
    "a module in a zip file": (
        "import sys\nsys.path.insert(0, 'it.zip')\nimport zipped_of_it\nscale = zipped_of_it.A",
        _zipped,
        "file: it.zip was",
    ),
    "a file in an open folder": (
        "folder = os.open('deep', os.O_RDONLY)\ndescriptor = os.open('it.txt', os.O_RDONLY, dir_fd=folder)\n"
        "scale = os.read(descriptor, 9)\nos.close(descriptor)",
        lambda v: (Path("deep").mkdir(exist_ok=True), Path("deep/it.txt").write_text(str(v))),
        "file: deep/it.txt was",
    ),
    "a file beside what a link leads to": (
        "scale = open('link/../it.txt').read()",
        lambda v: (
            Path("a/b").mkdir(parents=True, exist_ok=True),
            Path("link").is_symlink() or Path("link").symlink_to("a/b"),
            Path("a/it.txt").write_text(str(v)),
        ),
        "file: a/it.txt was",
    ),
    "where a link leads": (
        "scale = len(os.readlink('link'))",
        lambda v: (Path("link").unlink(missing_ok=True), Path("link").symlink_to("a" * v)),
        "file: link@ was",
    ),
    "a question about access": (
        "scale = 1 + os.access('flag', os.R_OK)",
        lambda v: Path("flag").touch() if v > 1 else None,
        "file: flag was missing, is",
    ),
    "a question about a link": (
        "scale = 1 + os.path.lexists('flag')",
        lambda v: Path("flag").touch() if v > 1 else None,
        "file: flag was missing, is",
    ),
    "the size of a file without its link": (
        "scale = os.lstat('it.txt').st_size",
        lambda v: Path("it.txt").write_text("1" * v),
        "file: it.txt was",
    ),
    "a hidden name": (
        "scale = len(os.listdir('deep'))",
        lambda v: (Path("deep").mkdir(exist_ok=True), Path(f"deep/.{v}").touch()),
        "file: deep/ was",
    ),
    "names in an open folder": (
        "scale = len(os.listdir(os.open('deep', os.O_RDONLY)))",
        lambda v: (Path("deep").mkdir(exist_ok=True), Path(f"deep/{v}").touch()),
        "file: deep/ was",
    ),
    "a module that is not there": (
        "import importlib.util\nscale = 1 + (importlib.util.find_spec('perhaps_of_it') is None)",
        lambda v: Path("perhaps_of_it.py").touch() if v > 1 else None,
        "file: perhaps_of_it.py was missing, is",
    ),
    "a file of Arrow's own": (
        "import pyarrow as pa\nwith pa.OSFile('it.txt') as file:\n    scale = file.read()\n"
        "assert isinstance(file, pa.OSFile)",
        lambda v: Path("it.txt").write_text(str(v)),
        "file: it.txt was",
    ),
    "a file system of Arrow's": (
        "from pyarrow import fs\nscale = fs.LocalFileSystem().open_input_file('it.txt').read()",
        lambda v: Path("it.txt").write_text(str(v)),
        "file: it.txt was",
    ),
    "a tokenizer": (
        "from tokenizers import Tokenizer\nscale = Tokenizer.from_file('it.json').get_vocab()['a']",
        _tokenizer,
        "file: it.json was",
    ),
    "a compiled teacher": (
        "import torch\nscale = torch.jit.load('it.pt')(torch.ones(1)).item()",
        _compiled,
        "file: it.pt was",
    ),
    "the user's folder of caches": (
        "scale = open(os.environ['XDG_CACHE_HOME'] + '/mine/it.txt').read()",
        lambda v: _cached("mine", v),
        "mine/it.txt was",
    ),
    "a thread": (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "scale = list(ThreadPoolExecutor().map(np.loadtxt, ['it.txt']))[0]",
        lambda v: Path("it.txt").write_text(str(v)),
        "file: it.txt was",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_change_of_what_was_read_is_named(
    project: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, case: str
) -> None:
    body, make, told = CASES[case]
    monkeypatch.setenv("SCALE_OF_IT", "0")
    make(1)
    config = write_code(project, f"reads_{list(CASES).index(case)}", body)
    run = trainwright.train(config, quiet=True)
    assert run.result["determinism"]["tier"] == "bitwise"
    assert trainwright.train(config, reuse=True, quiet=True).id == run.id
    make(2)
    again = trainwright.train(config, reuse=True, quiet=True)
    assert again.id != run.id
    assert told in caplog.text


UNSEEN = {
    "a program": ("import subprocess\nscale = subprocess.check_output(['echo', '1'])", "the program echo"),
    "a shell": ("scale = os.popen('echo 1').read()", "the program"),
    "the network": (
        "import socket\ntry:\n    socket.create_connection(('127.0.0.1', 9), 0.1)\nexcept OSError:\n    pass\nscale = 1",
        "the network (127.0.0.1)",
    ),
    "all variables": ("scale = len(dict(os.environ))", "all environment variables"),
    "a copy that is used": ("env = os.environ.copy()\nscale = len(env)", "all environment variables"),
    "a program of Git": ("import subprocess\nsubprocess.run(['git', 'help'])\nscale = 1", "the program git"),
    "a pipe": (
        "import tempfile, threading\npipe = tempfile.mktemp()\nos.mkfifo(pipe)\n"
        "writes = lambda: open(pipe, 'w').write('1')\nthreading.Thread(target=writes).start()\n"
        "scale = open(pipe).read()",
        "another process (pipe",
    ),
    "shared memory": (
        "from multiprocessing.shared_memory import SharedMemory\nown = SharedMemory(create=True, size=1)\n"
        "its = SharedMemory(name=own.name)\nits.close()\nown.close()\nown.unlink()\nscale = 1",
        "another process (shared memory",
    ),
    "the clock": ("import time\nscale = time.time()", "the clock (unseen_8, line"),
}


HARMLESS = {
    "Git is asked": "subprocess.run(['git', '-C', '.', 'rev-parse', 'HEAD'], check=False, capture_output=True)",
    "a shell asks Git": "os.popen('git describe --always').close()",
    "variables of a program": "subprocess.run(['git', 'status'], env=dict(os.environ, A='1'), check=False)",
    "a copy for a program": "env = os.environ.copy()\nenv['A'] = '1'\nsubprocess.run(['git', 'status'], env=env)",
    "an inherited environment": "subprocess.run(['git', 'status'], env=os.environ)",
    "proxies": "import urllib.request\nurllib.request.getproxies()",
    "a folder that is removed": "import shutil\nshutil.rmtree('old')\nos.makedirs('old', exist_ok=True)",
    "a copy over a file": "import shutil\nopen('new.txt', 'w').close()\nshutil.copy('new.txt', 'old.txt')",
    "the state of Git": "open('.git/HEAD').read()",
    "a tool's cache": "open(os.environ['XDG_CACHE_HOME'] + '/pip/it.txt').read()",
    "a deadline": "import time\nend = time.time() + 60\nwhile time.time() < end:\n    break",
}


@pytest.mark.parametrize("case", HARMLESS)
def test_what_decides_nothing_is_no_input(project: Path, case: str) -> None:
    for folder in ("old", ".git"):
        (project / folder).mkdir()
        (project / folder / "HEAD").write_text("1")
    (project / "old.txt").write_text("1")
    _cached("pip", 1)
    body = f"import subprocess\n{HARMLESS[case]}\nscale = 1"
    run = trainwright.train(write_code(project, f"harmless_{list(HARMLESS).index(case)}", body), quiet=True)
    assert (observed(run).unseen, observed(run).files) == ([], {})
    assert set(observed(run).variables) <= {"REQUEST_METHOD"}
    assert run.result["determinism"]["tier"] == "bitwise"


@pytest.mark.parametrize("case", UNSEEN)
def test_what_cannot_be_observed_lowers_the_tier(project: Path, case: str) -> None:
    body, told = UNSEEN[case]
    config = write_code(project, f"unseen_{list(UNSEEN).index(case)}", body)
    run = trainwright.train(config, quiet=True)
    found = run.result["determinism"]
    assert found["tier"] == "statistical"
    assert f"the code uses {told}" in found["reason"]
    with pytest.raises(InputError, match="bitwise was requested"):
        trainwright.train({**config, "training": {"determinism": "bitwise"}}, quiet=True)


def test_reading_what_the_run_writes_itself_is_no_input(project: Path) -> None:
    body = """
    if not os.path.exists("cache"):
        os.makedirs("cache")
    Path("cache/made.txt").write_text("2")
    scale = Path("cache/made.txt").read_text()
    """
    config = write_code(project, "writes", body)
    run = trainwright.train(config, quiet=True)
    assert observed(run) == ObservedInputs()
    assert trainwright.train(config, reuse=True, quiet=True).id == run.id


def test_values_of_credentials_are_neither_kept_nor_compared(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_KEY", "one")
    config = write_code(project, "secretive", "scale = len(os.environ['MY_API_KEY'])")
    run = trainwright.train(config, quiet=True)
    assert observed(run).variables == {"MY_API_KEY": None}
    monkeypatch.setenv("MY_API_KEY", "two")
    assert trainwright.train(config, reuse=True, quiet=True).id == run.id


def test_variables_and_files_of_the_runs_own_are_no_changes(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FLAG_OF_IT", raising=False)
    act = (
        "import os; os.environ.setdefault('FLAG_OF_IT', '1'); os.listdir('.'); "
        "open(f'own-{int(self.steps)}.txt', 'w').write('1')"
    )
    config = network(project, "own_things", act)
    run = trainwright.train(config, verdict=lambda *_: "pause", quiet=True)
    found = observed(run)
    assert found.variables == {"FLAG_OF_IT": "unset"}
    assert list(found.files) == ["./"]
    assert trainwright.resume(run, quiet=True).status == "completed"
    assert run.result["determinism"]["tier"] == "bitwise"


def test_runs_of_one_process_have_inputs_of_their_own(project: Path) -> None:
    for name in ("first", "second"):
        (project / f"{name}.txt").write_text("1")
        network(project, f"reads_{name}", f"open('{name}.txt').read()")
    config = network(project, "reads_both", "pass")
    sections = {name: config[name] for name in ("data", "training", "checkpoint")}
    trainwright.benchmark(
        {"experiment": "both", "model": "reads_first:Net", **sections},
        models=["reads_first:Net", "reads_second:Net"],
        quiet=True,
    )
    runs = [
        RunDir(one).require_manifest()
        for one in Path("runs", "both").iterdir()
        if (one / "manifest.json").exists()
    ]
    found = [list(run.observed.files) for run in runs]
    assert sorted(found) == [["first.txt"], ["second.txt"]]


def test_a_file_that_was_asked_for_before_it_is_read(project: Path) -> None:
    (project / "late.txt").write_text("1")
    source = _NET.format(act="open('late.txt').read()").replace(
        "super().__init__()", "super().__init__(); import os; os.path.exists('late.txt')"
    )
    config = network(project, "asks_first", "pass")
    (project / "asks_first.py").write_text(source)
    run = trainwright.train(config, verdict=lambda *_: "pause", quiet=True)
    assert len(observed(run).files["late.txt"]) == 64


_NET = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        if self.training:
            self.steps += 1
            if self.steps == 6:
                {act}
        return self.layer(x)
"""


def network(project: Path, name: str, act: str) -> dict[str, Any]:
    """The config of a run whose network acts in its sixth step."""
    (project / f"{name}.py").write_text(_NET.format(act=act))
    return {
        "experiment": name,
        "data": {"type": "iris"},
        "model": {"type": f"{name}:Net"},
        "training": {"max_steps": 20, "batch_size": 16, "threads": 1},
        "checkpoint": {"every_n_steps": 5, "every_n_minutes": None},
    }


def test_what_is_read_in_a_late_step_is_an_input_of_a_resume(project: Path) -> None:
    (project / "late.txt").write_text("1")
    config = network(project, "late_reader", "open('late.txt').read(); open('later.txt', 'w').write('1')")
    run = trainwright.train(config, ["training.max_steps=16"], verdict=lambda *_: "pause", quiet=True)
    assert list(observed(run).files) == ["late.txt"]
    (project / "late.txt").write_text("2")
    with pytest.raises(ChangedInputsError, match=r"file: late\.txt was"):
        trainwright.resume(run, quiet=True)
    (project / "late.txt").write_text("1")
    assert trainwright.resume(run, quiet=True).status == "completed"


def test_a_file_that_changes_while_it_is_used_lowers_the_tier(
    project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (project / "own.txt").write_text("1")
    config = network(project, "changes", "open('own.txt').read(); open('own.txt', 'a').write('1')")
    run = trainwright.train(config, quiet=True)
    assert run.result["determinism"]["tier"] == "statistical"
    assert "files that are read were changed during the training" in caplog.text
    assert "own.txt" in run.result["determinism"]["reason"]
    config["training"]["determinism"] = "bitwise"
    with pytest.raises(DataError, match="bitwise was requested, but files that are read were changed"):
        trainwright.train(config, quiet=True)


def test_a_repetition_names_what_has_changed(project: Path) -> None:
    (project / "late.txt").write_text("1")
    run = trainwright.train(network(project, "repeated", "open('late.txt').read()"), quiet=True)
    assert trainwright.reproduce(run).verdict == "identical"
    (project / "late.txt").write_text("2")
    found = trainwright.reproduce(run)
    assert [one.what for one in found.inputs] == ["late.txt"]


def test_callbacks_and_what_is_ours_are_no_inputs(project: Path) -> None:
    (project / "rows.csv").write_text("a,b\n" + "".join(f"{i},{i % 2}\n" for i in range(60)))

    class Reader(Callback):
        def on_log(self, step: int, metrics: Any) -> None:
            subprocess.run(["echo", "1"], check=True, capture_output=True)
            Path("rows.csv").read_text()

    config = {"experiment": "plain", "data": {"path": "rows.csv", "target": "b"}, "model": "mlp"}
    run = trainwright.train(config, ["training.max_steps=3"], callbacks=[Reader()], quiet=True)
    assert observed(run) == ObservedInputs()


def test_very_many_files_of_a_folder_are_noted_as_one(project: Path) -> None:
    (project / "many").mkdir()
    for index in range(210):
        (project / "many" / f"{index}.txt").write_text(str(index))
    body = "scale = sum(int(open(f'many/{i}.txt').read()) for i in range(210))"
    config = write_code(project, "folder_reader", body)
    run = trainwright.train(config, quiet=True)
    assert list(observed(run).files) == ["many/*"]
    (project / "many" / "209.txt").write_text("0")
    assert trainwright.train(config, reuse=True, quiet=True).id != run.id


def test_nothing_is_noted_outside_of_runs(project: Path) -> None:
    kind, stat = type(os.environ), os.stat
    with observing(hash_of):
        assert os.environ.__class__ is not kind
    assert current() is None
    assert (os.environ.__class__, os.stat) == (kind, stat)


def test_files_that_have_moved_are_no_difference() -> None:
    before = ObservedInputs(files={"old.csv": "a1", "other.csv": "b1"})
    now = ObservedInputs(files={"old.csv": "missing", "new.csv": "a1", "other.csv": "missing"})
    assert [one.what for one in before.differences(now)] == ["other.csv"]


def test_times_that_are_only_shown_do_not_count(project: Path) -> None:
    source = """
    import time, datetime as dt
    from time import time as now
    import pandas as pd, numpy as np, uuid
    begin = time.time()

    class Timer:
        def __init__(self):
            self.began = now()

        def show(self):
            print(f"{now() - self.began} {dt.datetime.now()}")

    def used():
        seconds = time.time_ns()
        return seconds % 7

    def elapsed():
        return time.time() - begin

    day = dt.date.today().weekday()
    hour = pd.Timestamp.now().hour
    born = 1_700_000_000
    age = int(time.time()) - born
    draw = np.random.default_rng()
    name = str(uuid.uuid4())
    seeded = np.random.default_rng(3)
    print(uuid.uuid4())
    end = time.time() + 60
    end = end + 1
    if time.time() < end or 0 < end - time.time():
        pass
    stamp = np.datetime64("now")
    stamps = pd.to_datetime(["2020-01-01"]), pd.Timestamp("today")
    fixed = np.datetime64("2020-01-01")
    late = time.time() > 1_700_000_000
    """
    (project / "clocks.py").write_text(textwrap.dedent(source))
    __import__("clocks")
    code = Manifest(run_id="r", experiment="e").code.model_copy(update={"modules": {"clocks": "1"}})
    lines = [f"the clock (clocks, line {number})" for number in (15, 21, 22, 24, 33, 34, 36)]
    lines += [f"random numbers without a seed (clocks, line {number})" for number in (25, 26)]
    assert sorted(unrepeatable_calls(code)) == sorted(lines)


def test_readers_of_native_code_take_content_as_before() -> None:
    import onnxruntime
    import pyarrow as pa
    import pyarrow.parquet as pq

    with observing(hash_of):
        buffer = pa.BufferOutputStream()
        pq.write_table(pa.table({"a": [1]}), buffer)
        assert pq.read_table(pa.BufferReader(buffer.getvalue())).num_rows == 1
        with pytest.raises(Exception, match=r"(?i)protobuf|parse"):
            onnxruntime.InferenceSession(b"\0no model")


@pytest.mark.services
def test_what_another_process_reads_is_an_input(project: Path) -> None:
    for name in ("of-0", "of-1", "late-1"):
        (project / f"{name}.txt").write_text("1")
    source = """
    import os, torch
    RANK = os.environ.get("RANK")

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 3)
            open(f"of-{RANK}.txt").read()

        def forward(self, x):
            if RANK == "1" and self.training:
                open("late-1.txt").read()
            return self.layer(x)
    """
    config = network(project, "in_ranks", "pass")
    (project / "in_ranks.py").write_text(textwrap.dedent(source))
    config["distributed"] = {"virtual": {"data": 2}, "nproc": 2}
    run = trainwright.train(config, ["training.max_steps=8"], quiet=True)
    assert sorted(observed(run).files) == ["late-1.txt", "of-0.txt", "of-1.txt"]
    assert run.result["determinism"]["tier"] == "bitwise"
    (project / "late-1.txt").write_text("2")
    assert [one.what for one in trainwright.reproduce(run).inputs] == ["late-1.txt"]
