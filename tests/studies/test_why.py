"""Why two runs differ: the shares against Shapley's formula, the search on made-up metrics, and real runs."""

import itertools
import json
import math
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainwright
from small_runs import Crash
from trainwright.cli.main import main
from trainwright.errors import InputError
from trainwright.records.run_dir import RunDir
from trainwright.studies.study import Study
from trainwright.studies.why.factors import Factor, merge_invalid
from trainwright.studies.why.search import (
    LOOKS,
    BudgetSpentError,
    Changes,
    Findings,
    Search,
    effect_of,
    orders_of,
    shares,
    subsets_of,
)
from trainwright.studies.why.sides import Side, changes_between

# -- shares


def shapley_formula(names: Sequence[str], value: Mapping[Changes, float]) -> dict[str, float]:
    """Shapley (1953): the sum over the sets S without i of |S|! (n-|S|-1)! / n! (v(S + i) - v(S))."""
    count, result = len(names), {}
    for name in names:
        others = [other for other in names if other != name]
        total = 0.0
        for size in range(count):
            weight = math.factorial(size) * math.factorial(count - size - 1) / math.factorial(count)
            for chosen in itertools.combinations(others, size):
                total += weight * (value[frozenset([*chosen, name])] - value[frozenset(chosen)])
        result[name] = total
    return result


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_shares_are_those_of_the_formula(count: int) -> None:
    names = list("abcde")[:count]
    generator = np.random.default_rng(count)
    value = {changes: float(generator.normal()) for changes in subsets_of(itertools.permutations(names))}
    assert len(value) == 2**count
    computed = shares(orders_of(names), value.get)
    assert computed == pytest.approx(shapley_formula(names, value), rel=1e-12)


def test_sampled_shares_add_up_and_are_exact_without_interactions() -> None:
    weights = dict(zip("abcdefg", range(7), strict=True))

    def value(changes: Changes) -> float:
        return 3.0 + sum(weights[name] for name in changes)

    orders = orders_of(list(weights))
    assert len(orders) == 8
    assert orders[1] == orders[0][::-1]
    assert shares(orders, value) == pytest.approx(weights)


def test_orders_through_a_config_that_cannot_be_trained_are_left_out() -> None:
    value = {frozenset(): 0.0, frozenset("b"): 1.0, frozenset("ab"): 5.0}
    assert shares(orders_of("ab"), value.get) == {"a": 4.0, "b": 1.0}
    assert shares(orders_of("ab"), {frozenset(): 0.0, frozenset("ab"): 5.0}.get) is None


# -- the search, on metrics that are functions

FIVE = ["lr", "batch", "data", "depth", "loss"]


class Metric:
    """A metric with noise by seed, which counts how often it is computed."""

    def __init__(
        self, value: Callable[[Changes], float], noise: float, case: int = 0, most: int = 60
    ) -> None:
        self.value, self.noise, self.case, self.most, self.count = value, noise, case, most, 0

    def __call__(self, changes: Changes, seed: int) -> float:
        if self.count == self.most:
            raise BudgetSpentError
        self.count += 1
        names = [FIVE.index(name) for name in sorted(changes)]
        return self.value(changes) + self.noise * np.random.default_rng([self.case, seed, *names]).normal()

    def why(self) -> Findings:
        return Search(FIVE, range(LOOKS[-1]), self, lambda: self.noise == 0).run()


def moved(findings: Findings) -> list[str]:
    return [share.name for share in findings.shares if share.stands_out]


def test_the_one_of_five_changes_is_found_in_nine_of_ten_cases_within_the_budget() -> None:
    """A change of five standard deviations of the noise, beside four without effect."""
    correct = 0
    for case in range(20):
        mover = FIVE[case % 5]
        metric = Metric(lambda changes, mover=mover: 0.9 - 0.05 * (mover in changes), 0.01, case)  # type: ignore[misc]
        correct += moved(metric.why()) == [mover]
        assert metric.count <= 60
    assert correct >= 18


def test_noise_alone_is_no_reason() -> None:
    findings = [Metric(lambda _: 0.9, 0.02, case).why() for case in range(20)]
    assert [one.verdict for one in findings].count("none") >= 19
    assert [moved(one) for one in findings].count([]) >= 19


def test_two_changes_that_move_it_together_share_it() -> None:
    """Only both at once: alone they do nothing, and each has half of it."""
    findings = Metric(lambda changes: 1.0 * ({"lr", "loss"} <= changes), 0.001).why()
    assert sorted(moved(findings)) == ["loss", "lr"]
    for share in findings.shares:
        assert share.effect is not None
        assert share.effect.mean == pytest.approx(0.5, abs=0.01)
        assert share.alone == pytest.approx(0, abs=0.01)
        assert share.last == pytest.approx(1, abs=0.01)


def test_without_noise_one_seed_is_enough() -> None:
    metric = Metric(lambda changes: 0.5 + 0.1 * ("data" in changes) - 0.02 * ("lr" in changes), 0.0)
    findings = metric.why()
    assert findings.exact
    assert moved(findings) == ["data", "lr"]
    assert metric.count <= 4 + 2**5
    total = sum(share.effect.mean for share in findings.shares if share.effect)
    assert total == pytest.approx(0.08)


def test_a_small_budget_ends_the_search_and_says_so() -> None:
    findings = Metric(lambda changes: 1.0 * ("lr" in changes), 0.01, most=7).why()
    assert (findings.verdict, findings.spent) == ("unsettled", True)
    assert findings.total is not None
    assert findings.total.mean == pytest.approx(1, abs=0.05)


def test_equal_steps_of_an_accuracy_are_no_proof() -> None:
    """Three times one row of thirty: luck, not certainty; a metric without steps has no such doubt."""
    assert effect_of([1 / 30] * 3, resolution=1 / 30).p > 0.02
    assert effect_of([1 / 30] * 8, resolution=1 / 30).p < 0.001
    t = 0.11 / (0.01 / math.sqrt(3))  # of two degrees of freedom, for which there is a closed form
    assert effect_of([0.1, 0.11, 0.12]).p == pytest.approx(1 - t / math.sqrt(2 + t * t))
    assert effect_of([0.0, 0.0, 0.0], exact=True).p == 1


# -- the changes


def factor(name: str) -> Factor:
    return Factor(name, [(name,)], "1", "2")


def test_keys_that_are_invalid_by_themselves_are_one_change() -> None:
    """`b` needs `d`, as `early_stopping.metric` needs the metric to be computed."""

    def is_valid(factors: Sequence[Factor]) -> bool:
        names = {one.name for one in factors}
        return "b" not in names or "d" in names

    merged = merge_invalid([factor(name) for name in "abcd"], is_valid)
    assert [(one.name, one.merged) for one in merged] == [("b+d", True), ("a", False), ("c", False)]
    assert merged[0].before == "b 1; d 1"


# -- real runs

BASE: dict[str, Any] = {
    "experiment": {"name": "why", "seed": 0},
    "data": {"type": "iris"},
    "model": {"type": "toy", "params": {"noise": 0.3}},
    "training": {"max_steps": 24, "batch_size": 16, "learning_rate": 0.05, "threads": 1},
    "evaluation": {"every_n_steps": 24},
    "checkpoint": {"every_n_minutes": None},
}
# Of these five, only the learning rate matters.
CHANGED: dict[str, Any] = {
    "training.learning_rate": 1e-5,
    "training.batch_size": 17,
    "training.max_steps": 25,
    "model.params.noise": 0.31,
    "training.optimizer.momentum": 0.905,
    "experiment.seed": 5,
}


def two_runs(runs: Path, changes: Mapping[str, Any]) -> tuple[trainwright.Run, trainwright.Run]:
    return trainwright.train(BASE, runs_dir=runs), trainwright.train(BASE, changes, runs_dir=runs)


@pytest.mark.slow
def test_a_killed_study_goes_on_and_finds_the_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = two_runs(tmp_path, CHANGED)
    seen: list[Mapping[str, Any]] = []

    def crash(measured: Mapping[str, Any]) -> None:
        seen.append(measured)
        if len(seen) == 6:
            raise Crash

    with pytest.raises(Crash):
        trainwright.why(before, after, metric="test_loss", runs_dir=tmp_path, watch=crash)
    [crashed] = [path.name for path in (tmp_path / "why").glob("why-*")]
    words = ["why", before.id, after.id, "--metric", "loss", "--resume", "--json"]
    capsys.readouterr()
    assert main([*words, "--runs-dir", str(tmp_path)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["study_id"] == crashed
    assert (
        document["answer"].split(": ")[1].startswith("training.learning_rate (0.05 -> 1e-05) moved it by +")
    )
    assert [one["stands_out"] for one in document["shares"]] == [True]
    ids = [one["run_id"] for one in document["measured"]]
    assert {before.id, after.id} < set(ids)
    assert len(ids) - 2 == document["trained"] <= 60
    assert {one["run_id"] for one in seen} < set(ids)  # nothing was trained twice
    assert {factor["name"] for factor in document["factors"]} == {
        "training.learning_rate",
        "training.batch_size",
        "training.length",
        "model.params.noise",
        "training.optimizer.params.momentum",
    }
    explained = document["total"]["mean"] + document["seed"] + document["rest"]["difference"]
    assert explained == pytest.approx(document["difference"])
    page = Path(document["report"]).read_text(encoding="utf-8")
    assert document["answer"].replace(">", "&gt;") in page
    assert "<svg" in page
    manifest = RunDir(
        tmp_path / "why" / next(one for one in ids if one not in (before.id, after.id))
    ).manifest()
    assert manifest is not None
    assert manifest.parent is not None
    assert (manifest.parent.run_id, manifest.parent.relation) == (crashed, "why")


@pytest.mark.soak
@pytest.mark.slow
def test_kill_9_within_a_run_of_a_study(tmp_path: Path) -> None:
    """A study that is killed before its sixth run has a result goes on, and ends like one that was not."""
    from warm_commands import command

    before, after = two_runs(tmp_path / "runs", CHANGED)
    words = ("why", before.id, after.id, "--metric", "loss", "--runs-dir", "runs", "--json")
    killed = command(*words, folder=tmp_path, killed=("SIGKILL", "end", 6))
    assert killed.returncode == -signal.SIGKILL
    folder = tmp_path / "runs" / "why"
    written = {path: path.stat().st_mtime_ns for path in folder.glob("2*/result.json")}
    assert len(written) == 2 + 5
    assert len([*folder.glob("2*/config.yaml")]) == len(written) + 1
    resumed = command(*words, "--resume", folder=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    found = json.loads(resumed.stdout)
    assert {path: path.stat().st_mtime_ns for path in written} == written  # none was trained again
    assert len([*folder.glob("2*/result.json")]) == found["trained"] + 2
    whole = trainwright.why(
        *two_runs(tmp_path / "other", CHANGED), metric="loss", runs_dir=tmp_path / "other"
    )
    assert measured(found) == measured(whole.result)
    assert found["trained"] == whole.result["trained"]
    assert found["answer"] == whole.answer


def measured(document: Mapping[str, Any]) -> dict[tuple[str, int], float]:
    return {(one["label"], one["seed"]): one["value"] for one in document["measured"]}


@pytest.mark.slow
def test_another_seed_is_no_reason(tmp_path: Path) -> None:
    study = trainwright.why(*two_runs(tmp_path, {"experiment.seed": 1}), runs_dir=tmp_path)
    assert (study.verdict, study.moved_by, study.shares) == ("none", [], {})
    assert "none, only the seed differs" in str(study.answer)
    assert study.result["trained"] == 3
    page = (study.path / "report.html").read_text(encoding="utf-8")
    for measured in study.result["measured"]:
        trainwright.report(measured["run_id"], runs_dir=tmp_path)
    assert (study.path / "report.html").read_text(encoding="utf-8") == page


def test_resume_names_the_command_that_goes_on_with_the_study(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = Study.create(tmp_path, "why", "why", {"runs": ["run-a", "run-b"], "metric": "test_loss"})
    for verb in ("resume", "reproduce", "work"):
        assert main([verb, study.id, "--runs-dir", str(tmp_path)]) == 2
        assert "trainwright why run-a run-b --metric test_loss --resume" in capsys.readouterr().err


def test_a_seed_that_changes_nothing_is_said_in_plain_words(tmp_path: Path) -> None:
    config = {**BASE, "model": {"type": "ridge"}, "data": {"type": "diabetes"}}
    config = {key: config[key] for key in ("experiment", "data", "model")}
    runs = [trainwright.train(config, {"experiment.seed": seed}, runs_dir=tmp_path) for seed in (0, 1)]
    study = trainwright.why(*runs, metric="test_r2", runs_dir=tmp_path)
    value = f"{runs[0].metrics['test_r2']:.4g}"
    assert study.answer == (
        f"test_r2 is {value} in both runs: only the seed differs, and it changes nothing here."
    )


CODE = """\
import numpy as np


def rows():
    target = np.arange(150) % 2
    data = np.random.default_rng(0).normal(3 * target[:, None], 1, (150, 2))
    return {}, target
"""


@pytest.mark.slow
def test_code_is_checked_out_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second commit loses the features; the checkout of the user stays on what they have there now."""
    monkeypatch.chdir(tmp_path)

    def commit(features: str) -> None:
        Path("our_rows.py").write_text(CODE.format(features), encoding="utf-8")
        subprocess.run(["git", "add", "our_rows.py"], check=True)
        identity = ["-c", "user.name=A", "-c", "user.email=a@b.c"]
        subprocess.run(["git", *identity, "commit", "-qm", "rows"], check=True)

    config = {**BASE, "data": {"type": "our_rows:rows"}}
    train = "import sys, json, trainwright; print(trainwright.train(json.loads(sys.argv[1])).id)"
    subprocess.run(["git", "init", "-q"], check=True)
    ids = []
    for features in ("data", "0 * data"):
        commit(features)
        words = [sys.executable, "-c", train, json.dumps(config)]
        ids.append(subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()[-1])
    Path("our_rows.py").write_text("raise SystemExit('not this one')\n", encoding="utf-8")
    study = trainwright.why(*ids, metric="test_loss", max_runs=8)
    assert study.moved_by == ["code"]
    assert Path("our_rows.py").read_text(encoding="utf-8").startswith("raise")
    listed = subprocess.run(["git", "worktree", "list"], check=True, capture_output=True, text=True).stdout
    assert len(listed.splitlines()) == 1


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    before, after = two_runs(tmp_path, {"training.learning_rate": 0.1})
    with pytest.raises(InputError, match="nosuch is not in both runs as a number; they have val_loss"):
        trainwright.why(before, after, metric="nosuch", runs_dir=tmp_path)
    assert not list((tmp_path / "why").glob("why-*"))
    factors, notes = changes_between(*(Side.of(RunDir(run.path)) for run in (before, after)), [])
    assert [(one.name, one.before, one.after) for one in factors] == [
        ("training.learning_rate", "0.05", "0.1")
    ]
    assert notes == []


def test_git_is_not_asked_in_a_folder_that_came_with_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repository whose settings fetch a commit that it lacks by a program of its own."""
    from trainwright.digest import sha256_json

    theirs, here, mark = tmp_path / "theirs", tmp_path / "here", tmp_path / "code-ran"
    theirs.mkdir()
    here.mkdir()
    monkeypatch.chdir(theirs)
    pair = two_runs(Path("runs"), {"training.learning_rate": 0.1})
    settings = {
        "core.repositoryformatversion": "1",
        "extensions.partialClone": "origin",
        "protocol.ext.allow": "always",
        "remote.origin.url": f"ext::touch {mark}",
        "remote.origin.promisor": "true",
    }
    subprocess.run(["git", "init", "-q"], check=True)
    for key, value in settings.items():
        subprocess.run(["git", "config", key, value], check=True)
    for run, letter in zip(pair, "ab", strict=True):
        file = run.path / "manifest.json"
        manifest = json.loads(file.read_text(encoding="utf-8"))
        manifest["code"] |= {"modules": {"net": letter * 64}, "git": {"commit": letter * 40, "dirty": False}}
        del manifest["sha256"]
        file.write_text(json.dumps(manifest | {"sha256": sha256_json(manifest)}), encoding="utf-8")
    monkeypatch.chdir(here)
    with pytest.raises(InputError, match=f"is in {theirs}: start from there, or give --trust"):
        trainwright.why(*pair, runs_dir=theirs / "runs")
    assert not mark.exists()
