"""From free text to features."""

import json
from typing import Any

import numpy as np
import pytest
from rows import config
from sklearn.feature_extraction.text import TfidfVectorizer

from trainwright.datasets.tables.encoders import texts
from trainwright.datasets.tables.preparation import TabularPreparation, fit, from_json
from trainwright.datasets.tables.table import Table, as_table
from trainwright.datasets.tables.tabular import build
from trainwright.datasets.tables.target import Target
from trainwright.datasets.tables.typed import ColumnKind
from trainwright.errors import DataError
from trainwright.types import FeatureForm

NOTES = [
    "The parcel was late, and the parcel was wet!",
    "Parcel ok; thank you",
    "No parcel. Where is the parcel? I paid 12 EUR",
    "Grüße aus Köln, danke: alles ok",
    "late again... late, late",
    "x",
]


def fitted(notes: list[Any], **settings: Any) -> TabularPreparation:
    rows = Table({"note": np.array(notes, dtype=object)})
    return fit(
        rows, ["note"], Target("y", "regression"), config(**settings), kinds={"note": ColumnKind("text")}
    )


def features(preparation: TabularPreparation, notes: list[Any]) -> Any:
    return preparation.features([{"note": note} for note in notes])


def test_the_weights_are_those_of_scikit_learn() -> None:
    preparation = fitted(NOTES)
    vectorizer = TfidfVectorizer(min_df=2)
    expected = vectorizer.fit_transform(NOTES).toarray()
    assert preparation.feature_names == [f"note.{word}" for word in vectorizer.get_feature_names_out()]
    np.testing.assert_allclose(features(preparation, NOTES), expected, rtol=1e-6)
    others = ["the the LATE parcel", "nothing known", "ok"]
    expected = vectorizer.transform(others).toarray()
    np.testing.assert_allclose(features(preparation, others), expected, rtol=1e-6)


def test_the_most_frequent_words_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "MAX_WORDS", 3)
    # late and parcel: 4 times; the: 3 times; ok and was: twice
    assert fitted(NOTES).feature_names == ["note.late", "note.parcel", "note.the"]


def test_blocks_of_rows_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    preparation = fitted(NOTES)
    before = features(preparation, NOTES)
    monkeypatch.setattr(texts, "_BLOCK", 2)
    np.testing.assert_array_equal(features(preparation, NOTES), before)


def test_a_few_texts_without_common_words_keep_all() -> None:
    assert fitted(["red apple", "green pear"]).feature_names == [
        "note.apple",
        "note.green",
        "note.pear",
        "note.red",
    ]
    with pytest.raises(DataError, match="column 'note' is to be free text, but holds no words"):
        fitted(["?", "-"])


def test_a_missing_text_has_no_words() -> None:
    for impute in ("keep", "median"):
        assert not features(fitted([*NOTES, None], impute=impute), [None]).any()
    with pytest.raises(DataError, match="column 'note' has no value in row 1"):
        features(fitted(NOTES), [None])


def test_json_round_trip_is_exact() -> None:
    preparation = fitted(NOTES, impute="keep")
    again = from_json(json.loads(json.dumps(preparation.to_json())))
    assert again.to_json() == preparation.to_json()
    np.testing.assert_array_equal(features(again, NOTES), features(preparation, NOTES))
    assert again.text_columns == ["note"]


def test_a_run_may_declare_free_text() -> None:
    rows = [{"note": NOTES[i % 5], "y": float(i)} for i in range(60)]
    bundle = build({"train": as_table(rows)}, config(target="y", columns={"note": "text"}), FeatureForm())
    assert "note.parcel" in bundle.info.feature_names
    undeclared = build({"train": as_table(rows)}, config(target="y"), FeatureForm())
    assert f"note={NOTES[0]}" in undeclared.info.feature_names
