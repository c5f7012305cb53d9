"""The contract suite of frameworks: a process is killed anywhere, resumed, and must end with the same bits.

    class TestMine(FrameworkSuite):
        framework = "mine"

        @classmethod
        def config(cls) -> dict[str, Any]:
            return {...}            # some 40 steps, with dropout, sampling and all else that is random

The contract is in `frameworks/base.py`. For a model that is made in one step, set `kills = ONE_STEP_KILLS`
and `three_kills = ONE_STEP_THREE_KILLS`. A model of your own goes into `sources`.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from trainwright import api, plugins
from trainwright.config import load
from trainwright.digest import digest, tensor_records
from trainwright.frameworks.base import WEIGHTS_FILE
from trainwright.records.journal import SegmentReader, evaluations, losses, read, segments
from trainwright.records.listing import all_runs, runs_folder
from trainwright.records.run_dir import RunDir
from trainwright.runs.catalog import Catalog
from trainwright.runs.objects import Objects
from trainwright.runs.wiring import Components, build, run_checkpoints
from trainwright.storage.copies import download_all
from trainwright.storage.seals import problems
from trainwright.storage.urls import url_of
from trainwright.testing.warm import WarmProcesses

# (phase, at which of its calls the process is killed): early and late, on and off the cadence of the saves.
KILLS = (
    ("start-up", 1),
    ("step", 1),
    ("step", 13),
    ("step", 29),
    ("evaluation", 1),
    ("evaluation", 3),
    ("write", 1),
    ("write", 8),
    ("commit", 1),
    ("commit", 4),
    ("entry", 3),
    ("final-evaluation", 1),
    ("end", 1),
)
# For a subclass that differs little from one with all kills.
FEW_KILLS = (("step", 13), ("evaluation", 3), ("commit", 4))
THREE_KILLS = (("step", 9), ("evaluation", 1), ("commit", 2))
ONE_STEP_KILLS = tuple(
    (phase, 1) for phase in ("start-up", "step", "evaluation", "write", "commit", "final-evaluation", "end")
)
ONE_STEP_THREE_KILLS = (("step", 1), ("evaluation", 1), ("commit", 1))
Kills = Sequence[tuple[str, int]]


VICTIM = "trainwright.testing.victim"
LOADER = "trainwright.testing.loader"
DATA_MODULES = ("numpy", "pandas", "sklearn.datasets")  # what most configs read their data with


def spawn(phase: str, count: int, *where: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run `trainwright.testing.victim` in a process that is started afresh, until it ends or kills itself."""
    command = [sys.executable, "-m", VICTIM, phase, str(count), *where]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)


def new_folder(folder: Path) -> Path:
    """Make a folder and return it."""
    folder.mkdir()
    return folder


@pytest.mark.slow
class FrameworkSuite:
    """Tests of the contract; subclass it in a test module of the adapter."""

    framework: ClassVar[str]
    kills: ClassVar[Kills] = KILLS
    three_kills: ClassVar[Kills] = THREE_KILLS
    starts_afresh: ClassVar[bool] = True  # False for a subclass that differs little from one that does
    sources: ClassVar[Mapping[str, str]] = {}  # Python files that the config imports from, by name

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Parametrize the tests with the kills of the class."""
        if "phase" in metafunc.fixturenames:
            metafunc.parametrize(("phase", "count"), self.kills)

    def runs_dir(self, folder: Path) -> str:
        """Return the folder or URL in which a test has its runs; `folder` is the test's own."""
        return str(folder)

    def run_in(self, runs_dir: str) -> RunDir:
        """Return the one run there, with all its files; of a run in a store, the working copy."""
        (run,) = all_runs(runs_folder(runs_dir))
        download_all(run)
        return run

    def resume_folder(self, config_file: Path, folder: Path) -> Path:  # noqa: ARG002
        """Return the folder in which a run is resumed; `folder` is the test's own."""
        return config_file.parent

    @classmethod
    def config(cls) -> dict[str, Any]:
        """Return a config without `checkpoint`, of 30 steps or more."""
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def config_file(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """Write the config, with saves at other steps than evaluations."""
        folder = tmp_path_factory.mktemp(cls.framework)
        complete = {
            "experiment": {"seed": 7},
            "checkpoint": {"every_n_steps": 4, "keep_last": 2},
            **cls.config(),
        }
        path = folder / "config.yaml"
        path.write_text(load(complete, adapters=Catalog()).dump(), encoding="utf-8")
        for name, text in cls.sources.items():
            (folder / name).write_text(text, encoding="utf-8")
        return path

    @pytest.fixture(autouse=True)
    def importable(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let this process import `sources`, as the killed processes do."""
        monkeypatch.syspath_prepend(request.getfixturevalue("config_file").parent)

    @pytest.fixture(scope="class")
    @classmethod
    def first_output(cls, config_file: Path, processes: WarmProcesses) -> list[str]:
        """Train the run that is not killed, and return what its process printed."""
        where, folder = (str(config_file), "uninterrupted"), config_file.parent
        if cls.starts_afresh:
            done = spawn("never", 0, *where, folder=folder)
        else:
            done = processes.run("never", "0", *where, folder=folder)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip().splitlines()

    @pytest.fixture(scope="class")
    @classmethod
    def uninterrupted(cls, first_output: list[str]) -> RunDir:
        """Return the run that is not killed."""
        return RunDir(Path(first_output[-1]))

    @pytest.fixture(scope="class")
    @classmethod
    def processes(cls) -> WarmProcesses:
        """Start the process to fork, which imports the framework; only `uninterrupted` starts afresh."""
        return WarmProcesses(VICTIM, cls._imports())

    @classmethod
    def _imports(cls) -> tuple[str, ...]:
        return (*DATA_MODULES, *plugins.adapter("framework", cls.framework).library.modules)

    @pytest.fixture
    def components(self, config_file: Path) -> Components:
        """Build the framework in this process."""
        return build(load(config_file, adapters=Catalog()).config, 1, Objects())

    def test_killed_anywhere_it_ends_with_the_same_bits(
        self, phase: str, count: int, config_file: Path, uninterrupted: RunDir,
        processes: WarmProcesses, tmp_path: Path,
    ) -> None:  # fmt: skip
        """A run that is killed once and resumed ends with the same bits."""
        runs = self.runs_dir(tmp_path)
        killed = processes.run(phase, str(count), str(config_file), runs, folder=config_file.parent)
        assert killed.returncode == -signal.SIGKILL, f"the kill did not land: {killed.stderr}"
        run = self.run_in(runs)
        assert run.status() in ("created", "crashed")
        if url_of(run.path.parent.parent) is None:
            assert problems(run) == [], "a kill is no damage"
        commit, _ = run_checkpoints(run).resume.newest()
        before = losses(read(run.journal)) if run.journal.is_dir() else {}

        name, folder = self.name_of(run), self.resume_folder(config_file, tmp_path)
        resumed = processes.run("never", "0", "--resume", name, folder=folder)

        assert resumed.returncode == 0, resumed.stderr
        download_all(run)
        start = next(iter(SegmentReader(segments(run.journal)[-1])))
        assert start["from_step"] == (commit.step if commit else 0), (
            "it did not continue from the newest commit"
        )
        assert max(before, default=0) - start["from_step"] < 1024, (
            "more steps were lost than the loop may leave unread"
        )
        self._assert_same(run, uninterrupted)

    def test_killed_three_times_it_ends_with_the_same_bits(
        self, config_file: Path, uninterrupted: RunDir, processes: WarmProcesses, tmp_path: Path
    ) -> None:
        """A run that is killed three times ends with the same bits."""
        first, *more = self.three_kills
        runs = self.runs_dir(tmp_path)
        processes.run(first[0], str(first[1]), str(config_file), runs, folder=config_file.parent)
        run = self.run_in(runs)
        name, folder = self.name_of(run), self.resume_folder(config_file, tmp_path)
        for phase, count in more:
            killed = processes.run(phase, str(count), "--resume", name, folder=folder)
            assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert processes.run("never", "0", "--resume", name, folder=folder).returncode == 0
        download_all(run)
        assert len(run.attempts()) == 4, [one.attempt for one in run.attempts()]
        self._assert_same(run, uninterrupted)

    def test_a_damaged_checkpoint_is_never_loaded(
        self, config_file: Path, uninterrupted: RunDir, processes: WarmProcesses, tmp_path: Path
    ) -> None:
        """A resume names a damaged checkpoint and uses an older one."""
        processes.run("end", "1", str(config_file), str(tmp_path), folder=config_file.parent)
        (run,) = all_runs(tmp_path)
        commit, _ = run_checkpoints(run).resume.newest()
        assert commit is not None
        damaged = run.path / "checkpoints" / commit.name / WEIGHTS_FILE
        content = bytearray(damaged.read_bytes())
        content[len(content) // 2] ^= 1
        damaged.write_bytes(content)

        resumed = processes.run("never", "0", "--resume", str(run.path), folder=config_file.parent)

        assert resumed.returncode == 0, resumed.stderr
        assert f"checkpoint {commit.name} is damaged" in resumed.stderr
        assert next(iter(SegmentReader(segments(run.journal)[-1])))["from_step"] < commit.step
        self._assert_same(run, uninterrupted)

    def test_reproduces(self, uninterrupted: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
        """`reproduce` answers `identical`, in the folder that the run was started in."""
        monkeypatch.chdir(uninterrupted.require_manifest().working_directory)
        answer = api.reproduce(uninterrupted.path)
        assert (answer.verdict, answer.step, answer.tensor) == ("identical", None, None)
        assert not answer.inputs, answer.inputs

    def test_steps_do_not_depend_on_predictions_or_snapshots(self, components: Components) -> None:
        """Predicting and saving between steps changes no bits."""
        other = build(components.config, 1, Objects(), components.learner.choices())
        for step in range(min(3, components.plan.total_steps)):
            components.learner.step(step, 0.01)
            other.learner.step(step, 0.01)
            list(other.learner.model().predict(other.bundle.splits["val"]))
            other.learner.snapshot()
        assert tensor_records(components.learner.state()) == tensor_records(other.learner.state())

    def test_a_snapshot_is_not_touched_by_later_steps(self, components: Components, tmp_path: Path) -> None:
        """A snapshot written after a later step has the earlier state."""
        if components.plan.total_steps == 1:
            pytest.skip("the model is made in one step: there is no later one")
        components.learner.step(0, 0.01)
        before = tensor_records(components.learner.state())
        snapshot = components.learner.snapshot()
        components.learner.step(1, 0.01)
        assert tensor_records(components.learner.state()) != before
        written = [tensor for file in snapshot.write(tmp_path) for tensor in file.state()]
        assert digest(written) == digest(before)

    def test_restoring_gives_the_state_that_was_saved(self, components: Components, tmp_path: Path) -> None:
        """`restore` gives the state that was saved."""
        for step in range(min(3, components.plan.total_steps)):
            components.learner.step(step, 0.01)
        before = tensor_records(components.learner.state())
        components.learner.snapshot().write(tmp_path)
        fresh = build(components.config, 1, Objects(), components.learner.choices())
        fresh.learner.restore(tmp_path)
        assert tensor_records(fresh.learner.state()) == before

    def test_weights_alone_are_the_weights_of_the_whole(self, components: Components, tmp_path: Path) -> None:
        """A snapshot of weights equals the weights of the full state."""
        components.learner.step(0, 0.01)
        files = components.learner.snapshot(weights_only=True).write(tmp_path)
        (file,) = [file for file in files if file.name == WEIGHTS_FILE]
        expected = [
            tensor
            for tensor in tensor_records(components.learner.state())
            if tensor.name.startswith("weights.")
        ]
        assert (
            digest(file.state())
            == digest(expected)
            == digest(tensor_records(components.learner.state(weights_only=True)))
        )

    def test_weights_of_an_earlier_step_are_those_of_that_step(
        self, components: Components, tmp_path: Path
    ) -> None:
        """Weights written for an earlier step are those of that step."""
        if not components.plan.cumulative:
            pytest.skip("its state does not hold the models of earlier steps")
        for step in range(5):
            components.learner.step(step, 0.01)
            if step == 1:
                components.learner.snapshot(weights_only=True).write(new_folder(tmp_path / "then"))
        components.learner.snapshot(weights_only=True, step=2).write(new_folder(tmp_path / "later"))
        then, later = ((tmp_path / name / WEIGHTS_FILE).read_bytes() for name in ("then", "later"))
        assert then == later

    def test_predictions_cover_a_split_in_order(self, components: Components) -> None:
        """`predict` covers each row of a split once, in order."""
        components.learner.step(0, 0.01)
        predictions = list(components.learner.model().predict(components.bundle.splits["val"]))
        assert [i for part in predictions for i in part.ids] == list(
            range(len(components.bundle.splits["val"]))
        )
        assert all(len(part.ids) == len(part.outputs) == len(part.targets) for part in predictions)

    def test_a_loaded_model_serves_many_threads_and_changes_nothing(self, uninterrupted: RunDir) -> None:
        """Threads get the outputs of one alone, the process stays as it was, and commands give the bits."""
        if not self.starts_afresh:
            pytest.skip("another class of the framework shows it")
        folder = Path(uninterrupted.require_manifest().working_directory)
        done = WarmProcesses(LOADER, self._imports()).run(str(uninterrupted.path), folder=folder)
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout.splitlines()[-1])
        assert answer["changed"] == [], "loading or predicting changed the process"
        assert answer["others"] == 0, "threads disturb each other"
        assert answer["distance"] < 1e-5
        metrics = uninterrupted.require_result().metrics
        assert answer["metrics"] == {key: metrics[key] for key in answer["metrics"]}

    def test_a_run_imports_no_other_framework(self, first_output: list[str]) -> None:
        """A run in a fresh process imports its own library, and none of the built-in frameworks' others."""
        if not self.starts_afresh:
            pytest.skip("another class of the framework shows it")
        own = set(plugins.adapter("framework", self.framework).library.modules)
        others = [plugins.adapter("framework", name) for name in plugins.BUILT_IN["framework"]]
        libraries = {module.partition(".")[0] for other in others for module in other.library.modules}
        imported = set(first_output[-2].split())
        assert imported & libraries - {"sklearn"} <= own, (
            "another framework's library is imported"
        )  # sklearn: data
        assert own <= imported

    def test_its_module_is_light(self) -> None:
        """Reading names and options does not import the library."""
        code = (
            "import sys; from trainwright import plugins; cls = plugins.adapter('framework', sys.argv[1]); "
            "cls.models, cls.optimizers, cls.losses; "
            "own = cls.__module__.split('.')[0]; "
            "print(' '.join(m for m in cls.library.modules if m in sys.modules and m != own))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, self.framework], capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == "", "reading its names and options imports its library"
        assert plugins.adapter("framework", self.framework).library.modules

    def name_of(self, run: RunDir) -> str:
        """Return what a resume calls the run: its path, or its URL."""
        url = url_of(run.path.parent.parent)
        return f"{url}/{run.experiment}/{run.id}" if url else str(run.path)

    def _assert_same(self, run: RunDir, uninterrupted: RunDir) -> None:
        result, expected = run.require_result().to_json(), uninterrupted.require_result().to_json()
        same = ("status", "steps", "digest", "metrics", "best", "evaluated")
        assert {key: result[key] for key in same} == {key: expected[key] for key in same}
        records, expected_records = list(read(run.journal)), list(read(uninterrupted.journal))
        assert losses(records) == losses(expected_records)
        assert evaluations(records) == evaluations(expected_records)
        assert problems(run) == []
