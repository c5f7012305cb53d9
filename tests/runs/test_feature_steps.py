"""Feature steps of the user's own: applied alike in training, to files and to rows; kept without pickle."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import trainwright
from trainwright.errors import DataError, InputError

MODULE = '''
import numpy as np
import pandas as pd

def features(frame):
    """Ratios, and parts of a text."""
    return pd.DataFrame({
        "ratio": frame["amount"] / frame["rooms"],
        "is_big": frame["rooms"] > 3,
        "street": frame["address"].str.split(" ").str[0],
        "late": frame["signup"] > pd.Timestamp("2021-01-01"),
    })

class Means:
    """The mean amount of each street, of the training rows."""

    def fit(self, frame, target):
        street = frame["address"].str.split(" ").str[0]
        self.means = frame["amount"].groupby(street).mean()
        self.rate = float((target == "yes").mean())
        self.rows = len(frame)
        self.seen = np.unique(street.to_numpy(dtype=str))

    def transform(self, frame):
        street = frame["address"].str.split(" ").str[0]
        return frame.assign(mean=street.map(self.means).fillna(0.0), rate=self.rate).drop(columns="address")

def per_room(frame):
    """One column, called like one of the file, from two of it."""
    return pd.DataFrame({"amount": frame["amount"] / frame["rooms"]})

def fewer(frame):
    return frame[frame["rooms"] > 2]

def sorted_rows(frame):
    return frame.sort_values("amount")

def of_all(frame):
    return frame.assign(share=frame["amount"] / frame["amount"].sum())

def of_the_row_before(frame):
    return frame.assign(before=frame["amount"].shift(1))

def of_those_so_far(frame):
    return frame.assign(so_far=frame["amount"].expanding().mean())

def of_its_place(frame):
    return frame.assign(place=range(len(frame)))

def broken(frame):
    return frame[["colour"]]

def no_frame(frame):
    return frame["amount"].to_numpy()

class First:
    """The mean amount of the first rows that it transforms, which another object of it will not know."""

    mean = None

    def transform(self, frame):
        if self.mean is None:
            self.mean = frame["amount"].mean()
        return frame.assign(above=frame["amount"] - self.mean)

class Scaled:
    """The amount as scikit-learn scales it: what is fitted is kept, not the transformer."""

    def fit(self, frame):
        from sklearn.preprocessing import StandardScaler
        scaler = StandardScaler().fit(frame[["amount"]])
        self.mean, self.scale = scaler.mean_, scaler.scale_

    def transform(self, frame):
        return frame.assign(amount=(frame["amount"] - self.mean[0]) / self.scale[0])

class Holder:
    def fit(self, frame):
        import re
        self.expression = re.compile("x")

    def transform(self, frame):
        return frame
'''


def rows(count: int = 240, seed: int = 0) -> pd.DataFrame:
    r = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "amount": np.round(r.normal(100, 30, count), 2),
            "rooms": r.integers(1, 6, count),
            "address": r.choice(["Rose 1", "Oak 2", "Elm 3"], count),
            "signup": pd.Timestamp("2020-01-01") + pd.to_timedelta(r.integers(0, 700, count), unit="D"),
        }
    )
    noise = r.normal(0, 5, count)
    frame["y"] = np.where(frame["amount"] / frame["rooms"] + noise > 35, "yes", "no")
    return frame


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("my_steps", None)
    Path("my_steps.py").write_text(MODULE)
    rows().to_csv("t.csv", index=False)
    return tmp_path


def config(name: str | None, **data: Any) -> dict[str, Any]:
    return {
        "experiment": {"name": "own"},
        "data": {"path": "t.csv", "target": "y", "features_from": name, **data},
        "model": "random_forest",
        "training": {"threads": 1},
    }


def split_of(run: Any) -> dict[str, pd.DataFrame]:
    bundle = trainwright.load(run).load_data()
    return {name: rows().iloc[ids] for name, ids in bundle.rows.items()}


@pytest.mark.parametrize("name", ["my_steps:features", "my_steps:Means"])
def test_one_result_in_training_files_frames_and_mappings(name: str) -> None:
    run = trainwright.train(config(name), quiet=True)
    test = split_of(run)["test"].drop(columns="y")
    test.to_csv("test.csv", index=False)
    test.to_parquet("test.parquet", index=False)
    expected = trainwright.load(run).predict("test.csv")["probability_yes"].to_numpy()
    predictor = trainwright.load(run)
    for given in ("test.parquet", test, test.to_dict("records"), pd.read_csv("test.csv")):
        assert np.array_equal(predictor.predict(given)["probability_yes"], expected)
    one = [predictor.predict(test.iloc[[i]])["probability_yes"].iloc[0] for i in range(3)]
    assert np.array_equal(one, expected[:3])
    split_of(run)["test"].to_csv("labeled.csv", index=False)
    own = trainwright.evaluate(run, split="test")
    assert [*trainwright.evaluate(run, data="labeled.csv").values()] == [*own.values()]


def test_a_function_trains_as_its_columns_in_a_file_do() -> None:
    import my_steps

    frame = my_steps.features(rows()).assign(y=rows()["y"])
    frame.to_csv("derived.csv", index=False)
    by_hand = trainwright.train(config(None, path="derived.csv"), quiet=True)
    run = trainwright.train(config("my_steps:features"), quiet=True)
    assert run.result["digest"] == by_hand.result["digest"]


def test_a_step_is_fitted_to_training_rows_alone_and_kept_without_pickle() -> None:
    run = trainwright.train(config("my_steps:Means"), quiet=True)
    kept = json.loads((run.path / "data.json").read_text())["preparation"]["steps"]
    steps = trainwright.load(run).preparation.steps
    train = split_of(run)["train"]
    street = train["address"].str.split(" ").str[0]
    means = steps._step.means
    assert means.to_dict() == train["amount"].groupby(street).mean().to_dict()
    assert steps._step.rows == len(train)
    assert steps._step.rate == (train["y"] == "yes").mean()
    assert kept["name"] == "my_steps:Means"
    assert "y" not in kept["dtypes"]


def test_what_a_transformer_of_scikit_learn_has_fitted_can_be_kept() -> None:
    run = trainwright.train(config("my_steps:Scaled"), quiet=True)
    loaded = trainwright.load(run).load_data()
    train = split_of(run)["train"]["amount"]
    assert set(loaded.preparation.steps.to_json()["state"]) == {"mean", "scale"}
    table = loaded.preparation.steps.open().apply(rows())
    expected = (rows()["amount"] - train.mean()) / train.std(ddof=0)
    np.testing.assert_allclose(table.columns["amount"], expected)


def test_its_code_is_an_input_and_reproduce_is_identical() -> None:
    run = trainwright.train(config("my_steps:Means"), quiet=True)
    manifest = json.loads((run.path / "manifest.json").read_text())
    assert "my_steps" in manifest["code"]["modules"]
    code = "import trainwright, sys; print(trainwright.reproduce(sys.argv[1], quiet=True).verdict)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(run.path)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert "identical" in done.stdout, done.stderr


@pytest.mark.services
@pytest.mark.parametrize("processes", [1, 2])
def test_a_killed_run_ends_with_the_bits_of_the_whole_one(processes: int) -> None:
    """The step is fitted again after a kill, in processes that order sets otherwise."""
    options = {
        "model": {"type": "mlp", "hidden": [8], "dropout": 0.2},
        "training": {"max_steps": 20, "batch_size": 16, "threads": 1},
        "checkpoint": {"every_n_steps": 4, "every_n_minutes": None},
        "logging": {"every_n_steps": 1},
        "distributed": {"virtual": {"data": 2}},
    }
    whole = trainwright.train(config("my_steps:Means") | options, quiet=True)
    Path("config.json").write_text(json.dumps(config("my_steps:Means") | options))
    train = (
        "import json, signal, trainwright; from small_runs import SignalAt; "
        "trainwright.train(json.load(open('config.json')), runs_dir='killed', quiet=True, "
        "callbacks=[SignalAt(13, signal.SIGKILL)])"
    )
    resume = (
        f"import trainwright; trainwright.resume('last', {{'distributed.nproc': {processes}}}, "
        "runs_dir='killed', quiet=True)"
    )
    paths = os.pathsep.join([".", str(Path(__file__).parents[1])])
    for seed, code, expected in (("1", train, -9), ("2", resume, 0)):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == expected, done.stderr
    run = trainwright.get("last", runs_dir="killed")
    assert (run.status, run.digest, run.metrics) == ("completed", whole.digest, whole.metrics)
    kept = [json.loads((one.path / "data.json").read_text()) for one in (whole, run)]
    assert kept[0] == kept[1]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("my_steps:fewer", r"returned \d+ rows of 240; a step must keep all rows"),
        ("my_steps:sorted_rows", "changed the order of the rows"),
        ("my_steps:of_all", "gives 'share' of 20 rows of t.csv other values alone"),
        ("my_steps:of_the_row_before", "gives 'before' of 20 rows"),
        ("my_steps:of_those_so_far", "gives 'so_far' of 20 rows"),
        ("my_steps:of_its_place", "gives 'place' of 20 rows"),
        ("my_steps:First", "gives 'above' of 20 rows"),
        ("my_steps:broken", "my_steps:broken failed: KeyError"),
        ("my_steps:no_frame", "returned ndarray; return a data frame"),
        ("my_steps:Holder", "has fitted 'expression', which holds an object of re.Pattern"),
        ("my_steps:MODULE", "my_steps has no 'MODULE'"),
        ("os:getcwd", "standard library"),
    ],
)
def test_what_is_no_step_is_refused(name: str, text: str) -> None:
    with pytest.raises(InputError, match=text):
        trainwright.train(config(name), quiet=True)


def test_rows_that_lack_a_column_are_named() -> None:
    run = trainwright.train(config("my_steps:features"), quiet=True)
    with pytest.raises(DataError, match=r"KeyError: 'address'; the rows lack 'address'"):
        trainwright.load(run).predict(rows().drop(columns=["address", "y"]))


def test_a_file_is_read_with_the_columns_that_the_step_needs() -> None:
    run = trainwright.train(config("my_steps:per_room"), quiet=True)
    new = rows(30, 3).drop(columns="y")
    new.to_csv("new.csv", index=False)
    trainwright.predict_file(run, "new.csv", "out.csv")
    expected = trainwright.load(run).predict(new)["probability_yes"]
    assert np.allclose(pd.read_csv("out.csv")["probability_yes"], expected, atol=1e-6)


def test_a_row_that_cannot_be_read_is_left_out_alone() -> None:
    run = trainwright.train(config("my_steps:Means"), quiet=True)
    good = rows(10, 3).drop(columns="y")
    bad = good.astype({"rooms": object})
    bad.loc[5, "rooms"] = "many"
    predictor = trainwright.load(run)
    made = predictor.predict(bad, on_error="null")
    expected = predictor.predict(good)["probability_yes"].drop(5)
    assert made["error"].drop(5).isna().all()
    assert "'rooms' holds numbers, but 'many'" in made["error"][5]
    assert np.array_equal(made["probability_yes"].drop(5), expected)


def test_other_data_have_no_columns() -> None:
    Path("words.txt").write_text("some words in a line\n" * 400)
    data = {"type": "text", "path": "words.txt", "length": 16, "features_from": "my_steps:features"}
    model = {"type": "gpt", "hidden_size": 8, "num_layers": 1, "num_heads": 1}
    with pytest.raises(DataError, match=r"data\.features_from is for the columns of tables"):
        trainwright.train({"data": data, "model": model, "training": {"max_steps": 1}}, quiet=True)


def test_no_format_can_hold_it() -> None:
    run = trainwright.train(config("my_steps:features"), quiet=True)
    with pytest.raises(InputError, match=r"data\.features_from\), which no format can hold"):
        trainwright.export(run, "model.onnx")
