"""A resolved config can be written, read back, flattened and hashed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.config import flatten, load
from trainwright.config.emit import emit
from trainwright.config.tree import Problems, plain
from trainwright.config.yaml import read

GOOD = {"data": "digits", "model": {"type": "mlp", "hidden": [3, 4]}}

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8"))
)
keys = st.text(st.characters(codec="utf-8"), min_size=1)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(keys, values, min_size=1, max_size=4))
def test_what_is_written_is_read_back(mapping):
    problems = Problems()
    root = read(emit(mapping), "x", problems)
    assert not problems
    assert root is not None
    assert plain(root) == mapping


def test_dump_loads_back_to_the_same(tmp_path, adapters, monkeypatch):
    monkeypatch.setenv("STEPS", "300")
    monkeypatch.setenv("CODE", "12")
    overrides = [
        "tracking=[tensorboard, {type: mlflow, uri: 'http://${env:CODE}'}]",
        "training.scheduler={type: plateau, metric: val_f1}",
        "evaluation.every_n_steps=${env:STEPS}",
        "experiment.name=${env:CODE}",
        "data.exclude=['null', 'a: b', '1e3', \"tab\\there\"]",
    ]
    first = load(GOOD, overrides, adapters)
    path = tmp_path / "config.yaml"
    path.write_text(first.dump(), encoding="utf-8")
    again = load(path, adapters=adapters)
    assert again.config == first.config
    assert again.config_hash() == first.config_hash()
    assert again.computation_hash() == first.computation_hash()
    assert again.dump() == first.dump()
    assert again.templates == first.templates
    assert "every_n_steps: ${env:STEPS}" in first.dump()


@pytest.mark.parametrize(
    "override",
    [
        "experiment.name=other",
        "tracking=[mlflow]",
        "logging.every_n_steps=3",
        "checkpoint.keep_last=9",
        "training.device=cuda",
        "training.threads=3",
        "distributed.enabled=true",
    ],
)
def test_record_and_placement_change_one_hash(override, adapters):
    before, after = load(GOOD, (), adapters), load(GOOD, [override], adapters)
    assert before.config_hash() != after.config_hash()
    assert before.computation_hash() == after.computation_hash()


@pytest.mark.parametrize(
    "override",
    [
        "experiment.seed=1",
        "model.hidden=[3]",
        "training.batch_size=8",
        "data.split.val=0.2",
        "training.scheduler=cosine",
        "training.optimizer=sgd",
    ],
)
def test_bits_change_both_hashes(override, adapters):
    before, after = load(GOOD, (), adapters), load(GOOD, [override], adapters)
    assert before.config_hash() != after.config_hash()
    assert before.computation_hash() != after.computation_hash()


def test_the_same_computation_at_another_place(adapters):
    first = load(GOOD, ["training.threads=3", "training.device=cpu"], adapters)
    second = first.with_placement({"training.threads": 5, "training.epochs": 99})
    assert (second.config.training.threads, second.config.training.device) == (5, "cpu")
    assert second.config.training.epochs == first.config.training.epochs
    assert second.computation_hash() == first.computation_hash()
    assert first.config.training.threads == 3
    assert second.placement()["training.threads"] == 5
    assert load(GOOD, ["training.threads=null"], adapters).placement(explicit=True) == {}
    assert load(GOOD, ["training.device=auto"], adapters).placement(explicit=True) == {
        "training.device": "auto"
    }


def test_spelling_changes_no_hash(adapters):
    explicit = [
        "training.epochs=10",
        "training.learning_rate=0.001",
        "training.optimizer={type: adamw, betas: [0.9, 0.999]}",
        "model.dropout=0",
    ]
    assert load(GOOD, (), adapters).config_hash() == load(GOOD, explicit, adapters).config_hash()


def test_every_value_has_a_source(adapters):
    resolved = load(GOOD, ["tracking=[mlflow]"], adapters)
    assert set(resolved.sources) == set(flatten(resolved.config)) == set(resolved.flat())
    assert str(resolved.sources["tracking.0.type"]) == "command line"
    assert str(resolved.sources["model.params.hidden"]) == "mapping"
    assert str(resolved.sources["training.device"]) == "default"
    assert flatten(resolved.config)["model.params.hidden"] == [3, 4]


def test_computation_names_the_bits_and_hides_text(adapters, monkeypatch):
    monkeypatch.setenv("WEIGHTS", "secret-run")
    overrides = ["model.init_from=${env:WEIGHTS}", "tracking=[mlflow]"]
    before = load(GOOD, overrides, adapters).computation()
    assert before["model.init_from.source"].startswith("${env:WEIGHTS} (sha256 ")
    assert before["model.params.hidden"] == [3, 4]
    assert not any(key.startswith(("tracking", "logging", "experiment.name")) for key in before)
    monkeypatch.setenv("WEIGHTS", "other-run")
    after = load(GOOD, overrides, adapters).computation()
    assert [key for key in before if before[key] != after[key]] == ["model.init_from.source"]


@pytest.fixture
def secretive(adapters, monkeypatch):
    """A config with secrets.

    Whole, inside a text, as a number, with quotes, and two that are too short or too plain.
    """
    secrets = {
        "CODE": "0451987",
        "PIN": "7319",
        "SECRET": "it's\\so",
        "PASSWORD": "hunter2",
        "NAME": "CODE",
        "AB": "ab",
        "ON": "true",
    }
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    overrides = [
        "model={type: 'my.nets:Net', framework: torch, params: {pin: '${env:CODE}', key: '${env:SECRET}', on: '${env:NAME}'}}",
        "model.params.x=${env:AB}",
        "model.params.y=${env:ON}",
        "experiment.seed=${env:PIN}",
        "tracking=[{type: mlflow, uri: 'https://ada:${env:PASSWORD}@host/x'}]",
    ]
    return load(GOOD, overrides, adapters)


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("Net(0451987) failed", "Net(${env:CODE}) failed"),
        ("seed 7319, key it's\\so", "seed ${env:PIN}, key ${env:SECRET}"),
        (repr({"key": "it's\\so"}), "{'key': \"${env:SECRET}\"}"),
        ("https://ada:hunter2@host/x is down", "https://ada:${env:PASSWORD}@host/x is down"),
        ("wrong password hunter2", "wrong password ${env:PASSWORD}"),
        ("CODE 0451987", "${env:NAME} ${env:CODE}"),
        ("ab is true, True", "ab is true, True"),
        ("postgres://u:written-out@host", "postgres://***@host"),
    ],
)
def test_what_came_from_the_environment_is_hidden(text, hidden, secretive):
    assert secretive.hide(text) == hidden


def test_nothing_is_hidden_where_nothing_is_secret(adapters):
    assert load(GOOD, (), adapters).hide("digits, mlp: [3, 4]") == "digits, mlp: [3, 4]"


def test_computation_hides_numbers_too(secretive):
    assert secretive.config.experiment.seed == 7319
    assert secretive.computation()["experiment.seed"].startswith("${env:PIN} (sha256 ")
    assert not [
        value for value in secretive.computation().values() if "7319" in str(value) or "0451987" in str(value)
    ]
