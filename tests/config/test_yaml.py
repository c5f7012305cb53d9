"""YAML 1.2 by its core schema, with the place of everything."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml.scanner import Scanner

from trainwright.config import yaml
from trainwright.config.tree import Problems, Source, find, plain
from trainwright.config.yaml import read, scalar


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4), ("1E5", 1e5), (".5", 0.5), ("3.", 3.0), ("-7", -7), ("+7", 7), ("012", 12), ("0o14", 12), ("0xff", 255),
        ("true", True), ("FALSE", False), ("yes", "yes"), ("off", "off"), ("1:30", "1:30"), ("1_000", "1_000"), ("null", None),
        ("~", None), ("", None), (".inf", math.inf), ("-.INF", -math.inf), ("2024-01-01", "2024-01-01"),
        ("1.2.3", "1.2.3"), (".", "."), ("e5", "e5"),
    ],
)  # fmt: skip
def test_scalars_of_the_core_schema(text, value):
    assert scalar(text) == value
    assert type(scalar(text)) is type(value)


def read_well(text: str):
    problems = Problems()
    root = read(text, "f", problems)
    assert not problems, problems
    assert root is not None
    return root


def test_quotes_make_text_and_tags_too():
    assert plain(read_well("a: '1'\nb: \"true\"\nc: !!str 3\nd: |\n  x\n  y\n")) == {
        "a": "1",
        "b": "true",
        "c": "3",
        "d": "x\ny\n",
    }


def test_places_count_from_one():
    root = read_well("a:\n  b: [1, {c: 2}]\n")
    inner = find(root, "a.b.1.c")
    assert inner is not None
    assert (inner.key, inner.source) == (Source("f", 2, 11), Source("f", 2, 14))


def test_aliases_are_copies():
    root = read_well("a: &x {k: [1]}\nb: *x\n")
    first, second = find(root, "a.k"), find(root, "b.k")
    assert first is not None
    assert second is not None
    assert plain(first) == plain(second)
    assert first is not second


def test_merge_keys_yield_to_what_is_written():
    text = "base: &b {x: 1, y: 2}\nmore: &m {y: 3, z: 4}\nthis: {<<: [*b, *m], x: 9}\n"
    assert plain(read_well(text))["this"] == {"x": 9, "y": 2, "z": 4}


def test_aliases_of_aliases_do_not_explode():
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    problems = Problems()
    assert read("\n".join(lines), "f", problems) is None
    assert "its aliases expand to more than" in problems[0].message


@given(st.text(st.characters(codec="utf-8")) | st.text("ab:- \n\t[]{}&*!|>'\"%@`#?,<~0.e"))
def test_any_text_gives_a_mapping_or_a_problem(text):
    problems = Problems()
    root = read(text, "f", problems)
    assert (root is not None and isinstance(root.value, dict)) or problems


@pytest.mark.parametrize(
    "text",
    ["null", "1e-3", "-1.5", "0x1f", "0o17", "1.", "a.b", "/tmp/x", "1_000", "no", "x-", "012", "True"],
)
def test_a_plain_word_is_read_as_the_parser_reads_it(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert yaml.PLAIN.fullmatch(text)
    quick = yaml.read_value(text, "override", Problems())
    monkeypatch.setattr(yaml, "PLAIN", re.compile("(?!)"))
    parsed = yaml.read_value(text, "override", Problems())
    assert repr(quick) == repr(parsed)


@pytest.mark.parametrize(
    "text", ["---", "...", "- 1", "a: 1", "[1]", "'1'", "a #b", "&a", "-", "-x", "~", ""]
)
def test_what_only_the_parser_can_read(text: str) -> None:
    assert not yaml.PLAIN.fullmatch(text)


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ("{a: ", "}"), ("{", "}"), ("[[1], ", "]")])
def test_what_is_nested_too_deeply_is_read_no_further(opening, closing, monkeypatch):
    scanned = []
    fetch = Scanner.fetch_more_tokens
    monkeypatch.setattr(Scanner, "fetch_more_tokens", lambda self: (scanned.append(1), fetch(self)))
    problems = Problems()
    assert read(f"a: {opening * 1000}1{closing * 1000}\n", "f", problems) is None
    assert problems[-1].message == f"nested more than {yaml.MAX_DEPTH} deep"
    assert len(scanned) < 1000


def test_the_deepest_lists_that_are_allowed():
    value = plain(read_well(f"{{a: {'[' * yaml.MAX_DEPTH}{']' * yaml.MAX_DEPTH}}}"))["a"]
    for _ in range(yaml.MAX_DEPTH - 1):
        (value,) = value
    assert value == []
