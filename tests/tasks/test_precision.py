"""When targets are shifted before they are rounded to float32, and by how much."""

from dataclasses import replace

import numpy as np
import pytest

from trainwright.tasks.support.precision import is_coarse, learned, offset_of, restored
from trainwright.types import Array, DataInfo, features_spec

INFO = DataInfo("regression", features_spec((1,)), 1)


def draws(low: float, high: float, rows: int = 500) -> Array:
    return np.random.default_rng(5).uniform(low, high, rows)


@pytest.mark.parametrize(
    ("targets", "coarse"),
    [
        (draws(1.7e9, 1.7e9 + 300), True),
        (1e9 + 23 * draws(-2, 2), True),
        (draws(1e5, 1e5 + 3), True),
        (draws(-1, 1), False),
        (draws(0, 1e9), False),
        (np.floor(draws(1950, 2026)), False),
        (draws(5e4, 2e6), False),
        (np.full(10, 1e9), False),  # nothing differs
    ],
)
def test_only_targets_whose_differences_float32_loses_are_shifted(targets: Array, coarse: bool) -> None:
    assert is_coarse(targets) is bool(offset_of(targets)) is coarse
    info = replace(INFO, target_offset=offset_of(targets))
    gap = np.abs(restored(learned(targets, info), info) - targets).max()
    assert gap <= 1e-4 * targets.std()
    if not coarse:
        assert np.array_equal(learned(targets, info), targets.astype(np.float32))


def test_whole_numbers_stay_whole_and_exact() -> None:
    targets = np.round(draws(1.7e9, 1.7e9 + 300))
    info = replace(INFO, target_offset=offset_of(targets))
    seen = learned(targets, info)
    assert np.array_equal(seen, np.round(seen))
    assert np.array_equal(restored(seen, info), targets)


def test_each_of_several_targets_has_its_own_offset() -> None:
    small, large = draws(0, 1), draws(1.7e9, 1.7e9 + 300)
    offsets = offset_of(np.stack([small, large], axis=1))
    assert offsets == (0.0, *offset_of(large))


def test_the_offset_is_in_the_description() -> None:
    info = replace(INFO, target_offset=(1.7e9,))
    assert DataInfo.from_json(info.to_json()).target_offset == [1.7e9]
    assert "target_offset" not in INFO.to_json()


def test_classes_are_as_they_are() -> None:
    codes = np.arange(5)
    assert learned(codes, replace(INFO, task="classification")) is codes
