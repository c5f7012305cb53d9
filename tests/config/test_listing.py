"""What `trainwright config names` lists."""

import pytest

from trainwright.api.configs import names
from trainwright.config import load
from trainwright.config.reference import keys_of, kinds
from trainwright.errors import ConfigError, InputError
from trainwright.runs.catalog import Catalog


def test_types_of_a_union_are_listed_with_what_they_do() -> None:
    transforms = keys_of("transform")
    assert transforms["vertical_flip"] == "A swap of top and bottom"
    assert transforms == keys_of("data.transforms")
    assert {"none", "median", "hyperband"} <= set(keys_of("pruner"))
    assert keys_of("training.scheduler.type") == keys_of("scheduler")


def test_keys_of_sections_and_of_one_type() -> None:
    assert "seed" in keys_of("experiment")
    assert {"type", "warmup_steps"} <= set(keys_of("training.scheduler.cosine"))
    assert set(keys_of("config")) <= set(kinds())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("color", "no names of 'color'; allowed: dataset"),
        ("training.scheduler.cosin", "no names of 'training.scheduler.cosin'"),
        ("training.epochs", "one value: `trainwright config names training` describes it"),
    ],
)
def test_what_is_no_section_is_refused(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        keys_of(name)


@pytest.mark.parametrize("name", ["model.gpt", "model.lightgbm", "dataset.csv", "tracker.mlflow"])
def test_options_are_listed_under_the_name_that_messages_give(name: str) -> None:
    kind, _, chosen = name.partition(".")
    section = {"model": {"model": {"type": chosen}}, "dataset": {"data": {"type": chosen}}}.get(
        kind, {"tracking": [{"type": chosen}]}
    )
    (item,) = section.values()
    (item[0] if isinstance(item, list) else item)["q"] = 1
    with pytest.raises(ConfigError) as caught:
        load({"data": "digits", "model": "mlp"} | section, adapters=Catalog())
    text = str(caught.value)
    listed = names(name)
    whole = f"one of {len(listed)}, which `trainwright config names {name}` shows"
    assert whole in text or f"Allowed: {', '.join(sorted(listed))}" in text
