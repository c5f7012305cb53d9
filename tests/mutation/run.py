"""Put faults into the engine, one at a time, and demand that a test notices.

    python tests/mutation/run.py                       all of targets.toml
    python tests/mutation/run.py --share 2/4           a quarter of it
    python tests/mutation/run.py --only engine/saver   what is called so, as FILE or FILE::FUNCTION

One process imports and collects everything. Each fault then gets a fork of it, where the changed functions
get their changed code, and the tests that reach the changed line run until one fails. As a control, one fork for
each group gets the same code anew, without a fault: no test may fail there. The run ends with 1 where a fault
survives that `survivors.toml` does not explain, or where less than 95% are caught. Explained faults, and those that
could not be put in, count as not caught.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import hashlib
import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, islice
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, TypeVar

import pytest

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent
SOURCES = TESTS.parent / "src" / "trainwright"
LEAST_CAUGHT = 0.95
T = TypeVar("T")
SURVIVED, CAUGHT, NOT_IN, NOT_IMPORTED, BROKEN = 0, 1, 201, 202, 203  # how the process of a fault ends
SURVIVALS = {SURVIVED: "survived", NOT_IN: "could not be put in", BROKEN: "could not be tried"}
CATCHES = {
    CAUGHT: "a test fails",
    NOT_IMPORTED: "its file cannot be imported",
    -signal.SIGALRM: "a test waits for ever",
    -signal.SIGPROF: "a test computes for ever",
}
# Seconds that a test may take beyond twice what it took without a fault (and traced, which is slow): on the
# clock, and of the processors.
DEADLOCK, ENDLESS = 20.0, 5.0
EXPLAINED = tomllib.loads((HERE / "survivors.toml").read_text(encoding="utf-8"))
EXPLAINED_SECONDS = 2.0  # of tests on a fault that is explained: enough to see most reasons that are not true
# Imported before the forks, once for all of them.
WARM = [
    "pandas",
    "sklearn.datasets",
    "torch",
    "safetensors.torch",
    "trainwright.api",
    "trainwright.frameworks.torch.models",
]
sys.path.insert(0, str(HERE))

from mutants import Mutant, mutants_of  # noqa: E402


@dataclass
class Guard:
    """A test that may notice a fault: how long it takes, and which lines it reaches."""

    item: pytest.Item
    seconds: float
    lines: dict[str, set[int]]
    kills: int = 0


@dataclass
class Group:
    """Files to put faults into, and the tests that guard them."""

    name: str
    keys: set[str]  # of all its faults, those of other shares included
    mutants: list[Mutant]
    guards: list[str]
    sources: dict[str, str]
    known: list[Guard] = field(default_factory=list)
    seconds: float = 0.0  # of the processors

    def guards_of(self, mutant: Mutant) -> list[Guard]:
        """Return the tests that reach a fault, the likeliest to notice it and the fastest first."""
        reaching = [g for g in self.known if any(n in mutant.lines for n in g.lines.get(mutant.file, ()))]
        reaching.sort(key=lambda guard: guard.seconds / (1 + guard.kills))
        if mutant.key not in EXPLAINED:
            return reaching
        ends = accumulate(guard.seconds for guard in reaching)
        return [guard for guard, end in zip(reaching, ends, strict=True) if end < EXPLAINED_SECONDS]


def groups_of(only: str, share: str) -> list[Group]:
    """Read targets.toml, as far as it is wanted."""
    number, shares = map(int, share.split("/"))
    groups = []
    targets = tomllib.loads((HERE / "targets.toml").read_text(encoding="utf-8"))["groups"]
    for group, entry in targets.items():
        wanted = [
            name for name in entry["files"] if any(part.split("::")[0] in name for part in only.split(","))
        ]
        sources = {name: (SOURCES / name).read_text(encoding="utf-8") for name in wanted}
        mutants = [m for name, source in sources.items() for m in mutants_of(name, source)]
        mutants = [m for m in mutants if is_wanted(m.key, only)]
        keys = {mutant.key for mutant in mutants}
        mutants = [m for m in mutants if _number(m.key) % shares == number - 1]
        guards = [str(TESTS / guard) for guard in entry["guards"]]
        if keys:
            groups.append(Group(group, keys, mutants, guards, sources))
    return groups


def is_wanted(key: str, only: str) -> bool:
    """Return whether a fault is in one of the functions that are asked for."""
    file, function, _ = key.split("::", 2)
    return any(part in f"{file}::{function}" for part in only.split(","))


def _number(text: str) -> int:
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16)


class Run:
    """The pytest plugin that replaces the running of all tests by the running of some on each fault."""

    def __init__(self, groups: list[Group], jobs: int) -> None:
        self.groups = groups
        self.survived: dict[str, str] = {}  # by the fault: how
        self.caught: dict[str, str] = {}
        self.failed: list[str] = []
        self.seconds = 0.0  # of the processors, without a fault
        self._jobs = jobs
        self._has_fault = False
        self._errors = os.fdopen(os.dup(2), "w")  # forks write nothing but what fails without a fault
        self._folder = Path(tempfile.mkdtemp(prefix="mutation-"))
        self._tracer = Tracer({str(SOURCES / name) for group in groups for name in group.sources})

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._session = session
        try:
            self._learn(session.items)
            self._functions = live_functions()
            gc.collect()
            gc.freeze()  # what all children share is not copied for their collections of garbage
            self._control()
            self._has_fault = True
            for group in self.groups:
                self._mutate(group)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self._has_fault:
            print(report.nodeid, report.longreprtext, sep="\n", file=self._errors, flush=True)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        with self._tracer.fixture(fixturedef):
            return (yield)

    # -- without a fault

    def _learn(self, items: list[pytest.Item]) -> None:
        """Run each test once, a file at a time, and note how long it takes and which lines it reaches."""
        files: dict[str, list[pytest.Item]] = defaultdict(list)
        for item in items:
            files[str(item.path)].append(item)
        reports = {name: self._folder / f"{_number(name)}.json" for name in files}
        tasks = [(name, partial(self._trace, some, reports[name])) for name, some in files.items()]
        for name, code, seconds in self._forks(tasks):
            self.seconds += seconds
            if code:
                self.failed.append(f"{name}: ended with {code} where there is no fault")
        late: set[str] = set()
        for name, some in files.items():
            report = reports[name]
            known, imported = json.loads(report.read_text()) if report.exists() else ({}, [])
            late.update(imported)
            self.failed += [f"{i} fails where there is no fault" for i, (ok, _, _) in known.items() if not ok]
            guards = [
                Guard(item, known[item.nodeid][1], {f: set(n) for f, n in known[item.nodeid][2].items()})
                for item in some
                if item.nodeid in known and known[item.nodeid][0]
            ]
            for group in self.groups:
                if any(name == guard or name.startswith(f"{guard}/") for guard in group.guards):
                    group.known += guards
        for module in sorted(late):  # once, and not again for each fault
            with contextlib.suppress(Exception):
                importlib.import_module(module)

    def _trace(self, items: list[pytest.Item], report: Path) -> int:
        known, before = {}, set(sys.modules)
        for i, item in enumerate(items):
            failed, started = self._session.testsfailed, time.perf_counter()
            with self._tracer.test():
                self._test(item, items[i + 1] if i + 1 < len(items) else None)
            lines = self._tracer.lines_of(item)
            known[item.nodeid] = (self._session.testsfailed == failed, time.perf_counter() - started, lines)
        here = {name.partition(".")[0] for name in before}
        late = [name for name in sys.modules.keys() - before if name.partition(".")[0] in here]
        report.write_text(json.dumps([known, late]))
        return 0

    def _control(self) -> None:
        """Put the code of each group in as it is: a test that fails would count as one that notices faults."""
        tasks = []
        for group in self.groups:
            codes = {
                name: compile(source, str(SOURCES / name), "exec", dont_inherit=True)
                for name, source in group.sources.items()
            }
            guards, at = (
                sorted(group.known, key=lambda guard: guard.seconds),
                self._folder / f"{group.name}.at",
            )
            tasks.append(((guards, at), partial(self._attack, codes, guards, at)))
        for (guards, at), code, seconds in self._forks(tasks):
            self.seconds += seconds
            if code != SURVIVED:
                name = guards[int(at.read_text())].item.nodeid if at.exists() else "the control"
                self.failed.append(f"{name} fails where the code is put in as it is ({code})")

    # -- with a fault

    def _mutate(self, group: Group) -> None:
        for (mutant, guards, at), code, seconds in self._forks(self._attacks(group)):
            group.seconds += seconds
            if code in SURVIVALS:
                result = self.survived[mutant.key] = SURVIVALS[code]
            else:
                self.caught[mutant.key] = CATCHES.get(code, "the process dies")
                result = f"caught ({self.caught[mutant.key]})"
                if at.exists():
                    guards[int(at.read_text())].kills += 1
            done = len(self.survived) + len(self.caught)
            print(f"{done:5d} {seconds:6.1f} s {result}: {mutant.key}", flush=True)

    def _attacks(self, group: Group) -> Iterator[tuple[tuple[Mutant, list[Guard], Path], Callable[[], int]]]:
        """Yield the attacks that `_forks` makes, one by one: what has caught others so far comes first."""
        for mutant in group.mutants:
            guards, at = group.guards_of(mutant), self._folder / f"{_number(mutant.key)}.at"
            if guards:
                code = mutant.compiled(group.sources[mutant.file], str(SOURCES / mutant.file))
                yield (
                    (mutant, guards, at),
                    partial(self._attack, {mutant.file: code}, guards, at, mutant.at_import),
                )
            else:
                self.survived[mutant.key] = "no test reaches it"

    def _attack(
        self, codes: dict[str, CodeType], guards: list[Guard], at: Path, at_import: bool = True
    ) -> int:
        """Put code in, run tests until one fails, and return how that ended."""
        for name, code in codes.items():
            try:
                is_in = put_in(name, code, self._functions[str(SOURCES / name)], at_import)
            except ImportError:
                return NOT_IMPORTED
            if not is_in:
                return NOT_IN
        for alarm in (signal.SIGALRM, signal.SIGPROF):
            signal.signal(alarm, signal.SIG_DFL)
        for i, guard in enumerate(guards):
            at.write_text(str(i))
            signal.setitimer(signal.ITIMER_REAL, DEADLOCK + 5 * guard.seconds)
            signal.setitimer(signal.ITIMER_PROF, ENDLESS + 2 * guard.seconds)
            try:
                self._test(guard.item, guards[i + 1].item if i + 1 < len(guards) else None)
            except (KeyboardInterrupt, pytest.exit.Exception):
                return CAUGHT
            if self._session.testsfailed:
                return CAUGHT
        return SURVIVED

    # -- forks

    def _forks(self, tasks: Iterable[tuple[T, Callable[[], int]]]) -> Iterator[tuple[T, int, float]]:
        """Call each function in a fork, and yield what it is for, what it returned, and its processor seconds."""
        pending, running = iter(tasks), dict[int, T]()
        while True:
            for subject, task in islice(pending, self._jobs - len(running)):
                running[self._fork(task)] = subject
            if not running:
                return
            pid, status, used = os.wait4(-1, 0)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # what a test of it left behind
            shutil.rmtree(self._folder / f"base-{pid}", ignore_errors=True)
            yield running.pop(pid), os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime

    def _fork(self, task: Callable[[], int]) -> int:
        sys.stdout.flush()
        if pid := os.fork():
            return pid
        code = BROKEN
        try:
            os.setsid()
            sink = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(sink, fd)
            base = self._folder / f"base-{os.getpid()}"
            factory = self._session.config._tmp_path_factory  # type: ignore[attr-defined]
            factory._given_basetemp, factory._basetemp = base, None
            code = task()
        finally:
            os._exit(code)

    def _test(self, item: pytest.Item, following: pytest.Item | None) -> None:
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)


class Tracer:
    """Notes the lines of some files that a test reaches, in all threads."""

    def __init__(self, files: set[str]) -> None:
        self._files = files
        self._lines: set[tuple[str, int]] = set()
        self._of_fixtures: dict[int, set[tuple[str, int]]] = {}

    @contextlib.contextmanager
    def test(self) -> Iterator[None]:
        self._lines = set()
        threading.settrace(self._call)
        sys.settrace(self._call)
        try:
            yield
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]

    @contextlib.contextmanager
    def fixture(self, definition: Any) -> Iterator[None]:
        """Note what a fixture reaches: it counts for every test that uses it."""
        outer, self._lines = self._lines, set()
        try:
            yield
        finally:
            self._of_fixtures[id(definition)] = self._lines
            self._lines = outer | self._lines

    def lines_of(self, item: Any) -> dict[str, list[int]]:
        """Return the lines of the last test by file."""
        lines = set(self._lines)
        for definitions in item._fixtureinfo.name2fixturedefs.values():
            for definition in definitions:
                lines |= self._of_fixtures.get(id(definition), set())
        by_file: dict[str, list[int]] = defaultdict(list)
        for file, line in sorted(lines):
            by_file[os.path.relpath(file, SOURCES)].append(line)
        return by_file

    def _call(self, frame: Any, event: str, _: Any) -> Any:
        if frame.f_code.co_filename in self._files:
            return self._line
        return None

    def _line(self, frame: Any, event: str, _: Any) -> Any:
        if event == "line":
            self._lines.add((frame.f_code.co_filename, frame.f_lineno))
        return self._line


# -- changing what is imported already


def live_functions() -> dict[str, list[FunctionType]]:
    """Return all functions of our sources that are alive, by file."""
    functions = defaultdict(list)
    for candidate in gc.get_objects():
        if type(candidate) is FunctionType and candidate.__code__.co_filename.startswith(str(SOURCES)):
            functions[candidate.__code__.co_filename].append(candidate)
    return functions


def put_in(file: str, code: CodeType, functions: list[FunctionType], at_import: bool) -> bool:
    """Give the functions of an imported module other code, and return whether that changed anything.

    Raises:
        ImportError: What runs at import fails.
    """
    changed = {(c.co_qualname, c.co_firstlineno): c for c in _codes(code)}
    is_in = at_import
    for function in functions:
        new = changed.get((function.__code__.co_qualname, function.__code__.co_firstlineno))
        if new is not None and new != function.__code__:
            if len(new.co_freevars) != len(function.__code__.co_freevars):
                return False  # Python refuses it: the function holds the variables of the one around it
            function.__code__ = new
            is_in = True
    if at_import:
        _put_in_at_import(module_name(file), code, functions)
    return is_in


def module_name(file: str) -> str:
    """Return the name under which a file of the package is imported."""
    return ".".join(["trainwright", *Path(file).with_suffix("").parts]).removesuffix(".__init__")


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _put_in_at_import(name: str, code: CodeType, functions: list[FunctionType]) -> None:
    """Carry over what importing a module decides: constants, defaults of arguments and of fields."""
    old, new = sys.modules[name], ModuleType(name)
    new.__file__ = old.__file__
    try:
        exec(code, vars(new))
    except Exception as error:
        raise ImportError(name) from error
    defaults = {
        (f.__code__.co_qualname, f.__code__.co_firstlineno): (f.__defaults__, f.__kwdefaults__)
        for f in gc.get_objects()
        if type(f) is FunctionType and f.__globals__ is vars(new)
    }
    for function in functions:
        key = (function.__code__.co_qualname, function.__code__.co_firstlineno)
        if key in defaults:
            function.__defaults__, function.__kwdefaults__ = defaults[key]
    for key, value in vars(new).items():
        if isinstance(value, type) and value.__module__ == name:
            _put_in_class(vars(old)[key], value)
        elif isinstance(value, int | float | tuple | dict | MethodType) and vars(old)[key] != value:
            before = vars(old)[key]
            for module in list(sys.modules.values()):
                if vars(module).get(key) is before:
                    setattr(module, key, value)


def _put_in_class(old: type, new: type) -> None:
    for key, value in vars(new).items():
        is_plain = isinstance(value, int | float | tuple) and vars(old).get(key) != value
        if is_plain or (key == "__init__" and value.__code__.co_filename == "<string>"):  # a dataclass's
            setattr(old, key, value)
    if hasattr(new, "_field_defaults"):  # a named tuple's
        old.__new__.__defaults__ = new.__new__.__defaults__


# -- the verdict


def verdict(run: Run, only: str) -> list[str]:
    """Print the figures, and return what is wrong."""
    mutants = [mutant for group in run.groups for mutant in group.mutants]
    print("\n  caught   of")
    for file, count in sorted(Counter(m.file for m in mutants).items()):
        print(f"{sum(m.file == file and m.key in run.caught for m in mutants):8d} {count:4d}  {file}")
    caught = len(run.caught)
    print(f"{caught:8d} {len(mutants):4d}  in all: {caught / max(1, len(mutants)):.1%}\n")
    for how, count in Counter([*run.caught.values(), *map(_how, run.survived.items())]).most_common():
        print(f"{count:8d}  {how}")
    wrong = [f"{how}: {key}" for key, how in run.survived.items() if key not in EXPLAINED]
    there = {key for group in run.groups for key in group.keys}
    for key in EXPLAINED:
        if key in run.caught:
            wrong.append(f"survivors.toml explains what is caught: {key}")
        elif key not in there and is_wanted(key, only):
            wrong.append(f"survivors.toml explains what is not there: {key}")
    if not only and caught < LEAST_CAUGHT * len(mutants):
        wrong.append(f"less than {LEAST_CAUGHT:.0%} are caught")
    return wrong


def _how(survivor: tuple[str, str]) -> str:
    key, how = survivor
    return f"{how}, explained" if key in EXPLAINED else how


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--share", default=os.environ.get("SHARE") or "1/1", help="for example 2/4")
    parser.add_argument("--only", default="", help="parts of FILE::FUNCTION, with commas between")
    # More than there are processors: some wait for a deadlock to show.
    parser.add_argument("--jobs", type=int, default=2 * len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    groups = groups_of(options.only, options.share)
    guards = sorted({guard for group in groups for guard in group.guards})
    for module in [*WARM, *(module_name(name) for group in groups for name in group.sources)]:
        importlib.import_module(module)
    run, started = Run(groups, options.jobs), time.perf_counter()
    plugins = ["no:cacheprovider", "no:timeout", "no:xdist"]
    switches = [part for plugin in plugins for part in ("-p", plugin)]
    pytest.main(["-q", "-s", "-m", "not slow", *switches, *guards], plugins=[run])
    wrong = run.failed + verdict(run, options.only)
    print("\n  seconds of the processors")
    for name, seconds in [("without a fault", run.seconds), *((g.name, g.seconds) for g in groups)]:
        print(f"{seconds:8.0f}  {name}")
    print(f"{time.perf_counter() - started:8.0f}  on the clock")
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
