"""The beginning of the page, the model card, and the page of several runs."""

import itertools
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from constructed import bundle, classes, run_of, values
from ruamel.yaml import YAML
from test_diagnosis import FALLS, HEALTHY, ROWS, cut, drawn, probabilities
from test_html import Page

from trainwright.cli.main import main
from trainwright.errors import CheckpointError, InputError
from trainwright.records.document import dump, parse_json
from trainwright.reports.card import write_card
from trainwright.reports.html import write_report
from trainwright.reports.overlay import write_overlay
from trainwright.reports.rundir import read_run
from trainwright.reports.verdict import evaluated, judge, section
from written import write_record

HOSTILE = '</script><img src=x onerror="alert(1)">`|'


@pytest.fixture
def run(tmp_path: Path) -> Path:
    features, targets, margin = drawn()
    data = bundle(classes(2, 4), features, targets, ROWS)
    return run_of(tmp_path, data, cut(probabilities(margin)), HEALTHY, data={"path": "people.csv"})


def judged(folder: Path, data, outputs):
    tables = evaluated(read_run(run_of(folder, data, outputs)))
    assert tables is not None
    return judge(tables[1])


def test_the_page_begins_with_the_question_and_the_verdict(run):
    text = Page(write_report(run).read_text(encoding="utf-8")).text
    order = [
        "tell which of 2 classes kind is: class 0 or class 1, from 4 features of people.csv: 600 rows to learn",
        "Better than always answering “class 0”, the most frequent class, and than a linear model",
        "constant answer",
        "Nothing is suspicious",
        "Precision and recall",
        "best threshold",
        "The target in each split",
        "Repeat this run",
    ]
    at = [text.index(words) for words in order]
    assert at == sorted(at)


def test_a_verdict_compares_with_the_baselines(tmp_path):
    features, targets, margin = drawn()
    data = bundle(classes(2, 4), features, targets, ROWS)
    worse = judged(tmp_path / "worse", data, cut(probabilities(-margin)))
    assert (worse.level, worse.title.split()[0]) == ("poor", "Worse")
    sure = judged(tmp_path / "sure", data, cut(probabilities(80 * np.sign(margin))))
    assert sure.level == "good"
    assert "far too sure" in sure.sentences[0]
    shy = judged(tmp_path / "shy", data, cut(probabilities(margin - margin.max() - 0.1)))
    assert "No better" in shy.title
    line = judged(tmp_path / "line", data, cut(probabilities(features[:, 0] + features[:, 3])))
    assert line.title.endswith("worse than a linear model")
    assert line.level == "fair"


def test_a_verdict_says_where_answers_hide_that_rows_are_ranked(tmp_path):
    """A rare class that is never answered at one half; of random answers nothing is said."""
    rng = np.random.default_rng(3)
    features, targets = rng.normal(size=(1000, 4)), (rng.random(1000) < 0.08).astype(np.int64)
    data = bundle(classes(2, 4), features, targets, ROWS)
    noise = 0.5 * rng.normal(size=1000) - 4
    ranked = judged(tmp_path / "ranked", data, cut(probabilities(noise + 0.6 * targets)))
    assert ranked.title.startswith("No better than always answering “class 0”")
    assert (ranked.level, ranked.title.endswith(", but it ranks rows better than chance")) == ("fair", True)
    assert "it answers “class 1” for 0 of 200 rows, of which" in ranked.sentences[0]
    assert "--threshold" in ranked.sentences[0]
    random = judged(tmp_path / "random", data, cut(probabilities(noise)))
    assert "ranks" not in random.title
    assert not any("ROC" in one for one in random.sentences)


def test_one_huge_error_does_not_hide_that_values_are_predicted_well(tmp_path):
    features, _, _ = drawn()
    guess = 3 * features[:, 0]
    targets = (guess + 0.1 * np.random.default_rng(1).normal(size=len(guess))).astype(np.float32)
    targets[-1] += 900
    verdict = judged(tmp_path, bundle(values(4), features, targets, ROWS), cut(guess[:, None]))
    assert verdict.title.startswith("Better than always predicting the mean")


def test_a_card_has_the_metadata_that_hubs_read(run):
    text = write_card(run).read_text(encoding="utf-8")
    _, metadata, body = text.split("---\n", 2)
    fields = YAML(typ="safe", pure=True).load(metadata)
    assert fields["pipeline_tag"] == "tabular-classification"
    assert fields["library_name"] == "pytorch"
    (result,) = fields["model-index"][0]["results"]
    values = {one["type"]: one["value"] for one in result["metrics"]}
    assert values["accuracy"] == read_run(run).metrics["test_accuracy"]
    assert "| test accuracy |" in body
    assert "**Better than always answering “class 0”" in body


def test_a_card_can_be_written_elsewhere(run, tmp_path):
    assert write_card(run, tmp_path / "README.md") == tmp_path / "README.md"
    assert not (run / "model-card.md").exists()


def test_names_from_outside_stay_text_in_cards_and_pages(run, tmp_path):
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["data"] |= {"target": HOSTILE, "features": [HOSTILE], "warnings": [f"{HOSTILE}\n# x"]}
    write_record(run / "manifest.json", manifest | {"experiment": HOSTILE, "run_id": HOSTILE})
    (run / "config.yaml").write_text(json.dumps({"model": {"type": HOSTILE}, HOSTILE: 1}))
    profile = json.loads((run / "evaluation" / "data.json").read_text())
    profile["columns"][0]["name"] = profile["target"]["name"] = profile["target"]["labels"][0] = HOSTILE
    write_record(run / "evaluation" / "data.json", profile)
    tables = json.loads((run / "evaluation" / "test.json").read_text())
    tables["figures"][0]["title"] = tables["figures"][0]["lines"][0]["name"] = tables["thresholds"][
        "name"
    ] = HOSTILE
    tables["worst"][0]["id"], tables["origin"] = HOSTILE, {"file": HOSTILE, "id": HOSTILE}
    tables["compared"]["baselines"][0]["words"] = HOSTILE
    write_record(run / "evaluation" / "test.json", tables)
    pages = [write_report(run), write_overlay([run, run], tmp_path / "runs.html")]
    for path in pages:
        page = Page(path.read_text(encoding="utf-8"))
        assert page.scripts == 1
        assert page.fetched == []
    assert HOSTILE in Page(pages[0].read_text(encoding="utf-8")).text
    card = write_card(run).read_text(encoding="utf-8").split("---\n", 2)[2]
    assert "<img" not in card
    assert "\n# x" not in card


CRAFTED = (3, "x", [1, "x"], {"x": 1}, [{"x": None}], None)


def is_refused(write: Callable[[], object]) -> bool:
    try:
        write()
    except CheckpointError as error:
        return "a table there is not as Trainwright writes it" in str(error)
    except InputError as error:
        return "no task '" in str(error)
    return False


@pytest.mark.parametrize("file", ["test", "data"])
def test_tables_of_another_form_are_an_error_of_ours(file: str, run: Path, tmp_path: Path) -> None:
    """They have their checksum, so they were made up: a page says what it can, and nothing else is raised."""
    path = run / "evaluation" / f"{file}.json"
    written = parse_json(path.read_bytes())
    failed = 0
    for key, crafted in itertools.product(written, CRAFTED):
        path.write_bytes(dump(written | {key: crafted}))
        for write in (write_card, lambda folder: write_overlay([folder], tmp_path / "runs.html")):
            failed += is_refused(partial(write, run))
    assert failed


def test_the_command_says_so_in_a_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run / "evaluation" / "test.json"
    path.write_bytes(
        dump(parse_json(path.read_bytes()) | {"rows": [], "per_class": [3], "compared": {"baselines": 1}})
    )
    for words in (["--card"], []):
        assert main(["report", str(run), *words]) == 1
        said = capsys.readouterr().err
        assert "evaluation: a table there is not as Trainwright writes it" in said
        assert "Traceback" not in said


def test_runs_side_by_side_show_what_differs(tmp_path):
    features, targets, margin = drawn()
    data = bundle(classes(2, 4), features, targets, ROWS)
    first, second = (
        run_of(
            tmp_path / name,
            data,
            cut(probabilities(scale * margin)),
            curves,
            training={"learning_rate": rate},
        )
        for name, scale, curves, rate in (("a", 1.0, HEALTHY, 0.1), ("b", 0.1, (FALLS, FALLS), 0.2))
    )
    source = write_overlay([first, second], tmp_path / "runs.html").read_text(encoding="utf-8")
    text = Page(source).text
    assert text.index("training.learning_rate 0.1 0.2") < text.index("What came of it")
    assert "model.type" not in text  # it is the same
    assert "Validation loss" in text
    assert 'data-name="A"' in source
    assert 'data-name="B"' in source
    assert source.count("★") > 1


def test_a_model_as_good_as_a_line_is_told_to_be_given_up(tmp_path):
    features, targets, _ = drawn()
    data = bundle(classes(2, 4), features, targets, ROWS)
    rng = np.random.default_rng(1)
    near = 2 * features[:, 0] + 0.05 * rng.normal(size=len(features))
    alike = judged(tmp_path / "alike", data, cut(probabilities(near)))
    assert alike.title.endswith("about as good as a linear model")
    assert any(one.startswith("Use the simpler one: a linear model") for one in alike.sentences)


@pytest.mark.parametrize("is_better", [True, False])
def test_bold_is_what_is_better_by_more_than_noise(tmp_path, is_better):
    features, targets, margin = drawn()
    data = bundle(classes(2, 4), features, targets, ROWS)
    shown = margin if is_better else 0.001 * features[:, 3]
    run = read_run(run_of(tmp_path, data, cut(probabilities(shown))))
    made = section(run)
    assert made is not None
    rows = dict(made["table"]["rows"])
    marked = [best for _, best in rows["test accuracy"]]
    assert marked == ([True, False, False] if is_better else [False, False, True])


@pytest.mark.parametrize(("noise", "is_marked"), [(0.05, False), (6.0, True)])
def test_the_better_of_two_runs_is_marked_where_noise_does_not_explain_it(tmp_path, noise, is_marked):
    features, _, _ = drawn()
    rng = np.random.default_rng(1)
    guess = 100_000 + 80_000 * features[:, 0]
    targets = (guess + 10_000 * rng.normal(size=len(guess))).astype(np.float32)
    data = bundle(values(4), features, targets, ROWS)
    other = guess + noise * 10_000 * rng.normal(size=len(guess))
    runs = [run_of(tmp_path / name, data, cut(one[:, None])) for name, one in (("a", other), ("b", guess))]
    source = write_overlay(runs, tmp_path / "runs.html").read_text(encoding="utf-8")
    row = source[source.index("test RMSE") :].partition("</tr>")[0]
    assert ("★" in row) == is_marked
    if is_marked:
        assert row.index("★") > row.index("</td>")  # of the second, whose error is lower


def test_a_big_run_has_a_small_page(tmp_path):
    """Thousands of rows to judge by, 20 classes, 300 columns."""
    rng = np.random.default_rng(0)
    rows = (2000, 500, 20_000)
    targets = rng.integers(0, 20, sum(rows))
    features = rng.normal(size=(len(targets), 300)).astype(np.float32)
    outputs = rng.dirichlet(np.ones(20), len(targets))
    run = run_of(tmp_path, bundle(classes(20, 300), features, targets, rows), cut(outputs, rows))
    assert sum(path.stat().st_size for path in (run / "evaluation").iterdir()) < 400_000
    assert write_report(run).stat().st_size < 500_000
