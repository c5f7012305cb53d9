"""Several models on the same rows: ranks, significance, cost, and what happens when one fails."""

import csv
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainwright
from study_configs import TOY, SignalInRun, full_disk, signal_after
from trainwright.config import load as load_config
from trainwright.errors import ChangedInputsError, ConfigError, InputError, TrainingError
from trainwright.evaluation.significance import holm, over_folds
from trainwright.records.data import DataDescription
from trainwright.records.journal import finite
from trainwright.records.run_dir import RunDir
from trainwright.runs.weights import StoredModel
from trainwright.studies import ranking
from trainwright.studies.benchmark import Benchmark
from trainwright.studies.cost import Latency
from trainwright.studies.ranking import COLUMNS, Entry, ranked
from written import write_record

ABSENT = "absent_package:Model"  # looks right in a config, and cannot be imported


@pytest.fixture(scope="module")
def folded(tmp_path_factory: pytest.TempPathFactory) -> Benchmark:
    """Two models and one that fails, on three folds."""
    runs_dir = tmp_path_factory.mktemp("folded")
    params = {"mlp": {"hidden": [8]}}
    return trainwright.benchmark(
        TOY, models=["toy", ABSENT, "mlp"], params=params, folds=3, runs_dir=runs_dir
    )


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Benchmark:
    """Two models on one split, of which one hardly learns."""
    changes = {"data.split.test": 0.4, "training.learning_rate": 1e-6}
    params = {"mlp": {"hidden": [8]}}
    return trainwright.benchmark(
        TOY, changes, models=["mlp", "toy"], params=params, runs_dir=tmp_path_factory.mktemp("single")
    )


def test_the_table_is_ranked(folded: Benchmark) -> None:
    assert [row["rank"] for row in folded.rows] == [1, 2, None]
    first, second, failed = folded.rows
    assert {first["model"], second["model"]} == {"toy", "mlp"}
    assert first["metric"] == "test_accuracy"
    assert first["mean"] >= second["mean"]
    assert folded.best == first["model"]
    for row in (first, second):
        values = [run.metrics["test_accuracy"] for run in folded.runs[row["model"]]]
        assert row["values"] == values
        assert (row["mean"], row["std"]) == pytest.approx((np.mean(values), np.std(values, ddof=1)))
        assert row["runs"] == [run.id for run in folded.runs[row["model"]]]
    assert failed["model"] == ABSENT
    assert "absent_package" in folded.failed[ABSENT]
    assert folded.status == "failed"


def test_all_learn_from_the_same_rows(folded: Benchmark) -> None:
    for toy, mlp in zip(folded.runs["toy"], folded.runs["mlp"], strict=True):
        assert toy.manifest["data"]["rows"] == mlp.manifest["data"]["rows"]
        assert (toy.manifest["seed"], toy.manifest["parent"]["fold"]) == (
            mlp.manifest["seed"],
            mlp.manifest["parent"]["fold"],
        )
        assert toy.manifest["parent"]["relation"] == "benchmark"
    assert (
        trainwright.reproduce(folded.runs["mlp"][2], runs_dir=folded.path.parent.parent).verdict
        == "identical"
    )


def test_folds_are_compared_by_the_corrected_t_test(folded: Benchmark) -> None:
    first, second, failed = folded.rows
    expected = over_folds("accuracy", first["values"], second["values"], 50 / 90)
    assert (second["p_value"], second["p_adjusted"]) == pytest.approx(
        (expected.p_value, holm([expected.p_value])[0])
    )
    assert (second["test"], second["effect"]) == (
        "corrected resampled t",
        pytest.approx(second["mean"] - first["mean"]),
    )
    assert (first["p_value"], failed["p_value"]) == (None, None)


def test_the_table_says_what_each_model_costs(folded: Benchmark) -> None:
    for row in folded.rows[:2]:
        runs = folded.runs[row["model"]]
        assert row["train_seconds"] == pytest.approx(np.mean([run.result["train_seconds"] for run in runs]))
        weights = [
            path.stat().st_size for run in runs for path in run.path.glob("best/*/weights.safetensors")
        ]
        assert row["model_bytes"] == round(np.mean(weights))
        assert 0 < row["one_row_ms"] < 1000
        assert (
            row["rows_per_second"] > 1000 / row["one_row_ms"]
        )  # many at once are not slower than one by one


def test_what_is_left_to_read(folded: Benchmark) -> None:
    with open(folded.path / "table.csv", encoding="utf-8") as file:
        head, *rows = csv.reader(file)
    assert tuple(head) == COLUMNS
    assert [row[1] for row in rows] == [row["model"] for row in folded.rows]
    assert folded.table.columns.tolist() == list(COLUMNS)
    assert folded.table["mean"].tolist()[:2] == [row["mean"] for row in folded.rows[:2]]
    lines = (folded.path / "table.md").read_text(encoding="utf-8").splitlines()
    assert [line.count("|") for line in lines] == [11] * 5
    page = (folded.path / "report.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 2
    assert "absent_package" in page
    assert "<td>mlp</td>" in folded._repr_html_()
    assert repr(folded).startswith(f"<Benchmark small/{folded.id} failed: ")


def test_no_escape_sequence_reaches_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "raising_red.py").write_text('raise ValueError("\\x1b[31mred\\x1b]0;title\\x07")')
    monkeypatch.syspath_prepend(str(tmp_path))
    result = trainwright.benchmark(TOY, models=["toy", "raising_red:Net"], runs_dir=tmp_path / "runs")
    texts = [(result.path / f"table.{kind}").read_text() for kind in ("csv", "md")]
    assert "red" in texts[0]
    assert not any("\x1b" in text or "\x07" in text for text in texts)


def test_models_on_one_split_are_compared_by_rows(single: Benchmark) -> None:
    assert single.status == "completed"
    first, second = single.rows
    assert (first["std"], len(first["values"])) == (None, 1)
    assert second["test"] == "exact McNemar"
    compared = trainwright.compare(single.runs[first["model"]][0], single.runs[second["model"]][0])
    accuracy = next(test for test in compared.tests if test.metric == "accuracy")
    assert (second["p_value"], second["effect"]) == (accuracy.p_value, accuracy.effect)


def test_the_metric_to_rank_by(tmp_path: Path) -> None:
    study = trainwright.benchmark(TOY, models=["toy"], metric="log_loss", runs_dir=tmp_path)
    (row,) = study.rows
    assert (row["metric"], row["mean"]) == ("test_log_loss", study.runs["toy"][0].metrics["test_log_loss"])
    assert "test_accuracy" in study.runs["toy"][0].metrics
    study = trainwright.benchmark(TOY, models=["toy", "mlp"], metric="val_loss", runs_dir=tmp_path)
    assert [row["metric"] for row in study.rows] == ["val_loss", "val_loss"]
    assert study.rows[0]["mean"] <= study.rows[1]["mean"]
    assert study.rows[1]["test"] == "paired sign-flip permutation"


def test_options_hold_for_their_own_model(tmp_path: Path) -> None:
    changes = {"model.params.noise": 0.5, "model.init_from": None}
    study = trainwright.benchmark(
        TOY, changes, models=["toy", "mlp"], params={"mlp": {"hidden": [5]}}, runs_dir=tmp_path
    )
    config = {
        model: trainwright.check(runs[0].path / "config.yaml").config.model
        for model, runs in study.runs.items()
    }
    assert config["toy"].params["noise"] == 0.5
    assert config["mlp"].params["hidden"] == [5]
    assert "noise" not in config["mlp"].params
    texts = ["model.noise=0.5", "training.epochs=1"]
    study = trainwright.benchmark(TOY, texts, models=["mlp"], runs_dir=tmp_path)
    assert study.runs["mlp"][0].result["epochs"] == 1


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"models": []}, "none given"),
        ({"models": ["toy", "toy"]}, "named twice"),
        ({"models": ["toy"], "params": {"mlp": {}}}, "mlp is not among the models"),
        ({"models": ["toy"], "folds": 1}, "folds: 1 given"),
        ({"models": ["toy"], "folds": 100_000}, "allowed: 2 to 1000"),
        ({"models": ["toy"], "metric": "speed"}, "unknown metric 'speed'"),
        ({"models": ["toy"], "metric": "train_loss"}, "is measured on the training rows"),
        ({"models": ["toy", "toi", "mlq"]}, "(?s)2 problems.*toi.*mlq"),
        ({"models": ["toy"], "params": {"toy": {"loud": 1}}}, "unknown key"),
    ],
)
def test_wrong_input_trains_nothing(asked: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        trainwright.benchmark(TOY, **asked, runs_dir=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_nothing_is_left_where_no_model_can_be_trained(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such file"):
        trainwright.benchmark(
            {**TOY, "data": {"path": "none.csv", "target": "y"}}, models=["toy", "mlp"], runs_dir=tmp_path
        )
    assert not list(tmp_path.iterdir())


def test_there_must_be_rows_to_rank_by(tmp_path: Path) -> None:
    only_train = {"type": "csv", "train_path": "rows.csv", "target": "y"}
    for metric, data in (
        (None, {"type": "iris", "split": {"test": 0.0}}),
        ("val_f1", {"type": "iris", "split": {"val": 0.0}}),
        (None, only_train),
    ):
        with pytest.raises(InputError, match=r"no (test|val) rows to rank by; ask for --folds"):
            trainwright.benchmark(
                {**TOY, "data": data}, models=["toy"], metric=metric, runs_dir=tmp_path / "runs"
            )
    assert not (tmp_path / "runs").exists()
    pair = (np.zeros((40, 2), np.float32), np.arange(40) % 2)
    with pytest.raises(InputError, match=r"has no test split; it has train, val"):
        trainwright.benchmark(TOY, models=["toy"], data=(pair, (pair[0] + 1, pair[1])), runs_dir=tmp_path)


def test_a_model_of_which_all_is_lost_but_others_go_on(tmp_path: Path) -> None:
    """It fails in training rather than at its start, in the first fold; the second is not tried."""
    changes = {"training.learning_rate": 1e308, "training.max_grad_norm": 1.0}
    study = trainwright.benchmark(TOY, changes, models=["toy", "mlp"], folds=2, runs_dir=tmp_path)
    assert set(study.failed) >= {"toy"}
    assert len(study.runs["toy"]) == 1


# -- stopped and resumed


def without_cost(study: Benchmark) -> list[dict[str, Any]]:
    measured = {"train_seconds", "one_row_ms", "rows_per_second", "runs"}
    return [{key: value for key, value in row.items() if key not in measured} for row in study.rows]


def test_a_stopped_benchmark_is_resumed_to_the_same_table(folded: Benchmark, tmp_path: Path) -> None:
    params = {"mlp": {"hidden": [8]}}
    asked: dict[str, Any] = {
        "models": ["toy", ABSENT, "mlp"],
        "params": params,
        "folds": 3,
        "runs_dir": tmp_path,
    }
    cut = trainwright.benchmark(TOY, **asked, callbacks=[SignalInRun(4, 5)])
    assert (cut.status, cut.rows, cut.best) == ("preempted", [], None)
    assert [len(runs) for runs in cut.runs.values()] == [3, 2]
    again = trainwright.benchmark(TOY, **asked, resume=True, watch=signal_after(1))
    assert (again.path, again.status) == (cut.path, "preempted")
    resumed = trainwright.benchmark(TOY, **asked, resume=True)
    assert resumed.path == cut.path
    assert without_cost(resumed) == without_cost(folded)
    assert resumed.runs["mlp"][1].result["attempts"] == 2


def test_a_full_disk_is_no_result_of_a_model(folded: Benchmark, tmp_path: Path) -> None:
    """The study ends, and the models that are left are trained once there is room."""
    asked: dict[str, Any] = {"models": ["toy", ABSENT, "mlp"], "params": {"mlp": {"hidden": [8]}}, "folds": 3}
    with (
        full_disk(after=4),
        pytest.raises(TrainingError, match=r"model toy, fold . cannot be trained now: .*No space.*--resume"),
    ):
        trainwright.benchmark(TOY, **asked, runs_dir=tmp_path)
    (path,) = tmp_path.rglob("benchmark-*")
    assert not Benchmark(path).failed
    resumed = trainwright.benchmark(TOY, **asked, runs_dir=tmp_path, resume=True)
    assert resumed.path == path
    assert without_cost(resumed) == without_cost(folded)


def test_a_failed_model_is_tried_again_the_others_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked: dict[str, Any] = {"models": ["toy", "later_package:Net"], "runs_dir": tmp_path / "runs"}
    first = trainwright.benchmark(TOY, **asked)
    assert set(first.failed) == {"later_package:Net"}
    kept = first.runs["toy"][0]
    (tmp_path / "later_package.py").write_text(
        "import torch\nclass Net(torch.nn.Linear):\n    def __init__(self):\n        super().__init__(4, 3)\n",
        encoding="utf-8",
    )
    again = trainwright.benchmark(TOY, **asked, resume=True)
    assert (again.path, again.status, again.failed) == (first.path, "completed", {})
    assert (again.runs["toy"][0].id, again.runs["toy"][0].result["attempts"]) == (kept.id, 1)


def rows(path: Path, seed: int) -> None:
    draw = np.random.default_rng(seed)
    values = draw.normal(size=(80, 2))
    lines = [f"{a:.4f},{b:.4f},{'yes' if a + b > 0 else 'no'}" for a, b in values]
    path.write_text("\n".join(["a,b,y", *lines]) + "\n", encoding="utf-8")


@pytest.fixture
def from_files(tmp_path: Path) -> dict[str, Any]:
    """A config with rows for training and for testing in files of their own."""
    for seed, name in enumerate(("train", "test")):
        rows(tmp_path / f"{name}.csv", seed)
    data = {
        "type": "csv",
        "train_path": str(tmp_path / "train.csv"),
        "test_path": str(tmp_path / "test.csv"),
        "target": "y",
    }
    return {**TOY, "data": data}


def test_models_of_different_training_rows_are_not_ranked(from_files: dict[str, Any], tmp_path: Path) -> None:
    asked: dict[str, Any] = {
        "models": ["toy", "mlp"],
        "params": {"mlp": {"hidden": [4]}},
        "runs_dir": tmp_path / "runs",
    }
    cut = trainwright.benchmark(from_files, **asked, watch=signal_after(0))
    rows(tmp_path / "train.csv", 2)
    with pytest.raises(
        ChangedInputsError, match=rf"(?s)run {cut.runs['toy'][0].id}: data: train split, sha256 was"
    ) as caught:
        trainwright.benchmark(from_files, **asked, resume=True)
    assert caught.value.exit_code == 2
    assert (cut.status, list(cut.runs), cut.rows) == ("preempted", ["toy"], [])
    rows(tmp_path / "train.csv", 0)
    assert trainwright.benchmark(from_files, **asked, resume=True).path == cut.path
    assert cut.status == "completed"


def test_rows_that_change_while_it_trains(from_files: dict[str, Any], tmp_path: Path) -> None:
    def change(_: Any) -> None:
        rows(tmp_path / "train.csv", 2)

    with pytest.raises(ChangedInputsError, match="data: train split, sha256 was"):
        trainwright.benchmark(from_files, models=["toy", "mlp"], runs_dir=tmp_path / "runs", watch=change)


def test_models_of_different_code_are_not_ranked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = (
        "import torch\nclass Net(torch.nn.Linear):\n    def __init__(self):\n        super().__init__(4, 3)\n"
    )
    (tmp_path / "edited_package.py").write_text(source, encoding="utf-8")
    asked: dict[str, Any] = {"models": ["edited_package:Net", "toy"], "runs_dir": tmp_path / "runs"}
    trainwright.benchmark(TOY, **asked, watch=signal_after(0))
    (tmp_path / "edited_package.py").write_text(source + "# edited\n", encoding="utf-8")
    with pytest.raises(ChangedInputsError, match="code: module edited_package was"):
        trainwright.benchmark(TOY, **asked, resume=True)


# -- the ranking itself


@pytest.fixture
def without_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    model = StoredModel(Path(__file__).parent, DataDescription(info={}), Path("data.json"))
    monkeypatch.setattr(StoredModel, "bytes", 1)
    monkeypatch.setattr(ranking, "stored_model", lambda run: model)


@pytest.mark.usefixtures("without_weights")
def test_equal_models_have_equal_ranks_in_the_order_given(tmp_path: Path) -> None:
    """Whichever is the fastest."""
    kinds = ["svm", "toy", "mlp"]
    means = {"svm": 0.8, "toy": 0.9, "mlp": 0.8}
    for order in itertools.permutations(kinds):
        table = ranked([entry(tmp_path, kind, means[kind], means[kind]) for kind in order], "accuracy", {})
        tied = [kind for kind in order if kind != "toy"]
        assert [(row.rank, row.model) for row in table] == [(1, "toy"), (2, tied[0]), (2, tied[1])]
    table = ranked([entry(tmp_path, kind, math.nan, math.nan) for kind in kinds], "accuracy", {})
    assert [(row.rank, row.model) for row in table] == [(1, kind) for kind in kinds]


@pytest.mark.usefixtures("without_weights")
def test_p_values_are_adjusted_for_all_pairs(tmp_path: Path) -> None:
    folds = {"a": [0.90, 0.92, 0.91], "b": [0.86, 0.87, 0.88], "c": [0.5, 0.52, 0.49]}
    table = ranked([entry(tmp_path, name, *values) for name, values in folds.items()], "accuracy", {})
    p_values = [over_folds("accuracy", folds[i], folds[j], 0.5).p_value for i, j in ("ab", "ac", "bc")]
    assert [row.p_value for row in table] == [None, *p_values[:2]]
    assert [row.p_adjusted for row in table] == [None, *holm(p_values)[:2]]


def entry(folder: Path, model: str, *values: float) -> Entry:
    """A model with these accuracies on its folds, trained in no time that could be told beforehand."""
    runs = []
    for fold, value in enumerate(values):
        run = RunDir(folder / f"{model}-{fold}")
        run.path.mkdir(exist_ok=True)
        seconds = float(np.random.default_rng().random())
        write_record(
            run.path / "result.json",
            {"status": "completed", "metrics": {"test_accuracy": finite(value)}, "train_seconds": seconds},
        )
        write_record(
            run.path / "manifest.json",
            {
                "run_id": run.id,
                "experiment": "e",
                "data": {"splits": {"train": {"rows": 100}, "test": {"rows": 50}}},
            },
        )
        runs.append(run)
    return Entry(model, runs, None, Latency(1.0, 1000.0))  # type: ignore[arg-type]


def test_config_errors_are_those_of_configs() -> None:
    with pytest.raises(ConfigError):
        trainwright.benchmark({"model": {"type": "toy"}}, models=["toy"])


@pytest.mark.parametrize("task", ["auto", "classification"])
def test_a_metric_of_another_task_is_refused_before_anything_is_trained(task: str, tmp_path: Path) -> None:
    ended: list[Any] = []
    with pytest.raises(
        InputError, match="metric 'test_rmse' is for regression, but the task is classification"
    ):
        trainwright.benchmark(
            TOY,
            {"data.task": task},
            models=["toy", "mlp"],
            metric="test_rmse",
            runs_dir=tmp_path,
            watch=ended.append,
        )
    assert (ended, list(tmp_path.iterdir())) == ([], [])


@pytest.mark.slow
def test_gaps_are_filled_for_the_models_that_take_none(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = [f"{x:.4f},{'ab'[i % 2]},{x * 2 + i % 2:.4f}" for i, x in enumerate(random.standard_normal(90))]
    rows[3] = rows[3][rows[3].index(",") :]
    rows[5] = rows[5].replace(",b,", ",,")
    (tmp_path / "rows.csv").write_text("\n".join(["x,c,y", *rows]) + "\n")
    config = {"data": {"path": str(tmp_path / "rows.csv"), "target": "y"}, "model": {"type": "mlp"}}
    params = {"hist_gradient_boosting": {"max_iter": 10}}
    models = ["ridge", "hist_gradient_boosting"]
    compared = trainwright.benchmark(config, models=models, params=params, runs_dir=tmp_path)
    assert compared.failed == {}
    prepared = {row["model"]: row["preparation"] for row in compared.rows}
    assert prepared["ridge"].startswith("impute median")
    assert prepared["hist_gradient_boosting"].startswith("impute keep")
    one, other = (compared.runs[model][0].manifest["data"] for model in models)
    assert one["rows"] == other["rows"]


def test_rows_without_gaps_are_prepared_as_in_a_run_of_its_own(single: Benchmark) -> None:
    assert all(run.config.data.impute is None for runs in single.runs.values() for run in map(_config, runs))


def _config(run: Any) -> Any:
    return load_config(run.path / "config.yaml")
