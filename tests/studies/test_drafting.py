"""`trainwright init`: what it proposes trains as it is printed, and models are compared on request."""

from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
import pytest

import messy_tables
import trainwright
from trainwright.config import load as load_config
from trainwright.datasets.samples import remote
from trainwright.datasets.tables import proposals
from trainwright.errors import InputError
from trainwright.runs.catalog import Catalog
from trainwright.studies import drafting
from trainwright.types import TableShape

QUICK = ["training.threads=1", "training.device=cpu"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(table: messy_tables.Messy, name: str = "rows.csv", **options: Any) -> Any:
    """Write a table and its config, and return the config."""
    frame = table.frame
    frame.to_parquet(name) if name.endswith(".parquet") else frame.to_csv(
        name, index=False, sep="\t" if name.endswith(".tsv") else ","
    )
    Path("config.yaml").write_text(trainwright.init(name, table.target, **options))
    return load_config(Path("config.yaml"), adapters=Catalog()).config


@pytest.mark.slow
@pytest.mark.parametrize("name", messy_tables.TABLES)
def test_messy_tables_train_as_they_are_drafted(name: str) -> None:
    written(messy_tables.TABLES[name]())
    length = "model.n_estimators=5"
    run = trainwright.train("config.yaml", [*QUICK, length])
    assert run.status == "completed"
    assert all(np.isfinite(value) for value in run.metrics.values())


@pytest.mark.slow
def test_a_drafted_config_trains_with_any_model_that_is_proposed() -> None:
    table = messy_tables.visits(120)
    shape = TableShape(100, 3, 3)
    for model in proposals.candidates(shape):
        written(table, model=model)
        changes = {"mlp": ["training.epochs=2"], "random_forest": ["model.n_estimators=10"]}
        has_rounds = "n_estimators" in proposals.sections(model, shape)["model"]
        boosted = ["model.n_estimators=5"] if has_rounds else []
        run = trainwright.train("config.yaml", [*QUICK, *changes.get(model, boosted)])
        assert run.status == "completed", model


def test_rare_classes_are_not_measured_by_accuracy() -> None:
    config = written(messy_tables.rare_positives(1000))
    assert config.evaluation.metrics == ["average_precision", "roc_auc", "f1"]


def test_groups_are_kept_together_where_they_are_evident() -> None:
    config = written(messy_tables.visits())
    assert config.data.split.group == "patient_id"
    assert "set `time: visit_date` under split" in Path("config.yaml").read_text()


def test_rows_in_order_of_time_are_split_by_it() -> None:
    frame = pd.DataFrame({"day": pd.date_range("2024-01-01", periods=90), "x": range(90)})
    frame["x"] = frame["x"] * 7 % 13
    config = written(messy_tables.Messy(frame.assign(y=frame["x"] * 0.37)))
    assert config.data.split.time == "day"


def test_groups_that_cannot_be_split_are_a_remark() -> None:
    """A class that only one group has would have no training rows, or none to test."""
    frame = pd.DataFrame({"patient_id": [f"p{i // 4}" for i in range(80)], "x": np.arange(80) * 7 % 31})
    frame["y"] = [f"class {i // 4}" for i in range(80)]
    config = written(messy_tables.Messy(frame))
    assert config.data.split.group is None
    assert "group: patient_id" in Path("config.yaml").read_text()


def test_parquet_and_tabs_are_read() -> None:
    pytest.importorskip("pyarrow")
    table = messy_tables.identifiers(100)
    assert written(table, "rows.parquet").data.type == "parquet"
    tabs = written(table, "rows.tsv").data
    assert (tabs.type, tabs.params["delimiter"]) == ("csv", "\t")


def test_a_url_is_kept_as_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    messy_tables.identifiers(100).frame.to_csv("copy.csv", index=False)
    monkeypatch.setattr(remote, "fetched", lambda _: Path("copy.csv"))
    assert "  path: s3://bucket/rows.csv\n" in trainwright.init("s3://bucket/rows.csv", "y")


def test_gaps_are_filled_for_models_that_take_none() -> None:
    frame = messy_tables.visits(120).frame.drop(columns=["patient_id", "visit_date"])
    frame.loc[3, "x0"] = None
    table = messy_tables.Messy(frame)
    assert written(table, model="logistic_regression").data.impute == "median"
    assert written(table, model="lightgbm").data.impute == "keep"


def test_lightgbm_has_its_own_defaults_but_for_few_rows() -> None:
    def least(shape: TableShape) -> int:
        proposed = dict(proposals.sections("lightgbm", shape)["model"])
        own = lightgbm.LGBMClassifier().get_params()
        assert proposed.pop("type") == "lightgbm"
        assert proposed.pop("n_estimators") == 2000, "as many as improve"
        value = proposed.pop("min_child_samples")
        assert proposed.items() <= own.items()
        return int(value)

    assert least(TableShape(1000, 10)) == lightgbm.LGBMClassifier().min_child_samples
    assert least(TableShape(50, 3)) == 10
    assert least(TableShape(1000, 1100)) == 3


def test_the_config_says_why() -> None:
    written(messy_tables.visits(120), model="lightgbm")
    text = Path("config.yaml").read_text()
    reasons = proposals.reasons("lightgbm", TableShape(100, 3))
    for key in ("min_child_samples", "patience"):
        (line,) = (one for one in text.splitlines() if one.strip().startswith(f"{key}:"))
        assert line.endswith(f"  # {reasons[key]}")


def test_a_model_that_is_not_there_is_named() -> None:
    with pytest.raises(InputError, match="lightbgm"):
        written(messy_tables.visits(120), model="lightbgm")


def test_the_default_is_the_first_library_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proposals, "find_spec", lambda name: name in ("catboost", "torch") or None)
    assert proposals.default_model(TableShape(100, 3)) == "catboost"
    monkeypatch.setattr(proposals, "find_spec", lambda name: name == "torch" or None)
    assert proposals.default_model(TableShape(100, 3)) == "mlp"


def test_the_candidates_differ_and_the_default_one_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proposals, "find_spec", lambda name: name)
    others = ["random_forest", "catboost", "mlp", "xgboost"]
    assert proposals.candidates(TableShape(100, 3, 2)) == ["lightgbm", "logistic_regression", *others]
    assert proposals.candidates(TableShape(100, 3)) == ["lightgbm", "ridge", *others]
    several = ["xgboost", "ridge", "random_forest", "catboost", "mlp"]
    assert proposals.candidates(TableShape(100, 3, several="values")) == several
    several.remove("ridge")
    assert proposals.candidates(TableShape(100, 3, several="labels")) == several


@pytest.mark.slow
def test_models_are_compared_and_the_best_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    frame = pd.DataFrame(random.standard_normal((150, 8)), columns=[f"x{i}" for i in range(8)])
    table = messy_tables.Messy(frame.assign(y=frame.sum(axis=1)))
    monkeypatch.setattr(drafting, "candidates", lambda _: ["lightgbm", "ridge"])
    config = written(table, model="auto")
    assert config.model.type == "ridge"
    text = Path("config.yaml").read_text()
    assert "compared on rows that are not tested (r2):" in text
    assert "<- proposed" in next(line for line in text.splitlines() if line.startswith("#   ridge"))
    assert sorted(Path().iterdir()) == [Path("config.yaml"), Path("rows.csv")], (
        "a trial left something behind"
    )


def test_the_rows_of_the_test_do_not_choose_the_model() -> None:
    table = messy_tables.identifiers(200)
    table.frame.to_csv("rows.csv", index=False)
    draft = drafting.draft_config("rows.csv", "y")
    _, bundle = drafting._checked(draft, "lightgbm")
    seen = drafting._seen(draft.table, bundle)
    assert len(seen) == len(bundle.rows["train"]) + len(bundle.rows["val"])
    assert not set(seen.columns["uuid"]) & set(draft.table.columns["uuid"][bundle.rows["test"]])
