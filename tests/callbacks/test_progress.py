import io
import re
import time

import pytest

from trainwright.callbacks import progress as module
from trainwright.callbacks.base import RunView
from trainwright.callbacks.progress import PlainProgress, RichProgress, line, progress

PAIR = re.compile(r"(?P<name>[a-z0-9_]+)=(?P<value>\S+)")  # as the module documents it
RUN = RunView("r1", "digits", 900, 45, 1437, 32)
LOGGED = {"train_loss": 0.123456789, "learning_rate": 1e-3, "epoch": 2.2222, "samples_per_second": 51234.5}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def plain(clock: list[float], stream: io.StringIO) -> PlainProgress:
    found = PlainProgress(stream)
    found.on_start(RUN)
    return found


def pairs(text: str) -> list[dict[str, str]]:
    """Each line as a cloud would read it; a line that is anything else but pairs fails."""
    found = []
    for shown in text.splitlines():
        word, *rest = shown.split(" ")
        assert word == "trainwright"
        assert all(PAIR.fullmatch(pair) for pair in rest), shown
        found.append(dict(PAIR.findall(shown)))
    return found


def test_the_first_line_names_the_run(plain: PlainProgress, stream: io.StringIO) -> None:
    assert pairs(stream.getvalue()) == [
        {
            "event": "start",
            "step": "0/900",
            "run": "r1",
            "experiment": "digits",
            "attempt": "1",
            "steps_per_epoch": "45",
        }
    ]


def test_training_metrics(plain: PlainProgress, stream: io.StringIO, clock: list[float]) -> None:
    clock[0] += 10
    plain.on_log(100, LOGGED)
    assert pairs(stream.getvalue())[-1] == {
        "step": "100/900",
        "train_loss": "0.123457",
        "learning_rate": "0.001",
        "epoch": "2.22",
        "samples_per_second": "51234",
        "eta_seconds": "80",
    }


def test_at_most_one_line_of_training_metrics_a_second(
    plain: PlainProgress, stream: io.StringIO, clock: list[float]
) -> None:
    for step in range(1, 301):
        clock[0] += 0.01
        plain.on_log(step, LOGGED)
    steps = [int(shown["step"].split("/")[0]) for shown in pairs(stream.getvalue()) if "train_loss" in shown]
    assert steps[0] == 1
    assert 3 <= len(steps) <= 4


def test_what_was_held_back_comes_at_the_end_with_its_own_step(
    plain: PlainProgress, stream: io.StringIO
) -> None:
    plain.on_log(1, LOGGED)
    plain.on_log(2, LOGGED)
    plain.on_evaluation(3, {"val_loss": 0.5})
    plain.on_end("completed", {"test_accuracy": 0.97})
    shown = pairs(stream.getvalue())[1:]
    assert [(found["step"], found.get("train_loss")) for found in shown] == [
        ("1/900", "0.123457"),
        ("3/900", None),
        ("2/900", "0.123457"),
        ("3/900", None),
    ]
    assert shown[-1] == {"event": "end", "step": "3/900", "status": "completed", "test_accuracy": "0.97"}


def test_the_end_has_the_last_step_and_no_estimate(plain: PlainProgress, stream: io.StringIO) -> None:
    plain.on_log(1, LOGGED)
    plain.on_log(2, LOGGED)
    plain.last_step = 7
    plain.on_end("interrupted", {})
    shown = pairs(stream.getvalue())[-2:]
    assert shown[0]["step"] == "2/900"
    assert "eta_seconds" not in shown[0]
    assert shown[1] == {"event": "end", "step": "7/900", "status": "interrupted"}


def test_at_most_one_evaluation_a_second_and_the_newest_best_model(
    plain: PlainProgress, stream: io.StringIO, clock: list[float]
) -> None:
    for step in range(1, 251):
        clock[0] += 0.01
        plain.on_evaluation(step, {"val_loss": 1 / step})
        if step <= 240:
            plain.on_event(step, "best", {"metric": "val_loss", "value": 1 / step})
    plain.on_end("completed", {})
    shown = [(found.get("event", ""), found["step"]) for found in pairs(stream.getvalue())][1:]
    assert shown[:2] == [("", "1/900"), ("best", "1/900")]
    assert shown[-3:] == [("best", "240/900"), ("", "250/900"), ("end", "250/900")]
    assert (
        7 <= len(shown) <= 11
    )  # two more evaluations, a second apart, each with the best ones before and at it


def test_evaluations_a_second_apart_and_events_are_never_held_back(
    plain: PlainProgress, stream: io.StringIO, clock: list[float]
) -> None:
    for step in range(1, 21):
        clock[0] += 1.01
        plain.on_evaluation(step, {"val_loss": 0.5})
        plain.on_event(step, "best", {"metric": "val_loss", "value": 0.5})
        plain.on_event(step, "checkpoint_failed", {"message": "full"})
    assert len(stream.getvalue().splitlines()) == 61


def test_values_hold_no_white_space_and_names_fit(plain: PlainProgress, stream: io.StringIO) -> None:
    plain.on_event(
        7, "checkpoint_failed", {"message": "no space\nleft on device", "Odd-Name.1": "", "step": 3}
    )
    assert pairs(stream.getvalue())[-1] == {
        "event": "checkpoint_failed",
        "step": "7/900",
        "message": "no_space_left_on_device",
        "odd_name_1": "-",
    }


@pytest.mark.parametrize(
    ("value", "text"), [(float("nan"), "nan"), (float("-inf"), "-inf"), (1e-7, "1e-07"), (3, "3")]
)
def test_numbers(value: float, text: str) -> None:
    assert line({}, {"val_loss": value}) == f"trainwright val_loss={text}"


def test_a_resumed_attempt_estimates_by_its_own_steps(clock: list[float], stream: io.StringIO) -> None:
    found = PlainProgress(stream)
    found.on_start(RunView("r1", "digits", 900, 45, 1437, 32, start_step=800, attempt=2))
    clock[0] += 10
    found.on_log(850, LOGGED)
    assert pairs(stream.getvalue())[-1]["eta_seconds"] == "10"


def test_a_terminal_gets_the_bar() -> None:
    assert isinstance(progress(Terminal()), RichProgress)
    assert isinstance(progress(io.StringIO()), PlainProgress)


def test_the_bar_shows_what_it_is_told(clock: list[float]) -> None:
    stream = Terminal()
    bar = RichProgress(stream)
    bar.on_start(RUN)
    clock[0] += 10
    bar.on_log(100, LOGGED)
    bar.on_evaluation(100, {"val_loss": 0.25, "val_f1": float("nan")})
    bar.on_event(100, "learning_rate_drop", {"factor": 0.1})
    bar.on_end("completed", {})
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    for part in (
        "digits: run r1",
        "100/900",
        "loss 0.1235",
        "51,234 samples/s",
        "1:20 left",
        "val_loss 0.25",
        "val_f1 NaN",
    ):
        assert part in text
    assert "step 100: learning rate drop 0.1" in text
    assert stream.getvalue().rstrip().endswith("\x1b[?25h")  # the cursor is back


def test_the_bar_is_redrawn_at_most_ten_times_a_second(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    bar = RichProgress(Terminal())
    bar.on_start(RUN)
    drawn = []
    monkeypatch.setattr(bar._live, "refresh", lambda: drawn.append(clock[0]))
    for step in range(1, 301):
        clock[0] += 0.01
        bar.on_log(step, LOGGED)
    bar.close()
    assert 10 <= len(drawn) <= 30


@pytest.mark.parametrize("kind", [PlainProgress, RichProgress])
def test_a_throttled_log_costs_next_to_nothing(kind: type[PlainProgress | RichProgress]) -> None:
    shown = kind(Terminal())
    shown.on_start(RUN)
    shown.on_log(1, LOGGED)
    costs = []
    for _ in range(5):
        start = time.perf_counter()
        for step in range(1000):
            shown.on_log(step, LOGGED)
        costs.append((time.perf_counter() - start) / 1000)
    shown.close()
    assert min(costs) < 10e-6  # seconds; some rounds hold a drawing, and the machine may be busy


def test_closing_twice_is_fine() -> None:
    bar = RichProgress(Terminal())
    bar.close()
    bar.on_start(RUN)
    bar.close()
    bar.close()
