"""Runs that are asked to stop, killed in some phase of it, and resumed: they end where they were to end."""

import signal
from pathlib import Path
from typing import Any, ClassVar

import pytest

import trainwright
from trainwright import plugins
from trainwright.config import load
from trainwright.frameworks.base import Plan
from trainwright.records.journal import evaluations, losses, read
from trainwright.records.listing import all_runs
from trainwright.records.run_dir import RunDir
from trainwright.runs.catalog import Catalog
from trainwright.runs.wiring import load_data
from trainwright.testing.framework_suite import DATA_MODULES, VICTIM, FrameworkSuite
from trainwright.testing.warm import WarmProcesses

# "start-up": of the attempt that finds the decision; "step": before the run is asked to stop.
PHASES = ("start-up", "step", "decision", "evaluation", "write", "commit", "final-evaluation", "end")
ASKED_IN = 17


@pytest.mark.slow
class StopSuite:
    """The run of another suite, stopped in the middle."""

    suite: ClassVar[type[FrameworkSuite]]

    @pytest.fixture(scope="class")
    @classmethod
    def config_file(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """Write the config, with saves at other steps than evaluations."""
        folder = tmp_path_factory.mktemp("stops")
        saving = {"checkpoint": {"every_n_steps": 4, "keep_last": 2}}
        config = load({"experiment": {"seed": 7}, **saving, **cls.suite.config()}, adapters=Catalog())
        (folder / "config.yaml").write_text(config.dump(), encoding="utf-8")
        return folder / "config.yaml"

    @pytest.fixture(scope="class")
    @classmethod
    def processes(cls) -> WarmProcesses:
        """Start the process to fork, which imports the framework."""
        library = plugins.adapter("framework", cls.suite.framework).library.modules
        return WarmProcesses(VICTIM, (*DATA_MODULES, *library))

    @pytest.fixture(scope="class")
    @classmethod
    def stop_step(cls, config_file: Path) -> int:
        """Return the step after which the run stops: the first one from which it can go on."""
        config = load(config_file, adapters=Catalog()).config
        rows = len(load_data(config).splits["train"])
        plan: Plan = plugins.adapter("framework", cls.suite.framework).plan(config, rows)
        step = -(-ASKED_IN // plan.boundary) * plan.boundary
        if step >= plan.total_steps:
            pytest.skip("it is completed before a step from which it could go on")
        return step

    @pytest.fixture(scope="class")
    @classmethod
    def stopped(
        cls,
        config_file: Path,
        stop_step: int,
        processes: WarmProcesses,
        tmp_path_factory: pytest.TempPathFactory,
    ) -> RunDir:
        """Train the run that is stopped, and not killed."""
        run = _victim(processes, "never", config_file, tmp_path_factory.mktemp("stopped"), stop=ASKED_IN)
        assert (run.status(), run.require_result().steps) == ("stopped", stop_step)
        return run

    @pytest.mark.parametrize("phase", PHASES)
    def test_killed_anywhere_it_stops_at_the_same_step(
        self, phase: str, config_file: Path, stopped: RunDir, processes: WarmProcesses, tmp_path: Path
    ) -> None:
        """The decision outlives the process: the next attempt makes it come true without being asked."""
        late = phase == "step"
        first = {"start-up": "decision"}.get(phase, phase)
        run = _victim(processes, first, config_file, tmp_path, stop=None if late else ASKED_IN)
        assert run.status() == "crashed"
        if phase == "start-up":
            _resumed(processes, run, "start-up")
            assert run.status() == "crashed"

        _resumed(processes, run, stop=ASKED_IN if late else None)

        assert run.status() == "stopped"
        assert _outcome(run) == _outcome(stopped)

    def test_it_goes_on_to_the_bits_of_a_run_that_was_never_stopped(
        self, config_file: Path, stopped: RunDir, processes: WarmProcesses, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        """Killed twice while it goes on, it does not stop at the old step again, and can be reproduced."""
        whole = _victim(processes, "never", config_file, tmp_path / "whole")
        run = _victim(processes, "never", config_file, tmp_path / "stopped", stop=ASKED_IN)
        _resumed(processes, run, "start-up")
        _resumed(processes, run, "step")
        assert run.status() == "crashed"

        _resumed(processes, run)

        assert run.status() == "completed"
        kinds = [decision["kind"] for decision in trainwright.Run(run).decisions]
        assert [kind for kind in kinds if kind != "choice"] == ["stop", "resume"]
        now, then = run.require_result(), whole.require_result()
        assert (now.steps, now.digest) == (then.steps, then.digest)
        assert losses(read(run.journal)) == losses(read(whole.journal))
        monkeypatch.chdir(config_file.parent)
        assert trainwright.reproduce(run.path).verdict == "identical"
        assert trainwright.reproduce(stopped.path).verdict == "identical"


def _victim(
    processes: WarmProcesses, phase: str, config: Path, folder: Path, stop: int | None = None
) -> RunDir:
    """Train a run, which is killed in a phase."""
    words = [phase, "9" if phase == "step" else "1", str(config), str(folder), *([str(stop)] if stop else [])]
    done = processes.run(*words, folder=config.parent)
    assert done.returncode == (0 if phase == "never" else -signal.SIGKILL), done.stderr
    (run,) = all_runs(folder)
    return run


def _resumed(processes: WarmProcesses, run: RunDir, phase: str = "never", stop: int | None = None) -> None:
    """Resume a run, which is killed in a phase."""
    words = [phase, "1", "--resume", str(run.path), *([str(stop)] if stop else [])]
    folder = Path(run.require_manifest().working_directory)
    done = processes.run(*words, folder=folder)
    assert done.returncode == (0 if phase == "never" else -signal.SIGKILL), done.stderr


def _outcome(run: RunDir) -> dict[str, Any]:
    """Return all that the inputs and the decision determine."""
    result, records = run.require_result().to_json(), list(read(run.journal))
    same = ("status", "steps", "digest", "metrics", "best", "evaluated")
    outcome = {key: result[key] for key in same}
    return outcome | {"losses": losses(records), "evaluations": evaluations(records)}
