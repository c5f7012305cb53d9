"""The driver of studies: what it asks of a plan, and what becomes of the study however it ends."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from trainwright.engine.signals import Signals, Stopped
from trainwright.errors import ChangedInputsError, InputError, TrainingError, TrainwrightError
from trainwright.records.run_dir import RunDir
from trainwright.records.study import StudyRecord
from trainwright.studies.driver import InProcess, StudyPlan, drive
from trainwright.studies.study import Json, Study, StudyRequest, open_study


class Counting(StudyPlan[int, int]):
    """Doubles the numbers up to a limit; `fault` is raised by `place`."""

    def __init__(self, study: Study, count: int, place: str = "", fault: BaseException | None = None) -> None:
        super().__init__(study)
        self.place, self.fault = place, fault
        self.left = iter(range(count))
        self.said: list[str] = []

    def note(self, what: str) -> None:
        self.said.append(what)
        if self.fault is not None and what == self.place:
            raise self.fault

    def open(self, stack: ExitStack) -> None:
        stack.callback(self.said.append, "closed")
        self.note("open")

    def begin(self, signals: Signals, stack: ExitStack) -> None:
        stack.callback(self.said.append, "ended")
        self.note("begin")

    def executor(self) -> InProcess[int, int]:
        return Two(self.run)

    def ask(self) -> int | None:
        return next(self.left, None)

    def run(self, piece: int) -> int:
        self.note(f"run {piece}")
        return 2 * piece

    def tell(self, outcome: int) -> None:
        self.note(f"tell {outcome}")

    def conclude(self) -> Json:
        self.note("conclude")
        return {"status": "completed", "said": list(self.said)}


class Two(InProcess[int, int]):
    """An executor that takes two pieces, and does the newer one first."""

    slots = 2


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return Study.create(tmp_path, "numbers", "benchmark", {})


def test_it_asks_while_there_are_slots_and_tells_what_came_of_it(study: Study) -> None:
    plan = Counting(study, 3)
    drive(plan)
    told = ["run 1", "tell 2", "run 2", "tell 4", "run 0", "tell 0"]
    assert plan.said == ["open", "begin", *told, "ended", "conclude", "closed"]
    assert study.status == "completed"
    assert study.result["said"] == plan.said[:-1]
    assert (study.path / "report.html").exists()


def test_a_refused_study_stays_as_it_was(study: Study) -> None:
    study.update(status="failed", error="before")
    before = (study.path / StudyRecord.FILE).read_bytes()
    plan = Counting(study, 3, "open", ChangedInputsError("changed"))
    with pytest.raises(ChangedInputsError, match="changed"):
        drive(plan)
    assert plan.said == ["open", "closed"]
    assert (study.path / StudyRecord.FILE).read_bytes() == before
    drive(Counting(study, 1))
    assert (study.status, study.record.error) == ("completed", None)


@pytest.mark.parametrize("place", ["begin", "run 1", "tell 2", "conclude"])
def test_a_signal_ends_it_wherever_it_comes(place: str, study: Study) -> None:
    plan = Counting(study, 2, place, Stopped("preempted"))
    drive(plan)
    assert study.status == "preempted"
    assert study.result == {}
    assert plan.said.count("ended") == 1


@pytest.mark.parametrize(
    ("fault", "kept"), [(TrainingError("it fails"), True), (InputError("it is wrong"), False)]
)
def test_a_study_that_has_nothing_to_keep_is_deleted(
    fault: TrainwrightError, kept: bool, study: Study
) -> None:
    plan = Counting(study, 2, "run 1", fault)
    with pytest.raises(type(fault)):
        drive(plan)
    assert plan.said[-2:] == ["ended", "closed"]
    assert study.path.exists() is kept
    if kept:
        assert (study.status, study.record.error) == ("failed", "it fails")


def test_a_resume_while_the_study_runs_says_that_a_new_one_begins(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    request, question = StudyRequest(tmp_path, resume=True), {"computation": "c"}
    first = open_study(request, "digits", "tune", question)
    owner = RunDir(first.path)
    owner.acquire()
    try:
        second = open_study(request, "digits", "tune", question)
    finally:
        owner.release()
    assert second.id != first.id
    (warning,) = (record.message for record in caplog.records if record.levelname == "WARNING")
    assert warning == f"study {first.id} is running, so it cannot be resumed: a new study begins"
    caplog.clear()
    assert open_study(request, "digits", "tune", question).id == second.id
    assert "begins" not in caplog.text
