"""How an attempt in several processes is handed out, and how its ends become one; the processes are calls here."""

import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from small_runs import SMALL
from trainwright import plugins
from trainwright.config import load
from trainwright.digest import hashed
from trainwright.engine.signals import Stopped
from trainwright.errors import (
    CheckpointError,
    DataError,
    DivergedError,
    InputError,
    ModelError,
    OtherFormatError,
    TrainingError,
    WorldError,
)
from trainwright.records.result import Result
from trainwright.records.run_dir import RunDir
from trainwright.require import import_rule, importing_by
from trainwright.runs.catalog import Catalog
from trainwright.runs.objects import Objects
from trainwright.runs.processes import nodes, ranks, started
from trainwright.runs.request import Request
from trainwright.types import NamedBuffer
from trainwright.world import ALONE, FINAL, RETRYABLE, World


class Fake:
    """A framework whose launcher calls what the processes would do, one after the other, in this process."""

    ranks: ClassVar[list[str]] = []
    tries: ClassVar[list[Callable[[Request], Any]]] = []
    answer: ClassVar[Any] = None  # the signal that has ended them, or an error
    codes: ClassVar[list[int]] = []
    joined: ClassVar[list[Any]] = []
    launchers: ClassVar[list[int]] = []  # whose death is to end the processes
    world: ClassVar[World] = World()

    @staticmethod
    def processes() -> type:
        return Fake

    @staticmethod
    def join(config: Any) -> World:
        Fake.joined.append(config)
        return Fake.world

    @staticmethod
    def launch(config: Any, command: list[str], folder: Path) -> int | None:
        Fake.joined.append(config)
        assert command == [sys.executable, "-P", "-m", "trainwright", "take-part", str(folder)]
        assert folder.name.startswith("trainwright-")
        for rank, make in zip(Fake.ranks, Fake.tries, strict=True):
            os.environ["RANK"] = rank
            Fake.codes.append(ranks.take_part(folder, make))
        if isinstance(Fake.answer, Exception):
            raise Fake.answer
        answer: int | None = Fake.answer
        return answer


@pytest.fixture
def request_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Request]:
    """The request of an attempt, to be launched by the fake framework."""
    monkeypatch.setattr(Fake, "launchers", [])
    monkeypatch.setattr(started, "end_with", Fake.launchers.append)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    for name, value in {"ranks": [], "tries": [], "answer": None, "codes": [], "joined": []}.items():
        monkeypatch.setattr(Fake, name, value)
    request = Request(load(SMALL, adapters=Catalog()), RunDir(tmp_path / "run"))
    request.run.path.mkdir()
    plugins.replace_adapter("framework", "torch", Fake)
    yield request
    plugins.replace_adapter("framework", "torch", None)


def plan(*tries: tuple[str, Callable[[Request], Any]], answer: Any = None) -> None:
    """Say what each process does, by rank."""
    Fake.ranks = [rank for rank, _ in tries]
    Fake.tries = [make for _, make in tries]
    Fake.answer = answer


def raising(error: BaseException, cause: BaseException | None = None) -> Callable[[Request], Any]:
    def make(_: Request) -> Any:
        raise error from cause

    return make


def ending(status: Any) -> Callable[[Request], Any]:
    def make(request: Request) -> None:
        Result(status=status, run_id="1").save(request.run.path / Result.FILE)

    return make


def nothing(_: Request) -> None:
    pass


def launched(request: Request) -> Result:
    return ranks.launch(request, request.resolved.config)


# -- what the processes get


def test_each_process_makes_the_attempt_of_the_request(request_of: Request) -> None:
    seen: list[Request] = []
    rules: list[Any] = []

    def make(request: Request) -> None:
        seen.append(request)
        rules.append(import_rule())

    plan(("1", make), ("0", lambda request: (make(request), ending("completed")(request))))
    rule = import_rule()
    given = replace(request_of, allow_change=True, keep=True, placement={"training.threads": 1})
    result = launched(given)
    assert (result.status, Fake.codes) == ("completed", [0, 0])
    assert Fake.launchers == [os.getpid()] * 2
    assert rules == [rule, rule]
    for request in seen:
        assert request.world is Fake.world
        assert request.resolved.config == given.resolved.config
        assert (request.run.path, request.allow_change, request.keep) == (given.run.path, True, True)
    assert Fake.joined == [given.resolved.config] * 3, "once by the launcher, and by each process"


def test_a_process_is_in_the_place_of_the_first(
    request_of: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same working directory, path of imports and numbers of threads; other variables are the launcher's."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_HERE", "4")
    for name in ("TORCH_NEW", "OMP_NEW", "GROUP_RANK"):
        monkeypatch.delenv(name, raising=False)
    before = list(sys.path)
    packed = ranks._packed(request_of)
    (tmp_path / "work").write_bytes(packed)
    monkeypatch.chdir("/")
    sys.path.append("/elsewhere")
    for name in ("TORCH_NEW", "OMP_NEW", "GROUP_RANK"):
        monkeypatch.setenv(name, "1")
    seen: list[Any] = []

    def make(_: Request) -> None:
        names = ("OMP_HERE", "TORCH_NEW", "OMP_NEW", "GROUP_RANK")
        seen.append((Path.cwd(), list(sys.path), [os.environ.get(name) for name in names]))

    assert ranks.take_part(tmp_path, make) == 0
    assert seen == [(tmp_path, before, ["4", None, None, "1"])]


def test_what_restarts_is_said_by_the_main_process(
    request_of: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "trainwright")
    (tmp_path / "work").write_bytes(ranks._packed(request_of))
    said = "a process died; restarting all of them from the newest commit (restart 2)"
    for rank, restarts, expected in (
        ("0", None, []), ("0", "0", []), ("1", "2", []), ("0", "2", [said])
    ):  # fmt: skip
        caplog.clear()
        monkeypatch.setenv("RANK", rank)
        monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
        if restarts is not None:
            monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restarts)
        assert ranks.take_part(tmp_path, nothing) == 0
        assert caplog.messages == expected


@pytest.mark.parametrize("name", ["model", "verdict"])
def test_what_cannot_be_sent_is_refused(name: str, request_of: Request) -> None:
    class Local:
        pass

    objects = Objects(Local())
    request = replace(request_of, objects=objects) if name == "model" else replace(request_of, verdict=max)
    message = "cannot be sent to other" if name == "model" else "a verdict cannot be sent to the processes"
    with pytest.raises(InputError, match=f"{message}.*start your script with torchrun"):
        ranks._packed(request)


class OfTheScript:
    """A class as a main script has it."""


def test_classes_of_the_main_script_are_refused(request_of: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "OfTheScript", OfTheScript, raising=False)
    monkeypatch.setattr(OfTheScript, "__module__", "__main__")
    with pytest.raises(InputError, match="classes of the main script; define them in a module"):
        ranks._packed(replace(request_of, objects=Objects(OfTheScript())))


def test_an_earlier_outcome_is_gone_while_a_process_tries_again(request_of: Request, tmp_path: Path) -> None:
    """If it is killed then, it has none."""
    (tmp_path / "work").write_bytes(ranks._packed(request_of))
    (tmp_path / "outcome-0").write_bytes(b"of the first try")
    seen: list[bool] = []
    assert ranks.take_part(tmp_path, lambda _: seen.append((tmp_path / "outcome-0").exists())) == 0  # type: ignore[arg-type, func-returns-value]
    assert seen == [False]
    assert (tmp_path / "outcome-0").exists()


@pytest.mark.parametrize("lives", [True, False])
def test_the_death_of_the_launcher_is_a_signal(lives: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it has died before that was asked for."""
    asked, killed = list[Any](), list[Any]()

    class Libc:
        @staticmethod
        def prctl(*words: int) -> int:
            asked.append(words)
            return 0

    monkeypatch.setattr(started.ctypes, "CDLL", lambda name: Libc)
    monkeypatch.setattr(os, "getppid", lambda: 7 if lives else 1)
    monkeypatch.setattr(os, "kill", lambda *words: killed.append(words))
    started.end_with(7)
    assert asked == [(1, signal.SIGTERM)], "PR_SET_PDEATHSIG"
    assert killed == ([] if lives else [(os.getpid(), signal.SIGTERM)])
    monkeypatch.delattr(Libc, "prctl")
    started.end_with(7)


# -- how their ends become one


def test_the_first_cause_is_raised(request_of: Request) -> None:
    """That another process is gone is what the others meet; so it is what the launcher says."""
    gone, late, cause = WorldError("another process is gone"), TrainingError("late"), ModelError("too wide")
    plan(
        ("0", raising(gone)),
        ("1", raising(cause)),
        ("2", raising(late)),
        answer=WorldError("process 1 ended"),
    )
    with pytest.raises(ModelError, match="too wide"):
        launched(request_of)
    plan(("0", raising(gone)), ("1", nothing), answer=WorldError("process 1 ended"))
    with pytest.raises(WorldError, match="process 1 ended"):
        launched(request_of)
    plan(("0", raising(gone)), ("1", nothing))
    with pytest.raises(WorldError, match="another process is gone"):
        launched(request_of)


def test_a_signal_that_has_ended_one_process_before_another_is_the_cause(request_of: Request) -> None:
    """A process that ends while it starts leaves no outcome, and another says that it is gone."""
    plan(("1", raising(WorldError("another process is gone"))), answer=signal.SIGTERM)
    with pytest.raises(Stopped) as stopped:
        launched(request_of)
    assert stopped.value.status == "preempted", "the exit code tells a scheduler to resume"


def test_an_error_that_cannot_travel_is_named(request_of: Request) -> None:
    class Odd(Exception):
        pass

    plan(("1", raising(Odd("strange"))))
    with pytest.raises(TrainingError, match=r"^Odd: strange"):
        launched(request_of)


class Needy(Exception):
    """An error that pickle can write, and not read."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(one)


def test_an_error_that_cannot_be_read_again_is_named(request_of: Request) -> None:
    plan(("1", raising(Needy("strange", "indeed"))))
    with pytest.raises(TrainingError, match=r"^Needy: strange"):
        launched(request_of)


@pytest.mark.parametrize("error", [RuntimeError("within"), TrainingError("within"), Needy("within", "it")])
def test_an_error_shows_where_its_process_has_met_it(error: Exception, request_of: Request) -> None:
    """The traceback, with that of its cause."""
    plan(("1", raising(error, ZeroDivisionError("deep"))))
    with pytest.raises(Exception, match="within") as caught:
        launched(request_of)
    said = "".join(traceback.format_exception(caught.value))
    assert "In process 1:\nZeroDivisionError: deep\n" in said
    assert "raise error from cause" in said.partition("In process 1:")[2]


def test_an_outcome_of_an_earlier_try_is_forgotten(request_of: Request) -> None:
    plan(("0", raising(WorldError("gone"))), ("0", ending("completed")))
    assert launched(request_of).status == "completed"
    assert Fake.codes == [RETRYABLE, 0]


ENDS = [
    (WorldError("gone"), None, RETRYABLE),
    (CheckpointError("a full disk"), None, RETRYABLE),
    (OSError("a full disk"), None, RETRYABLE),
    (RuntimeError("of the user's"), None, RETRYABLE),
    (TrainingError("wrapped"), OSError("a full disk"), RETRYABLE),
    (TrainingError("not finite"), None, FINAL),
    (TrainingError("wrapped"), ValueError("a bug"), FINAL),
    (InputError("wrong"), None, FINAL),
    (DataError("wrapped"), FileNotFoundError("no file"), FINAL),
    (OtherFormatError("of another version"), None, FINAL),
    (Stopped("preempted"), None, 0),
]


@pytest.mark.parametrize(("error", "cause", "code"), ENDS, ids=str)
def test_what_may_pass_is_tried_again(
    error: BaseException, cause: BaseException | None, code: int, request_of: Request
) -> None:
    plan(("0", raising(error, cause)))
    with pytest.raises(type(error)):
        launched(request_of)
    assert Fake.codes == [code]


def test_nothing_is_tried_again_where_one_process_knows_better(request_of: Request) -> None:
    plan(("0", nothing), ("1", raising(InputError("wrong"))), ("2", raising(WorldError("gone"))))
    with pytest.raises(InputError):
        launched(request_of)
    assert Fake.codes == [0, FINAL, 0]
    plan(("0", nothing), ("1", raising(OSError("a full disk"))), ("2", raising(WorldError("gone"))))
    with pytest.raises(OSError, match="a full disk"):
        launched(request_of)
    assert Fake.codes[3:] == [0, RETRYABLE, RETRYABLE]


def test_an_error_names_its_process_where_the_launcher_has_ended_the_others(
    request_of: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have no outcome then, or have stopped."""
    monkeypatch.setenv("WORLD_SIZE", "3")
    plan(("1", raising(TrainingError("not finite"))), ("2", raising(Stopped("preempted"))))
    with pytest.raises(TrainingError, match=r"^process 1: not finite\b"):
        launched(request_of)
    assert Fake.codes == [FINAL, 0]


def test_the_others_are_given_time_before_the_launcher_ends_them(
    request_of: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may meet the same error, and write how the run has ended."""
    (tmp_path / "work").write_bytes(ranks._packed(request_of))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        monkeypatch.setenv("RANK", "1")
        assert ranks.take_part(tmp_path, raising(InputError("wrong"))) == FINAL

    monkeypatch.setattr(started.time, "sleep", sleep)
    assert ranks.take_part(tmp_path, raising(InputError("wrong"))) == FINAL
    assert len(slept) == 1
    monkeypatch.setattr(started.time, "sleep", slept.append)
    monkeypatch.setattr(started, "_OTHERS_SECONDS", 0.0)
    (tmp_path / "outcome-0").unlink()
    assert ranks.take_part(tmp_path, raising(InputError("wrong"))) == FINAL
    assert len(slept) == 1, "not longer than that"


@pytest.mark.parametrize(
    ("signum", "status", "raised"),
    [
        (signal.SIGTERM, None, "preempted"),
        (signal.SIGINT, None, "interrupted"),
        (signal.SIGHUP, None, "preempted"),
        (signal.SIGTERM, "stopped", "preempted"),  # the result is of an earlier attempt
        (signal.SIGTERM, "preempted", None),
        (signal.SIGINT, "interrupted", None),
        (None, "completed", None),
    ],
)
def test_a_signal_to_the_launcher(signum: Any, status: Any, raised: str | None, request_of: Request) -> None:
    plan(("0", ending(status) if status else nothing), answer=signum)
    if raised is None:
        assert launched(request_of).status == status
    else:
        with pytest.raises(Stopped) as stopped:
            launched(request_of)
        assert stopped.value.status == raised


def test_a_run_without_a_result_has_not_ended(request_of: Request) -> None:
    plan(("0", nothing))
    with pytest.raises(CheckpointError, match="is missing"):
        launched(request_of)


# -- processes that a launcher of the user's has started


class Told(World):
    """The world of the second of two processes, which is told what the main one says."""

    rank, size = 1, 2

    def __init__(self, answer: Any = None) -> None:
        self._answer = answer

    def from_main(self, function: Callable[[], Any]) -> Any:
        with pytest.raises(AssertionError, match="the main process knows"):
            function()
        return self._answer


def test_the_main_process_leads_and_the_others_follow(
    request_of: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolved = load(SMALL, {"distributed.virtual.data": 2})
    request_of = replace(request_of, resolved=resolved)
    config, told = resolved.config, list[Any]()

    def tell(_: World, function: Callable[[], Any]) -> Any:
        told.append(function())
        return told[-1]

    monkeypatch.setattr(World, "from_main", tell)
    led = replace(request_of, objects=Objects(data="rows"), verdict=max, allow_change=True)  # type: ignore[arg-type]
    assert ranks.lead(led, config) is Fake.world
    assert told == [(replace(led, objects=Objects(), verdict=nodes._in_main_only), None)]
    for rank, size in (("0", "2"), ("0", "1")):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", size)
        monkeypatch.setenv("LOCAL_RANK", rank)
        assert ranks.is_launched() is (size == "2")
        assert ranks.follow(config, Objects(), nothing) is None  # type: ignore[arg-type]
    made: list[Request] = []
    own = Objects(data="own rows")  # type: ignore[arg-type]
    monkeypatch.setattr(Fake, "world", Told(told[0]))
    for rank in ("1", "2"):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", "3")
        assert ranks.follow(config, own, made.append) == request_of.run  # type: ignore[arg-type, func-returns-value]
    assert made == [replace(told[0][0], objects=own, world=Fake.world)] * 2
    assert Fake.joined == [config] * 3


class Same(World):
    """Three processes, of which each begins with a number."""

    size = 3

    def __init__(self, numbers: list[int], data: Sequence[str] = ()) -> None:
        self._numbers, self.data = numbers, data

    def gather(self, value: Any) -> list[Any]:
        if value == "0":
            return list(self.data) or ["0"] * len(self._numbers)
        records = [hashed([state(number)])[0] for number in self._numbers]
        assert value == (records[0], False), "nothing is divided"
        return [(one, False) for one in records]


def state(number: int) -> NamedBuffer:
    return NamedBuffer("w", "I64", (1,), memoryview(np.array([number]).view(np.uint8)))


class Components:
    """The parts of an attempt that the check of its state reads."""

    def __init__(self, world: World, number: int) -> None:
        self.inputs = self.learner = self
        self.bundle = SimpleNamespace(hash="0")
        self.world = world
        self._number = number

    def state(self, **_: bool) -> list[NamedBuffer]:
        return [state(self._number)]


@pytest.fixture
def hashed_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "data_inputs", lambda bundle: bundle)


@pytest.mark.usefixtures("hashed_data")
def test_all_processes_train_on_the_same_data() -> None:
    components: Any = Components(Same([5, 5, 5], ["0", "0", "1"]), 5)
    with pytest.raises(InputError, match="process 2 loaded different data from process 0"):
        ranks.require_same_state(components)


@pytest.mark.usefixtures("hashed_data")
@pytest.mark.parametrize(("numbers", "others"), [([5, 5, 5], ""), ([5, 5, 6], "2"), ([5, 4, 6], "1, 2")])
def test_all_processes_begin_with_one_state(numbers: list[int], others: str) -> None:
    components: Any = Components(Same(numbers), numbers[0])
    if not others:
        ranks.require_same_state(components)
    else:
        with pytest.raises(DivergedError, match=f"process {others} has a different state from process 0"):
            ranks.require_same_state(components)
    alone: Any = Components(ALONE, 1)
    alone.learner = None
    ranks.require_same_state(alone)


@pytest.mark.usefixtures("hashed_data")
def test_pairs_are_checked_too() -> None:
    world = Same([5, 6])
    world.size = 2
    components: Any = Components(world, 5)
    with pytest.raises(DivergedError, match="process 1 has a different state"):
        ranks.require_same_state(components)


def test_the_rule_of_imports_travels(request_of: Request) -> None:
    seen: list[Any] = []
    plan(("0", lambda request: (seen.append(import_rule()), ending("completed")(request))))
    rule: Any = Rule()
    with importing_by(rule):
        launched(request_of)
    assert seen == [rule]


class Rule:
    """A rule of imports that is equal to its copies."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rule)

    __hash__ = None  # type: ignore[assignment]
