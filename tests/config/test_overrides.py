"""Overrides in both of their forms."""

from typing import Any

import pytest

from trainwright.config import Overrides, load
from trainwright.config.overrides import keys_of, with_settings
from trainwright.runs.catalog import Catalog

CONFIG: dict[str, Any] = {"model": {"type": "mlp"}}
# Values that a text must quote, or write out: a text that looks like a number, a list, a mapping, None.
MORE: dict[str, Any] = {
    "experiment.name": "12",
    "training.epochs": None,
    "training.max_steps": 7,
    "model.params.hidden": [8, 4],
    "data": {"type": "digits", "exclude": ["a: b", "c,d"]},
}


@pytest.mark.parametrize(
    "overrides", [["training.batch_size=4", "training.max_steps=3"], {"training.batch_size": 4}]
)
def test_both_forms_get_the_same_settings(overrides: Overrides) -> None:
    more = with_settings(overrides, MORE)
    assert type(more) is type(overrides)
    assert keys_of(more) == [*keys_of(overrides), *(key for key in MORE if key not in overrides)]
    config = load(CONFIG, more, Catalog()).config
    assert (config.training.batch_size, config.training.epochs, config.training.max_steps) == (4, None, 7)
    assert (config.experiment.name, config.model.params["hidden"]) == ("12", [8, 4])
    assert config.data is not None
    assert config.data.exclude == ["a: b", "c,d"]


def test_the_keys_of_texts_are_without_blanks() -> None:
    assert keys_of([" training.epochs = 3", "model.type=a=b"]) == ["training.epochs", "model.type"]
