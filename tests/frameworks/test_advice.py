"""A framework of another package is asked for what commands and reports need to know of it."""

import dataclasses
import json
from dataclasses import replace
from pathlib import Path

import pytest
from trainwright_toy import ToyFramework

import trainwright
from trainwright.config import load
from trainwright.datasets.tables import proposals
from trainwright.frameworks.base import Advice
from trainwright.plugins import adapter
from trainwright.reports.card import write_card
from trainwright.reports.diagnosis.restraint import restraint
from trainwright.reports.framework import framework_of
from trainwright.reports.rundir import read_run
from trainwright.runs.catalog import Catalog
from trainwright.types import Proposal, Suggestion, TableShape

CONFIG = {"data": {"type": "iris"}, "model": {"type": "toy"}}
TABLE = TableShape(100, 3, 3)


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    proposal = Proposal({"noise": 0.1}, {"epochs": 3}, reasons={"noise": "shakes"}, comparison_rank=9)
    advice = Advice(lambda shape: {"toy": proposal}, unrestrained={"toy": "model.params.noise: 0.5"})
    monkeypatch.setattr(ToyFramework, "advice", advice)
    library = dataclasses.replace(ToyFramework.library, hub_name="toys")
    monkeypatch.setattr(ToyFramework, "library", library)
    monkeypatch.setattr(ToyFramework, "aliases", ("play-thing",))
    assert adapter("framework", "toy") is ToyFramework


def test_a_table_gets_its_proposal() -> None:
    assert proposals.candidates(TABLE)[-1] == "toy"
    assert proposals.sections("toy", TABLE) == {
        "model": {"type": "toy", "noise": 0.1},
        "training": {"epochs": 3},
    }
    assert proposals.reasons("toy", TABLE)["noise"] == "shakes"


def test_a_search_gets_its_space(monkeypatch: pytest.MonkeyPatch) -> None:
    text = trainwright.suggest_tuning(CONFIG)
    assert "    training.learning_rate: " in text
    assert "    training.batch_size: " in text
    noise = Suggestion({"low": 0.0, "high": 1.0}, "shakes")
    monkeypatch.setattr(ToyFramework, "advice", Advice(spaces={"toy": {"model.noise": noise}}))
    text = trainwright.suggest_tuning(CONFIG)
    assert text.splitlines()[-1] == "    model.noise: {low: 0.0, high: 1.0}  # shakes"


@pytest.mark.parametrize("name", ["play-thing", "PlayThing", "Toy"])
def test_a_config_may_call_it_otherwise(name: str) -> None:
    resolved = load({**CONFIG, "model": {"type": "toy", "framework": name}}, adapters=Catalog())
    assert resolved.config.model.framework == "toy"
    assert any(f"model.framework: {name} is read as toy" in note for note in resolved.notes)


def test_reports_know_it(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(json.dumps(CONFIG))
    run = read_run(tmp_path)
    assert framework_of(run) is ToyFramework
    assert restraint(run) == {"model.params.noise": 0.5}
    assert "library_name: toys\n" in write_card(tmp_path).read_text()
    unknown = replace(run, config='{"model": {"type": "mine:Net"}}')
    assert framework_of(unknown) is None
