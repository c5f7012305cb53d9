"""Hints lead to keys that exist."""

import re

import pytest

from trainwright.config import hints, synonyms
from trainwright.config.reference import keys_of
from trainwright.errors import InputError

SECTIONS = "training|tuning|evaluation|checkpoint|logging|data|distributed|experiment"
# Options of adapters, and keys whose section is one of several types.
ELSEWHERE = {"data.length", "data.max_length", "data.tokenizer", "data.delimiter"}


def is_key(dotted: str) -> bool:
    section, _, key = dotted.rpartition(".")
    try:
        names = keys_of(section)
        inner = [keys_of(f"{section}.{name}") for name in names if section == "training.scheduler"]
    except InputError:
        return False
    return key in names or any(key in types for types in inner)


@pytest.mark.parametrize("hint", sorted({*hints._KEYS.values(), *hints._MODEL.values()}))
def test_every_key_that_a_hint_names_exists(hint: str) -> None:
    named = re.findall(rf"(?<![\w./])(?:{SECTIONS})(?:\.[a-z_]+)+", hint)
    assert [key for key in named if not is_key(key) and key not in ELSEWHERE] == []


def test_every_key_that_a_synonym_means_exists() -> None:
    inside = {key for table in synonyms.INSIDE.values() for key in table.values()}
    named = {*synonyms.KEYS.values(), *inside}
    models = ("model", "tuning.pruner", "training.optimizer")  # their keys are those of types
    read_further = {
        *("data", "training.scheduler.warmup", "training.per_device_batch_size"),
        *("training.gradient_accumulation_steps", "training.mixed_precision"),
    }
    missing = {key for key in named if not key.startswith(models) and not is_key(key)}
    assert missing - read_further == set()


@pytest.mark.parametrize(
    ("path", "searches", "mend"),
    [
        ("timeout", False, "write training.max_minutes: MINUTES"),
        ("timeout", True, "write tuning.max_minutes: MINUTES; Optuna's timeout counts seconds"),
        ("training.timeout", True, "write training.max_minutes: MINUTES"),
        ("tuning.time-limit", True, "write tuning.max_minutes: MINUTES"),
        ("data.time_limit", False, "write data.timeout: SECONDS, for one sample"),
    ],
)
def test_a_time_limit_has_one_answer(path: str, searches: bool, mend: str) -> None:
    assert hints.key_hint(path, searches=searches) == mend
