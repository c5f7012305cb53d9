"""Fast tests run first, so that a mistake is seen at once, unless tests run side by side.

Repetition runs in `make soak` only, and what needs real servers or minutes in `make test-services`.
"""

import fcntl
import functools
import hashlib
import logging
import os
import shutil
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from az_server import AzServer, azurite
from cpu_time import CpuTime
from gs_server import GsServer
from postgres_server import PostgresServer, postgresql
from s3_server import S3Server
from trainwright import redact

# Tests run side by side: threads that wait for each other must not keep the processors from those that work.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# SHAP's small functions take 12 s to be compiled, in each process, and none that anyone notices as they are.
os.environ.setdefault("NUMBA_DISABLE_JIT", "1")

# Where the environment forbids bytecode, each process would compile all that it imports: half of the suite's time.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# On a busy machine all is slow, the making of examples too, and that is no fault of the tests.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

TESTS = Path(__file__).parent
MEMORY = Path("/dev/shm")
ROOM = 6 << 30  # bytes; the files of all tests take less than one
SOAK = TESTS / "soak"
SERVERS = frozenset({"az", "postgres"})  # fixtures that start a program which is not of Python
THINNED: dict[str, list[str] | int] = tomllib.loads((SOAK / "thinned.toml").read_text(encoding="utf-8"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="run the repetitions, and nothing else")
    parser.addoption(
        "--services", action="store_true", help="run what needs real servers or minutes, and nothing else"
    )
    parser.addoption("--share", default="1/1", help="with --soak: which part of them, for example 2/4")
    parser.addoption(
        "--gpu", action="store_true", help="show the GPUs to the tests, which do not see them else"
    )
    parser.addoption("--cpu", metavar="FOLDER", help="write what each test takes; see cpu_time.py")


def pytest_configure(config: pytest.Config) -> None:
    """Keep temporary files in memory: on a disk, tests wait for fsync longer than they compute.

    What `make soak` repeats meets a real disk. So does what is given a TMPDIR, whose files are also kept.
    """
    config.temporary = None
    if not config.getoption("--gpu"):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # `training.device: auto` is the CPU everywhere
    if not (config.getoption("--soak") or "TMPDIR" in os.environ) and MEMORY.is_mount():
        for left in MEMORY.glob("trainwright-tests-*"):  # by sessions that were killed
            if not Path("/proc", left.name.split("-")[2]).exists():
                shutil.rmtree(left, ignore_errors=True)
        if shutil.disk_usage(MEMORY).free >= ROOM:
            config.temporary = tempfile.mkdtemp(prefix=f"trainwright-tests-{os.getpid()}-", dir=MEMORY)
            os.environ["TMPDIR"] = config.temporary  # of the workers, too
            tempfile.tempdir = None  # ask again
    if (folder := config.getoption("--cpu")) and not getattr(config.option, "numprocesses", None):
        config.pluginmanager.register(CpuTime(Path(folder)))  # in the workers, where there are any


def pytest_unconfigure(config: pytest.Config) -> None:
    is_own = config.temporary is not None and f"-{os.getpid()}-" in Path(config.temporary).name
    if is_own:  # a process that a test has forked may come here, too
        shutil.rmtree(config.temporary, ignore_errors=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:  # side by side, a class that shares its set-up stays together
        items.sort(key=lambda item: item.get_closest_marker("slow") is not None)
    if any("::" in argument for argument in config.args):
        return  # what is asked for by its name is run
    if not (config.option.keyword or config.option.markexpr) and config.args == ["tests"]:
        check_thinned(items)
    soak, services = config.getoption("--soak"), config.getoption("--services")
    number, shares = map(int, config.getoption("--share").split("/"))
    repetitions = repetitions_of(items)
    kept = [
        item
        for item in items
        if (item in repetitions) == soak
        and (share_of(item.nodeid, shares) == number if soak else needs_services(item) == services)
    ]
    chosen = set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = kept


def function_of(item: pytest.Item) -> str:
    """The test's name in thinned.toml: its file and its function, without parameters."""
    return f"{name_of(item.path)}::{item.nodeid.partition('::')[2].partition('[')[0]}"


@functools.cache
def name_of(path: Path) -> str:
    return path.relative_to(TESTS).as_posix()


def parameters_of(item: pytest.Item) -> str:
    return item.callspec.id if hasattr(item, "callspec") else ""


def repetitions_of(items: list[pytest.Item]) -> set[pytest.Item]:
    """The tests that repeat, with other numbers, what others check."""
    found, seen = set[pytest.Item](), Counter[str]()
    for item in items:
        function = function_of(item)
        kept = THINNED.get(function, THINNED.get(function.rpartition("::")[0]))
        if item.get_closest_marker("soak") or name_of(item.path).startswith("soak/"):
            is_one = True
        elif isinstance(kept, int):
            is_one = seen[function] % kept != 0
        else:
            is_one = kept is not None and parameters_of(item) not in kept
        seen[function] += 1
        if is_one:
            found.add(item)
    return found


def needs_services(item: pytest.Item) -> bool:
    """Whether a test is for `make test-services`."""
    fixtures = getattr(item, "fixturenames", ())
    return item.get_closest_marker("services") is not None or not SERVERS.isdisjoint(fixtures)


def share_of(name: str, shares: int) -> int:
    """The share (from 1) that a test belongs to: by its name alone, so that all machines agree."""
    return int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) % shares + 1


def check_thinned(items: list[pytest.Item]) -> None:
    """Refuse a list that names tests which are not there any more: they would run nowhere, or all of them."""
    there: dict[str, set[str]] = {}
    for item in items:
        there.setdefault(function_of(item), set()).add(parameters_of(item))
        there.setdefault(function_of(item).rpartition("::")[0], set())
    stale = [name for name in THINNED if name not in there]
    stale += [
        f"{name}[{one}]"
        for name, kept in THINNED.items()
        if not isinstance(kept, int)
        for one in kept
        if one not in there.get(name, ())
    ]
    if stale:
        raise pytest.UsageError(f"tests/soak/thinned.toml names tests that are not there: {', '.join(stale)}")


@pytest.fixture(scope="session")
def empty_mlflow_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sqlite store with its tables, to be copied: MLflow takes seconds to make them, once for all workers."""
    if find_spec("mlflow") is None:
        pytest.skip("MLflow is not installed")
    folder = tmp_path_factory.getbasetemp()
    file = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "mlflow.db"
    with open(file.with_suffix(".lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            import mlflow

            mlflow.MlflowClient(f"sqlite:///{file}.new").search_experiments()
            Path(f"{file}.new").rename(file)
    return file


@pytest.fixture(autouse=True)
def own_logger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands in threads of a test may each restore what the other one has set."""
    log = logging.getLogger("trainwright")
    monkeypatch.setattr(log, "propagate", True)
    monkeypatch.setattr(log, "level", logging.NOTSET)
    log.setLevel(logging.NOTSET)  # which forgets what is cached of the level


@pytest.fixture(autouse=True)
def no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test gave as a secret must not be hidden in the messages of the next one."""
    monkeypatch.setattr(redact, "_secrets", redact._Secrets())


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """An S3 service on loopback."""
    server = S3Server()
    yield server
    server.close()


@pytest.fixture
def bucket(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a new bucket; the environment leads to its service."""
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    return s3.new_bucket()


@pytest.fixture(scope="session")
def gs() -> Iterator[GsServer]:
    """A Google Cloud Storage service on loopback."""
    server = GsServer()
    yield server
    server.close()


@pytest.fixture
def gs_bucket(gs: GsServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a new bucket; the environment leads to its service."""
    for name, value in gs.environment().items():
        monkeypatch.setenv(name, value)
    return gs.new_bucket()


@pytest.fixture(scope="session")
def az(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzServer]:
    """An Azure Blob Storage service on loopback."""
    if (program := azurite()) is None:
        pytest.skip("Azurite is not installed: `make azurite`, or `npm install --global azurite`")
    server = AzServer(program, tmp_path_factory.mktemp("azurite"))
    yield server
    server.close()


@pytest.fixture
def az_container(az: AzServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a new container; the environment leads to its service."""
    for name, value in az.environment().items():
        monkeypatch.setenv(name, value)
    return az.new_bucket()


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A PostgreSQL server on loopback."""
    if (programs := postgresql()) is None:
        pytest.skip("PostgreSQL is not installed: `apt-get install postgresql`, or `pip install pgserver`")
    server = PostgresServer(programs, tmp_path_factory.mktemp("postgres"))
    yield server
    server.close()


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test leaves working copies of runs in the user's cache, nor a key in their account."""
    monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))
