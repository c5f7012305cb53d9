"""The charts of a search: shares, shades and lanes by hand, and a page of a synthetic study."""

import math
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from trainwright.records.result import AttemptRecord
from trainwright.records.trials import Ending, LoggedTrial, TrialLog
from trainwright.reports.studies import write_report
from trainwright.reports.tuning_charts import Span, _field, axis, idle_share, lanes, shade_of
from trainwright.studies.study import Study


def spans(*ends: tuple[float, float]) -> list[Span]:
    return [Span(begin, end, "completed", "") for begin, end in ends]


def test_spans_have_as_few_lanes_as_run_at_once() -> None:
    rows = lanes(spans((0, 4), (1, 3), (3, 6), (4, 5), (5.5, 7)))
    assert [[(one.begin, one.end) for one in row] for row in rows] == [
        [(0, 4), (4, 5), (5.5, 7)],
        [(1, 3), (3, 6)],
    ]


def test_the_idle_share_is_that_of_the_time_of_all_workers() -> None:
    assert idle_share(spans((0, 4), (4, 8))) == 0
    assert idle_share(spans((0, 4), (0, 2))) == pytest.approx(2 / 8)
    assert idle_share(spans((0, 4), (5, 9))) == pytest.approx(1 / 9)
    assert idle_share(spans((0, 4), (100, 104))) == 0, "a pause of the study"
    assert idle_share([]) == 0


def test_an_axis_is_logarithmic_where_numbers_need_it_and_leaves_gaps() -> None:
    log = axis("rate", [1e-4, 1e-2, None, 1e-3])
    assert math.isnan(log.shares[2])
    assert log.shares[3] == pytest.approx((log.shares[0] + log.shares[1]) / 2)
    named = axis("kind", ["adam", None, "sgd", "adam"])
    assert named.shares[0] == named.shares[3] == 0.25
    assert named.shares[2] == 0.75
    assert [label for _, label in named.ticks] == ["adam", "sgd"]
    assert axis("flag", [True, False]).ticks[0][1] == "False"
    layers = axis("hidden", [[32], [64, 32], [8]])
    assert [label for _, label in layers.ticks] == ["[8]", "[32]", "[64, 32]"]
    assert len(axis("none", [None, None]).ticks) == 0


@pytest.mark.parametrize("mode", ["min", "max"])
def test_ranks_go_from_the_best_to_the_worst(mode: str) -> None:
    values = np.array([3.0, 1.0, 2.0])
    ranks, goodness = shade_of(values, mode)
    assert ranks.tolist() == ([1.0, 0.0, 0.5] if mode == "min" else [0.0, 1.0, 0.5])
    assert (ranks + goodness).tolist() == [1, 1, 1]


def test_a_contour_is_shaded_by_the_nearest_trials() -> None:
    field = _field(np.array([0.1, 0.9]), np.array([0.5, 0.5]), np.array([0.0, 1.0]))
    assert field.shape == (20, 30)
    assert field[10, 2] < 0.01
    assert field[10, 27] > 0.99
    assert field[0, 0] < 0.01, "far from all of them, the nearest one counts"
    assert (np.diff(field[10]) >= 0).all()


def synthetic(folder: Path, several: bool) -> Path:
    """Write a study of 12 trials: some pruned, one failed, one without a parameter."""
    metric = ["val_f1", "latency_ms"] if several else "val_f1"
    study = Study.create(folder, "small", "tune", {"tuning": {"metric": metric, "mode": "max"}})
    log = TrialLog(study.path)
    for number in range(12):
        params = {"training.learning_rate": 10.0 ** -(number % 4), "model.hidden": [[8], [16, 8]][number % 2]}
        params |= {"a.b": number} if number % 3 else {}
        params |= {"c.depth": [None, 3][number % 2]}
        status = {3: "failed", 4: "pruned"}.get(number, "completed")
        curve = tuple((10 * i, number + i / 2) for i in range(1, 3 if status == "pruned" else 5))
        values = {"val_f1": float(number), "latency_ms": 1.0 + (number - 6) ** 2, "parameters": 50.0 * number}
        run = folder / "small" / f"run-{number}" / "attempts"
        run.mkdir(parents=True)
        AttemptRecord(started=10.0 * number, ended=10.0 * number + 12, status="completed").save(
            run / "0.json"
        )
        log.begin(LoggedTrial(number, params, f"run-{number}"))
        ended = Ending(status, float(number), 40, curve, values=values if several else None)  # type: ignore[arg-type]
        log.end(number, Ending("failed", error="<nan>") if status == "failed" else ended)
    log.close()
    result = {
        "metric": "val_f1",
        "mode": "max",
        "best": {"trial": 11, "value": 11.0},
        "importance": {"training.learning_rate": 0.7, "model.hidden": 0.3},
    }
    if several:
        result |= {
            "metrics": {"val_f1": "max", "latency_ms": "min"},
            "constraints": ["parameters <= 500"],
            "front": [10, 8, 7, 6],
        }
    study.write("result.json", result)
    return write_report(study.path)


@pytest.mark.parametrize("several", [False, True])
def test_the_page_has_all_charts_well_formed_and_is_self_contained(several: bool, tmp_path: Path) -> None:
    page = synthetic(tmp_path, several).read_text(encoding="utf-8")
    heads = set(re.findall(r"<h2>([^<]*)", page))
    assert heads >= {
        "All parameters",
        "What matters",
        "The two that matter most",
        "Learning curves",
        "Workers",
    }
    assert ("Trade-offs" in heads) == several
    charts = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    kinds = {ElementTree.fromstring(chart).attrib["class"] for chart in charts}
    assert kinds >= {"chart parallel", "chart contour", "chart timeline", "chart lines"}
    assert "2 workers, idle 41% of the time" in page  # 12 x 12 s, of 2 x 122
    assert "src=" not in page
    assert "None" not in "".join(charts), "the table says null"
    assert ">null</text>" in "".join(charts)
    assert "NaN" not in "".join(charts)
    assert "&lt;nan&gt;" in page
    if several:
        (front,) = [chart for chart in charts if "chart front" in chart]
        assert front.count("mean val") == 4
        assert front.count("mean broken") == 1, "trial 11 has 550 parameters"
