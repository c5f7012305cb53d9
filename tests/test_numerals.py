"""Numbers as people read them."""

from __future__ import annotations

import math

import pytest

from trainwright.numerals import number


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.97777, "0.9778"),
        (1.0, "1.000"),
        (52.69, "52.69"),
        (0.0, "0.000"),
        (1e-5, "1e-5"),
        (0.000123456, "0.000123"),
        (183_100.0, "183,100"),
        (-0.0000123, "-1.23e-5"),
        (1437, "1437"),
        (1_000_000, "1,000,000"),
        (45873.2, "45,873"),
        (64_512_345_678.25, "64,512,345,678"),
        (85_933_031_424.0, "85,933,031,424"),
        (2**60, "1,152,921,504,606,846,976"),
        (1.25e18, "1.25e18"),
        (0.99996, "0.99996"),
        (-0.9999999, "-0.9999999"),
        (0.99994, "0.9999"),
        (1.00003, "1.000"),
        (math.nan, "NaN"),
        (-math.inf, "−∞"),
        (True, "True"),
        ("cat", "cat"),
        (None, "None"),
    ],
)
def test_number(value, shown):
    assert number(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(0.5, "0.5"), (41.0, "41"), (100.0, "100"), (0.0, "0"), (1437.0, "1437")]
)
def test_without_zeros(value, shown):
    assert number(value, zeros=False) == shown
