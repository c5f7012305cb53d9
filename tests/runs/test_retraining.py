"""Runs that train the config of another one on next month's data, and how the two models compare."""

import hashlib
import json
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from PIL import Image
from sklearn.metrics import accuracy_score, f1_score

import trainwright
from trainwright.cli.main import main
from trainwright.config.schema import DataConfig
from trainwright.datasets.base import PLAIN
from trainwright.errors import GateError, InputError, TrainwrightError
from trainwright.numerals import number
from trainwright.plugins import adapter
from trainwright.records.run_dir import RunDir
from trainwright.runs.run import Run
from trainwright.runs.run_config import read_config

LOGISTIC = {"type": "logistic_regression"}
BY_HASH = {"by": "hash", "key": "id", "val": 0.2, "test": 0.2}
METRICS = {"metrics": ["f1", "accuracy"]}


def customers(count: int, seed: int = 0) -> pd.DataFrame:
    """Return customers, of which the first ones are always the same."""
    draw = np.random.default_rng(seed)
    numbers = draw.normal(size=(count, 3)).round(4)
    churn = np.where(numbers[:, 0] + numbers[:, 1] / 2 + numbers[:, 2] > 0.3, "yes", "no")
    return pd.DataFrame({"id": range(count), "a": numbers[:, 0], "b": numbers[:, 1], "churn": churn})


def of_the_test(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the test rows, from the hashes of their ids."""
    texts = [hashlib.sha256(f"0\x1f{one}".encode()).hexdigest()[:16] for one in frame["id"]]
    return frame[[int(text, 16) / 2**64 < BY_HASH["test"] for text in texts]]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    customers(600).to_csv("january.csv", index=False)
    customers(900).sample(frac=1, random_state=1).to_csv("february.csv", index=False)
    return tmp_path


def trained(path: str = "january.csv", split: Any = None, **sections: Any) -> Run:
    data = {"path": path, "target": "churn", "split": split or {}, "exclude": [] if split else ["id"]}
    config = {"data": data, "model": LOGISTIC, "evaluation": METRICS, "training": {"threads": 1}}
    return trainwright.train({**config, **sections}, runs_dir="runs", quiet=True)


def test_models_are_compared_on_the_test_rows_of_the_new_table(here: Path) -> None:
    parent = trained(split=BY_HASH)
    child = trainwright.retrain(parent, data="february.csv", quiet=True)
    found, own = child.retraining, of_the_test(pd.read_csv(here / "february.csv"))
    assert child.parent == {"run_id": parent.id, "relation": "retrain", "step": None}
    assert (found["rows"]["test"], found["left_out"]) == (len(own), {"test": 0, "val": 0})
    for name, run in (("parent", parent), ("child", child)):
        answers = trainwright.load(run).predict(own)["prediction"]
        assert found[name]["run_id"] == run.id
        assert found[name]["test_f1"] == pytest.approx(f1_score(own["churn"], answers, pos_label="yes"))
        assert found[name]["test_accuracy"] == pytest.approx(accuracy_score(own["churn"], answers))
    difference = found["differences"]["test_accuracy"]
    assert difference["effect"] == found["child"]["test_accuracy"] - found["parent"]["test_accuracy"]
    assert difference["low"] <= difference["effect"] <= difference["high"]
    assert difference["pairs"] == len(own)
    assert found["child"]["test_f1"] == pytest.approx(child.metrics["test_f1"])
    page = (child.path / "report.html").read_text()
    assert f"{len(own)} of test" in page
    assert f'<td class="n">{number(found["parent"]["test_f1"])}</td>' in page
    assert trainwright.reproduce(child, quiet=True).verdict == "identical"


def test_a_file_may_be_written_over_where_keys_decide(here: Path) -> None:
    parent = trained(split=BY_HASH)
    customers(900).to_csv(here / "january.csv", index=False)
    child = trainwright.retrain(parent, data="january.csv", quiet=True)
    assert child.retraining["rows"]["test"] == len(of_the_test(customers(900)))


def test_rows_that_the_parent_learned_from_are_left_out(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    parent = trained(split={"val": 0.2, "test": 0.2})
    with caplog.at_level(logging.WARNING):
        child = trainwright.retrain(parent, data="february.csv", quiet=True)
    ids = {}
    for path in ("january.csv", "february.csv"):
        settings = {"type": "csv", "path": path, "target": "churn", "split": {"val": 0.2, "test": 0.2}}
        reader = adapter("dataset", "csv")
        rows = reader(DataConfig.model_validate(settings), reader.Params()).load(PLAIN).rows
        frame = pd.read_csv(path)
        ids[path] = {name: set(frame["id"].iloc[one]) for name, one in rows.items()}
    before, now = ids.values()
    left = len(now["test"] & (before["train"] | before["val"]))
    assert 0 < left < len(now["test"])
    found = child.retraining
    assert found["left_out"] == {"test": left, "val": len(now["val"] & before["train"])}
    assert found["rows"]["test"] == len(now["test"]) - left
    assert f"{left} of {len(now['test'])} test rows are left out of the comparison" in caplog.text
    kept = pd.read_csv(here / "february.csv").query(
        "id in @kept", local_dict={"kept": now["test"] - before["train"] - before["val"]}
    )
    answers = trainwright.load(parent).predict(kept)["prediction"]
    assert found["parent"]["test_accuracy"] == pytest.approx(accuracy_score(kept["churn"], answers))


def test_rows_with_a_column_more_are_known_again(here: Path) -> None:
    """The hash of their content is another one, so that rows that trained the parent test the child."""
    by_content = {"by": "hash", "val": 0.2, "test": 0.2}
    parent = trained(split=by_content)
    pd.read_csv("january.csv").assign(more=1.5).to_csv("more.csv", index=False)
    child = trainwright.retrain(parent, data="more.csv", quiet=True)
    found = child.retraining
    assert 0 < found["rows"]["test"] < 60 < found["left_out"]["test"]


def test_rows_of_separate_files(here: Path) -> None:
    frame = customers(900)
    for name, start, stop in (("train", 0, 400), ("val", 400, 500), ("test", 450, 600), ("more", 0, 300)):
        frame.iloc[start:stop].to_csv(here / f"{name}.csv", index=False)
    data = {f"{name}_path": f"{name}.csv" for name in ("train", "val", "test")}
    config = {"data": {**data, "target": "churn"}, "model": LOGISTIC, "evaluation": METRICS}
    parent = trainwright.train(config, runs_dir="runs", quiet=True)
    child = trainwright.retrain(parent, data="more.csv", quiet=True)
    assert read_config(RunDir(child.path)).flat()["data.test_path"] == "test.csv"
    assert (child.retraining["rows"], child.retraining["left_out"]) == (
        {"test": 100, "val": 100},
        {"test": 50, "val": 0},
    )


def test_the_gate(here: Path) -> None:
    parent = trained(split=BY_HASH)
    child = trainwright.retrain(parent, data="february.csv", gate="test_f1 >= parent - 0.5", quiet=True)
    assert child.retraining["gate"]["passed"]
    with pytest.raises(GateError, match=r"not passed by run .*val_f1 >= parent \+ 0\.9"):
        trainwright.retrain(parent, data="february.csv", gate="val_f1 >= parent + 0.9", quiet=True)
    kept = trainwright.get("last", runs_dir="runs")
    assert (kept.status, kept.retraining["gate"]["passed"]) == ("completed", False)
    before = len(trainwright.list_runs("runs"))
    for gate in ("test_f2 >= 0.8", "test_f1 >= champion"):
        with pytest.raises(InputError, match="gate"):
            trainwright.retrain(parent, data="february.csv", gate=gate, quiet=True)
    assert len(trainwright.list_runs("runs")) == before


def test_the_command(here: Path) -> None:
    trained(split=BY_HASH)
    words = ["retrain", "last", "--data", "february.csv", "--runs-dir", "runs", "--quiet"]
    done = CliRunner().invoke(
        main_command(), [*words, "--gate", "test_f1 >= parent - 0.5", "training.epochs=2"]
    )
    assert done.exit_code == 0, done.output
    count = len(of_the_test(customers(900)))
    assert f"{count} test rows" in done.output
    assert "95% interval" in done.output
    assert "gate: test_f1 >= parent - 0.5: passed" in done.output
    done = CliRunner().invoke(main_command(), [*words, "--json"])
    document = json.loads(done.stdout)
    assert document["retraining"]["rows"]["test"] == count
    assert document["status"] == "completed"


def main_command() -> Any:
    from trainwright.cli.commands import cli

    return cli


def test_a_gate_that_is_not_passed_ends_with_3(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained(split=BY_HASH)
    words = ["retrain", "last", "--data", "february.csv", "--runs-dir", "runs", "--quiet"]
    assert main([*words, "--gate", "test_f1 > parent + 0.9"]) == 3
    assert "not passed" in capsys.readouterr().err


def test_where_the_rows_of_the_parent_are_gone(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    parent = trained()
    customers(700, seed=5).to_csv(here / "january.csv", index=False)
    with pytest.raises(InputError, match=r"gate cannot be judged.*have changed"):
        trainwright.retrain(parent, data="february.csv", gate="test_f1 >= parent", quiet=True)
    assert len(trainwright.list_runs("runs")) == 1
    with caplog.at_level(logging.WARNING):
        child = trainwright.retrain(parent, data="february.csv", quiet=True)
    assert "will not be compared" in caplog.text
    assert (child.status, child.retraining) == ("completed", {})


def test_paths_are_those_from_here_and_types_those_of_the_files(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = trained(split=BY_HASH)
    (here / "other").mkdir()
    monkeypatch.chdir(here / "other")
    customers(900).to_parquet("march.parquet")
    child = trainwright.retrain(parent.path, data="march.parquet", quiet=True)
    assert read_config(RunDir(child.path)).flat()["data.path"] == str(here / "other" / "march.parquet")
    assert child.path.parent == parent.path.parent
    assert child.retraining["rows"]["test"] == len(of_the_test(customers(900)))


def test_warm_starts(here: Path) -> None:
    long = {
        "training": {"epochs": 3, "threads": 1, "batch_size": 64},
        "model": {"type": "mlp", "hidden": [8]},
    }
    parent = trained(split=BY_HASH, **long)
    cold, warm = (
        trainwright.retrain(
            parent,
            {"training.epochs": 1, "training.learning_rate": 1e-9},
            data="january.csv",
            warm_start=one,
            quiet=True,
        )
        for one in (False, True)
    )
    assert RunDir(warm.path).require_manifest().init_from == str(parent.path)
    close = {
        name: abs(run.metrics["val_loss"] - parent.metrics["val_loss"])
        for name, run in (("cold", cold), ("warm", warm))
    }
    assert close["warm"] < 1e-5 < close["cold"]


def test_another_type_of_table_keeps_its_settings(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Such as the step that makes features, which gets texts of a file without types."""
    january, march = customers(600), customers(700)
    january.to_csv("january.csv", sep=";", decimal=",", index=False)
    march.to_parquet("march.parquet")
    march.to_csv("march.csv", sep=";", decimal=",", index=False)
    customers(900).to_parquet("large.parquet")
    Path("more_columns.py").write_text(
        "def double(frame):\n    return frame.assign(c=frame['id'].astype(float) * 2)\n"
    )
    data = {
        "path": "january.csv",
        "target": "churn",
        "split": BY_HASH,
        "params": {"delimiter": ";"},
        "features_from": "more_columns:double",
        "expect": {"rows": "<= 800"},
        "columns": {"b": "number"},
    }
    config = {"data": data, "model": LOGISTIC, "evaluation": METRICS, "training": {"threads": 1}}
    parent = trainwright.train(config, runs_dir="runs", quiet=True)
    with caplog.at_level(logging.WARNING):
        child = trainwright.retrain(parent, data="march.parquet", quiet=True)
    assert "data.type is parquet instead of csv: csv's params dropped" in caplog.text
    of_csv = trainwright.retrain(parent, data="march.csv", quiet=True)
    assert child.retraining["parent"]["test_f1"] == of_csv.retraining["parent"]["test_f1"]
    flat = read_config(RunDir(child.path)).flat()
    assert (flat["data.features_from"], flat["data.columns.b.type"]) == ("more_columns:double", "number")
    with pytest.raises(TrainwrightError, match="there are 900 rows, but expected: <= 800"):
        trainwright.retrain(parent, data="large.parquet", quiet=True)


def test_keys_that_lost_their_zeros_are_named(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Their rows change their splits, so that rows that trained the parent test the child."""
    frames = {name: pd.read_csv(f"{name}.csv") for name in ("january", "february")}
    for name, frame in frames.items():
        frame.assign(id=[f"{one:06}" for one in frame["id"]]).to_csv(f"{name}.csv", index=False)
    frames["february"].to_csv("pandas.csv", index=False)
    frames["february"].assign(id=frames["february"]["id"] + 10_000).to_csv("others.csv", index=False)
    parent = trained(split=BY_HASH)
    with caplog.at_level(logging.WARNING):
        child = trainwright.retrain(parent, data="february.csv", quiet=True)
        assert "data.split" not in caplog.text
        assert child.retraining["rows"]["test"]
        lost = trainwright.retrain(parent, data="pandas.csv", quiet=True)
        assert "are written differently than in the data of run" in caplog.text
        assert lost.retraining == {}
        with pytest.raises(GateError, match=r"cannot be judged: \d+ of \d+ keys of data\.split"):
            trainwright.retrain(parent, data="pandas.csv", gate="test_f1 > 0.1", quiet=True)
        caplog.clear()
        other = trainwright.retrain(parent, data="others.csv", quiet=True)
        assert re.search(r" 0 of [1-6]\d keys of data.split", caplog.text)
        assert other.retraining["rows"]["test"]


def test_a_deleted_version_of_the_parent_is_not_needed_where_keys_decide(here: Path) -> None:
    for name in ("january", "february"):
        trainwright.data_add(f"{name}.csv", "clients", runs_dir="runs")
    parent = trained("clients@v1", BY_HASH)
    trainwright.data_delete("clients@v1", force=True, runs_dir="runs")
    child = trainwright.retrain(parent, data="clients@v2", gate="test_f1 > 0.1", quiet=True)
    assert child.retraining["rows"]["test"] == len(of_the_test(customers(900)))


def colored(count: int, colors: str, labels: tuple[str, str] = ("no", "yes")) -> pd.DataFrame:
    """Return customers with a color, on which their label depends."""
    frame = customers(count)
    frame["color"] = [colors[one % len(colors)] for one in frame["id"]]
    frame["churn"] = np.where(frame["color"].isin(["b", "d"]), labels[1], labels[0])
    return frame


@pytest.mark.parametrize(
    ("model", "encode", "colors"),
    [
        ("lightgbm", "auto", "abcde"),
        ("xgboost", "auto", "bcdx"),
        ("mlp", "onehot", "bcdx"),
        ("mlp", "ordinal", "abcde"),
    ],
)
def test_weights_are_not_taken_for_other_categories(
    here: Path, model: str, encode: str, colors: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The codes of categories are their places in the alphabet, so that one more gives others new meanings."""
    colored(400, "bcde").to_csv("january.csv", index=False)
    colored(400, colors).to_csv("february.csv", index=False)
    data = {"path": "january.csv", "target": "churn", "split": BY_HASH, "encode": encode}
    config = {"data": data, "model": model, "training": {"epochs": 1, "threads": 1}}
    parent = trainwright.train(config, runs_dir="runs", quiet=True)
    words = ["retrain", parent.id, "--data", "february.csv", "--runs-dir", "runs", "--quiet"]
    assert main([*words, "--warm-start"]) == 2
    gone = "".join(f"; gone: '{one}'" for one in "e" if one not in colors)
    assert f"the categories of column 'color' differ (new: '{(set(colors) - set('bcde')).pop()}'{gone})" in (
        capsys.readouterr().err
    )
    assert main([*words[:3], "january.csv", *words[4:], "--warm-start"]) == 0
    if model == "mlp":
        with pytest.raises(InputError, match=r"('color'|list of features).* does not fit"):
            trainwright.fork(parent, {"data.path": "february.csv", "training.epochs": 3}, quiet=True)


def test_weights_are_not_taken_for_other_classes(here: Path) -> None:
    colored(400, "abcd").to_csv("january.csv", index=False)
    colored(400, "abcd", ("no", "aye")).to_csv("february.csv", index=False)
    parent = trained(split=BY_HASH, model="lightgbm")
    with pytest.raises(InputError, match=r"classes differ \(new: 'aye'; gone: 'yes'\); leave out"):
        trained("february.csv", BY_HASH, model={"type": "lightgbm", "init_from": parent.id})


def test_boosters_go_on_with_the_trees_of_the_parent(here: Path) -> None:
    booster = {"type": "lightgbm", "num_iterations": 5}
    parent = trained(split=BY_HASH, model=booster)
    child = trainwright.retrain(parent, data="february.csv", warm_start=True, quiet=True)
    trees = [trainwright.load(run).native.num_trees() for run in (parent, child)]
    assert trees[0] < trees[1]


@pytest.mark.parametrize("model", ["logistic_regression", "catboost"])
def test_models_that_cannot_begin_with_weights_are_refused(here: Path, model: str) -> None:
    parent = trained(
        split=BY_HASH, model={"type": model} | ({"iterations": 3} if model == "catboost" else {})
    )
    with pytest.raises(TrainwrightError, match=r"model\.init_from"):
        trainwright.retrain(parent, data="february.csv", warm_start=True, quiet=True)


def test_runs_without_files_are_refused(here: Path) -> None:
    digits = trainwright.train({"data": "iris", "model": LOGISTIC}, runs_dir="runs", quiet=True)
    with pytest.raises(InputError, match="was not trained on files: its data are iris"):
        trainwright.retrain(digits, data="february.csv", quiet=True)
    frame = trainwright.train(
        {"data": {"target": "churn"}, "model": LOGISTIC}, data=customers(100), runs_dir="runs", quiet=True
    )
    with pytest.raises(InputError, match="was given data as objects"):
        trainwright.retrain(frame, data="february.csv", quiet=True)


def test_other_classes_are_not_compared(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    parent = trained(split=BY_HASH)
    frame = customers(900)
    frame.loc[frame["a"] > 1, "churn"] = "perhaps"
    frame.to_csv("march.csv", index=False)
    with caplog.at_level(logging.WARNING):
        child = trainwright.retrain(parent, data="march.csv", quiet=True)
    assert "their classes differ" in caplog.text
    assert child.status == "completed"
    with pytest.raises(GateError, match="their classes differ"):
        trainwright.retrain(parent, data="march.csv", gate="test_f1 > 0.1", quiet=True)


@pytest.mark.parametrize("shape", [(4,), (2, 2)])
def test_arrays_are_recognised_by_their_content(here: Path, shape: tuple[int, ...]) -> None:
    draw = np.random.default_rng(0)
    rows = draw.normal(size=(400, *shape)).astype(np.float32)
    target = (rows.reshape(400, -1).sum(axis=1) > 0).astype(int)
    np.savez("a.npz", X=rows[:200], y=target[:200])
    order = draw.permutation(400)
    np.savez("b.npz", X=rows[order], y=target[order])
    config = {"data": {"path": "a.npz"}, "model": {"type": "mlp", "hidden": [4]}, "training": {"epochs": 1}}
    parent = trainwright.train(config, runs_dir="runs", quiet=True)
    child = trainwright.retrain(parent, data="b.npz", quiet=True)
    found = child.retraining
    assert found["rows"]["test"] + found["left_out"]["test"] == 40
    assert 10 < found["left_out"]["test"] < 30  # most of half of them


def images(folder: Path, count: int) -> Path:
    """Write images of two colors, which are harder to tell apart the later they come."""
    draw = np.random.default_rng(0)
    folder.mkdir(exist_ok=True)
    rows = []
    for i in range(count):
        pixels = draw.integers(0, 200, (6, 6, 3)) + (i % 2) * np.array([55, 0, 0])
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{i}.png")
        rows.append({"image": f"{i}.png", "id": i, "color": ["gray", "red"][i % 2]})
    pd.DataFrame(rows).to_csv(folder / f"{count}.csv", index=False)
    return folder / f"{count}.csv"


def test_images_are_compared_as_each_model_takes_them(here: Path) -> None:
    """Each model scales pixels by the mean of its own training images."""
    data = {
        "type": "image_table",
        "path": str(images(here / "images", 80)),
        "target": "color",
        "split": BY_HASH,
    }
    config = {
        "data": {**data, "transforms": [{"type": "normalize"}]},
        "model": {"type": "cnn", "channels": [4]},
        "training": {"epochs": 2, "threads": 1},
        "evaluation": {"metrics": ["accuracy"]},
    }
    parent = trainwright.train(config, runs_dir="runs", quiet=True)
    table = images(here / "images", 200)
    child = trainwright.retrain(parent, data=table, quiet=True)
    own = of_the_test(pd.read_csv(table))
    paths = [here / "images" / name for name in own["image"]]
    for name, run in (("parent", parent), ("child", child)):
        answers = trainwright.load(run).predict(paths)["prediction"]
        found = child.retraining[name]["test_accuracy"]
        assert found == pytest.approx(accuracy_score(own["color"], answers))
    assert child.retraining["rows"]["test"] == len(own)


def test_rows_of_arrow_files_are_compared(here: Path) -> None:
    for name, count in (("a", 200), ("b", 400)):
        customers(count).astype({"a": "float32", "b": "float32"}).to_parquet(f"{name}.parquet")
    data = {"path": "a.parquet", "streaming": True, "target": "churn", "split": BY_HASH}
    config = {"data": data, "model": {"type": "mlp", "hidden": [4]}, "training": {"epochs": 1, "threads": 1}}
    parent = trainwright.train(config, runs_dir="runs", quiet=True)
    child = trainwright.retrain(parent, data="b.parquet", quiet=True)
    own = of_the_test(customers(400))
    answers = trainwright.load(parent).predict(own[["a", "b"]].to_numpy(np.float32))["prediction"]
    assert child.retraining["parent"]["test_accuracy"] == pytest.approx(accuracy_score(own["churn"], answers))
