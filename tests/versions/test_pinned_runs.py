"""Runs whose data are versions: a moving name becomes exact, and the pin is an input like any other."""

import shutil
from pathlib import Path
from typing import Any

import pytest

import trainwright
from trainwright.cli.main import main
from trainwright.datasets.samples import cache
from trainwright.errors import ChangedInputsError, ConfigError, DataError, InputError
from trainwright.versions.embedded import EmbeddedVersion

TABLE = "a,b,target\n" + "".join(f"{i % 17},{i % 5},{i % 2}\n" for i in range(120))
CONFIG: dict[str, Any] = {"data": {"path": "churn@latest"}, "model": "logistic_regression"}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path / "cache"))
    add(TABLE)
    return tmp_path


def add(text: str, name: str = "churn", **options: Any) -> None:
    Path("table.csv").write_text(text)
    trainwright.data_add("table.csv", name, **options)


def with_edit(text: str = TABLE) -> str:
    return text.replace("\n3,", "\n4,")


def pins(run: trainwright.Run) -> dict[str, str]:
    return {key: pin["revision"] for key, pin in run.manifest["data"]["pins"].items()}


def test_a_moving_name_is_exact_in_the_config_of_the_run() -> None:
    run = trainwright.train(CONFIG, quiet=True)
    add(with_edit())
    assert 'path: "churn@v1"' in (run.path / "config.yaml").read_text()
    assert pins(run) == {"data.path": "churn@v1"}
    assert pins(trainwright.train(CONFIG, quiet=True)) == {"data.path": "churn@v2"}
    shutil.rmtree("cache")
    assert trainwright.reproduce(run).verdict == "identical"


def test_runs_show_names_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    run = trainwright.train(CONFIG, quiet=True)
    capsys.readouterr()
    assert main(["runs", "show", run.id]) == 0
    assert "churn@v1 (embedded, " in capsys.readouterr().out


@pytest.mark.parametrize(
    "data",
    [
        "churn@v1",
        {"path": "churn", "version": "v1"},
        {"path": "churn", "version": "good"},
        {"path": "churn", "version": 1},
        {"path": "churn@good"},
        {"train_path": "churn@v1", "test_path": "other@latest"},
    ],
)
def test_each_way_to_name_a_version(data: Any) -> None:
    add(TABLE, tag="good")
    add(with_edit())
    add(with_edit(), "other")
    run = trainwright.train({**CONFIG, "data": data}, quiet=True)
    others = {"data.test_path": "other@v1"} if "train_path" in data else {}
    assert pins(run) == {"data.train_path" if others else "data.path": "churn@v1"} | others


def test_a_file_of_the_name_is_a_file() -> None:
    Path("churn@latest").write_text(with_edit())
    run = trainwright.train({**CONFIG, "data": {"path": "churn@latest", "type": "csv"}}, quiet=True)
    assert pins(run) == {}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"path": "chrun@v1"}, r"data\.path: there is no data set 'chrun'; there are: churn; did you mean"),
        ({"path": "churn@v9"}, r"churn has no version 'v9'; there are: v1, latest"),
        ({"path": "table.csv", "version": "v1"}, r"data\.version: is the version of the data set that data"),
        ({"path": "churn"}, r"data\.path: there is no file churn, but versions .*; write churn@latest$"),
        ({"path": "chrun"}, r"data\.path: the file name's ending is unknown"),
        ({"train_path": "churn", "test_path": "churn@v1"}, r"data\.train_path: .* write churn@latest$"),
        ({"version": "v1"}, r"data\.version: is the version of the data set that data\.path names"),
    ],
)
def test_a_wrong_version_is_a_problem_of_the_config(data: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        trainwright.check({**CONFIG, "data": data})


def test_the_type_is_that_of_the_files_of_the_version() -> None:
    Path("parts").mkdir()
    for i in range(3):
        Path(f"parts/{i}.csv").write_text(TABLE)
    trainwright.data_add("parts")
    run = trainwright.train({**CONFIG, "data": {"path": "parts@latest"}}, quiet=True)
    assert run.manifest["data"]["splits"]["train"]["rows"] > 200


def test_a_version_with_other_content_is_a_changed_input() -> None:
    """A run that is moved to a folder of runs whose version of this name is another one is not resumed."""
    config = {**CONFIG, "model": "mlp", "training": {"max_steps": 6, "threads": 1}}
    run = trainwright.train(config, quiet=True, verdict=lambda step, metrics: "pause")
    assert run.status != "completed"
    shutil.copytree(run.path.parent, "elsewhere/run")
    moved = Path("elsewhere/run") / run.id
    with pytest.raises(DataError, match="there is no data set 'churn'"):
        trainwright.resume(str(moved))
    Path("table.csv").write_text(with_edit())
    trainwright.data_add("table.csv", "churn", runs_dir="elsewhere")
    with pytest.raises(ChangedInputsError, match=r"version of data\.path was churn@v1 \(embedded, \w+"):
        trainwright.resume(str(moved))
    assert trainwright.resume(run, quiet=True).status == "completed"


def test_predict_and_evaluate_take_versions(caplog: pytest.LogCaptureFixture) -> None:
    run = trainwright.train(CONFIG, quiet=True)
    add(with_edit())
    caplog.clear()
    assert trainwright.evaluate(run, data="churn@v2") == trainwright.evaluate(run, data="table.csv")
    assert "was trained on" not in caplog.text
    trainwright.evaluate(run, data="churn@v1")
    assert f"holds the rows that run {run.id} was trained on" in caplog.text
    other = trainwright.train({**CONFIG, "data": {**CONFIG["data"], "path": "churn@v2"}}, quiet=True)
    for first, second, named in ((run, other, run), (other, run, run)):
        caplog.clear()
        trainwright.compare(first, second, data="churn@v1")
        assert [one for one in (run, other) if f"holds the rows that run {one.id}" in caplog.text] == [named]
    assert len(trainwright.predict(run, "churn@latest")) == 120
    assert main(["predict", run.id, "churn@v2", "-o", "out.csv"]) == 0
    assert len(Path("out.csv").read_text().splitlines()) == 121
    with pytest.raises(DataError, match="churn has no version 'v7'"):
        trainwright.predict(run, "churn@v7")


def test_a_study_resolves_a_moving_name_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from trainwright.studies import configs

    made = configs.StudyConfig.read(CONFIG, (), Path("runs"), objects=False)
    add(with_edit())
    assert made.with_fold(2, 1).resolved.config.data.path == "churn@v1"
    folds = trainwright.cross_validate(CONFIG, folds=2)
    assert {tuple(pins(run).values()) for run in folds.runs} == {("churn@v2",)}


def test_deleting_runs_says_which_versions_are_free(capsys: pytest.CaptureFixture[str]) -> None:
    run = trainwright.train(CONFIG, quiet=True)
    again = trainwright.train(CONFIG, quiet=True)
    capsys.readouterr()
    assert main(["runs", "delete", run.id, "--dry-run"]) == 0
    assert "no other run holds" not in capsys.readouterr().out
    assert main(["runs", "delete", run.id, again.id, "--dry-run"]) == 0
    assert "no other run holds churn@v1" in capsys.readouterr().out
    assert main(["runs", "delete", run.id, "--yes"]) == 0
    assert "no other run holds" not in capsys.readouterr().out
    assert main(["runs", "delete", again.id, "--yes"]) == 0
    assert "no other run holds churn@v1" in capsys.readouterr().out


def test_a_run_has_its_content_back_when_it_is_added_again(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "trainwright")
    run = trainwright.train(CONFIG, quiet=True)
    add(with_edit())
    assert trainwright.data_delete("churn@v1", force=True) == {
        "version": "churn@v1",
        "runs": [run.id],
        "same": None,
    }
    trainwright.data_gc()
    shutil.rmtree("cache")
    with pytest.raises(DataError, match="churn@v1 was deleted by"):
        trainwright.reproduce(run)
    add(TABLE)
    add(with_edit())
    assert trainwright.reproduce(run).verdict == "identical"
    assert "(data delete), but churn@v3 has the same content" in caplog.text
    holding = trainwright.data_show("churn@v3")["runs"]
    assert run.id in holding
    with pytest.raises(InputError, match=f"churn@v3 is the data of runs .*{run.id}"):
        trainwright.data_delete("churn@v3")
    assert trainwright.data_gc(keep=1).kept == {"churn@v3": holding}
    with pytest.raises(DataError, match="churn@v1 was deleted by"):
        trainwright.data_delete("churn@v1", force=True)
    add(TABLE)
    capsys.readouterr()
    assert main(["data", "delete", "churn@v3", "--force"]) == 0
    assert capsys.readouterr().out == (
        "deleted churn@v3\nchurn@v5 has the same content, so its runs can still be reproduced\n"
    )
    shutil.rmtree("cache")
    assert trainwright.reproduce(run).verdict == "identical"


def test_a_file_and_a_folder_of_one_content_are_two_versions() -> None:
    Path("churn").mkdir()
    Path("churn/data.csv").write_text(TABLE)
    assert trainwright.data_add("churn")["new"]
    trainwright.data_delete("churn@v1")
    with pytest.raises(DataError, match="churn@v1 was deleted by"):
        trainwright.data_get("churn@v1", "out.csv")


def test_a_created_run_holds_its_version() -> None:
    run = trainwright.create(CONFIG)
    assert trainwright.data_show("churn@v1")["runs"] == [run.id]


def test_the_cached_files_are_read_only_and_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    first = trainwright.train(CONFIG, quiet=True)
    hashing, hashed = cache.sha256_file, list[str]()
    monkeypatch.setattr(cache, "sha256_file", lambda path: (hashed.append(path.name), hashing(path))[1])
    trainwright.train(CONFIG, quiet=True)
    assert "churn.csv" not in hashed, "this process has compared it already"
    (file,) = Path("cache/data").glob("*/files/*")
    assert file.stat().st_mode & 0o222 == 0
    file.chmod(0o644)
    file.write_text(with_edit())
    assert trainwright.train(CONFIG, quiet=True).digest == first.digest
    assert file.read_text() == TABLE


def test_cached_files_are_used_without_asking_how_large_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {**CONFIG, "data": {"path": "churn@v1", "type": "csv"}}
    first = trainwright.train(config, quiet=True)
    monkeypatch.delattr(EmbeddedVersion, "describe")
    assert trainwright.train(config, quiet=True).digest == first.digest


def test_messages_name_the_version(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    add(TABLE.replace("\n3,", "\n,"))
    add(f"{TABLE}x,y\n")
    Path("folder").mkdir()
    for name, text in (("a.csv", "a,target\n1,1\n"), ("b.csv", "a,target\n1,x,y\n")):
        Path("folder", name).write_text(text)
    trainwright.data_add("folder")
    said = []
    for data in (
        {"path": "churn@v1", "target": "nope"},
        {"path": "churn@v2", "impute": None},
        {"path": "churn@v3"},
        {"path": "folder@v1"},
    ):
        with pytest.raises(DataError) as caught:
            trainwright.train({**CONFIG, "data": data}, quiet=True)
        said.append(str(caught.value))
        assert str(data["path"]) in said[-1]
    run = trainwright.train(CONFIG | {"data": "churn@v1"}, quiet=True)
    Path("config.yaml").write_text(
        "data: {path: 'churn@v2', expect: {rows: '<= 9', columns: {a: {max: 3}}}}\nmodel: logistic_regression\n"
    )
    capsys.readouterr()
    for words in (
        ["runs", "compare", run.id, run.id, "--data", "churn@v3"],
        ["evaluate", run.id, "churn@v3"],
        ["data", "diff", "churn@v1", "churn@v2"],
        ["data", "check", "config.yaml"],
        ["data", "check", "config.yaml", "data.path=churn@v3"],
        ["data", "diff", "churn@v1", "folder@v1"],
    ):
        main(words)
    captured = capsys.readouterr()
    for text in (*said, caplog.text, captured.out, captured.err):
        assert "cache/data" not in text


def test_init_drafts_a_config_for_a_version() -> None:
    text = trainwright.init("churn@latest", "target")
    assert "churn@latest" in text
    assert "/files/" not in text
    Path("config.yaml").write_text(text)
    assert pins(trainwright.train("config.yaml", quiet=True)) == {"data.path": "churn@v1"}
