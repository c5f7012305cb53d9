"""Seals: damage to a run's files is named, and what a kill leaves is no damage."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

import trainwright
from small_runs import SMALL, Crash, CrashAt, ImageAt, every_save_on_disk, preempted
from trainwright.errors import CheckpointError, InputError
from trainwright.records.run_dir import RunDir
from trainwright.reports.html import write_report
from trainwright.runs.run import Run
from trainwright.storage.index import summaries
from trainwright.storage.log import Log
from trainwright.storage.seals import GrowingHash, problems
from trainwright.stores.local import LocalStore

Lines = list[bytes]
JOURNAL, ATTEMPT = "journal/0001.jsonl", "attempts/0001.json"


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run as a kill after step 13 leaves it: the checkpoints are those of 5 and 10."""
    folder = tmp_path_factory.mktemp("killed")
    runs, image = folder / "runs", folder / "image"
    with every_save_on_disk():
        trainwright.train(SMALL, runs_dir=runs, callbacks=[ImageAt(13, runs, image)])
    (path,) = image.glob("small/*")
    return path


@pytest.fixture
def cut(killed: Path, tmp_path: Path) -> Run:
    shutil.copytree(killed, tmp_path / "small" / killed.name)
    return Run(tmp_path / "small" / killed.name)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trainwright.train(SMALL, runs_dir=tmp_path_factory.mktemp("whole"))


@pytest.fixture
def run(whole: Run, tmp_path: Path) -> RunDir:
    """A copy of a completed run, whose files are not young any more."""
    copy = RunDir(tmp_path / "small" / whole.id)
    shutil.copytree(whole.path, copy.path)
    return copy


def edit(run: RunDir, name: str, change: Callable[[Lines], Lines]) -> None:
    """Change the lines of a file in place."""
    path = run.path / name
    with open(path, "r+b") as file:
        lines = file.read().splitlines(keepends=True)
        file.seek(0)
        file.truncate()
        file.writelines(change(lines))


def flipped(lines: Lines) -> Lines:
    """Another digit in an evaluation, as JSON as before."""
    at = next(i for i, line in enumerate(lines) if b'"kind":"evaluation"' in line)
    record = json.loads(lines[at])
    record["values"]["val_loss"] = round(record["values"]["val_loss"] + 0.1, 3)
    return [*lines[:at], json.dumps(record, separators=(",", ":")).encode() + b"\n", *lines[at + 1 :]]


def digit(lines: Lines) -> Lines:
    """Another digit somewhere in the middle."""
    text = b"".join(lines)
    at = next(i for i in range(len(text) // 2, len(text)) if text[i : i + 1] in b"123456789")
    return [text[:at] + str((int(text[at : at + 1]) + 1) % 10).encode() + text[at + 1 :]]


CHANGES: dict[str, Callable[[Lines], Lines]] = {
    "flipped": flipped,
    "deleted": lambda lines: [*lines[:5], *lines[6:]],
    "doubled": lambda lines: [*lines[:6], *lines[5:]],
    "swapped": lambda lines: [*lines[:5], lines[6], lines[5], *lines[7:]],
    "truncated": lambda lines: lines[:-3],
    "last doubled": lambda lines: [*lines, lines[-1]],
    "torn": lambda lines: [*lines[:-1], lines[-1][:-4]],
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_journal_is_named_by_everything_that_reads_it(
    change: str, run: RunDir, caplog: pytest.LogCaptureFixture
) -> None:
    assert problems(run) == []
    edit(run, JOURNAL, CHANGES[change])
    (problem,) = problems(run)
    assert problem.startswith(f"{JOURNAL}: ")
    Run(run).history()
    assert f"run {run.id}: {problem}" in caplog.text
    assert problem.partition(": ")[2] in write_report(run.path).read_text()
    caplog.clear()
    trainwright.resume(run.path)
    assert problem in caplog.text


@pytest.mark.parametrize(
    "name",
    [
        ATTEMPT,
        "config.yaml",
        "created.json",
        "manifest.json",
        "data.json",
        "result.json",
        *(f"evaluation/{split}.json" for split in ("val", "test", "data")),
    ],
)
def test_a_changed_or_lost_record_is_named(name: str, run: RunDir) -> None:
    edit(run, name, digit)
    assert problems(run) == [f"{name}: its content is not what was written"]
    (run.path / name).unlink()
    assert problems(run) == [f"{name}: missing, though it was written"]


@pytest.mark.parametrize("name", ["journal/0002.jsonl", "attempts/0002.json"])
def test_a_file_that_the_run_did_not_write_is_named(name: str, run: RunDir) -> None:
    shutil.copy(run.path / name.replace("2", "1"), run.path / name)
    assert f"{name}: the run did not write it" in problems(run)


@pytest.mark.parametrize("kind", ["checkpoints", "best"])
def test_lost_checkpoints_are_named(kind: str, run: RunDir) -> None:
    shutil.rmtree(run.path / kind)
    found = problems(run)
    assert found
    assert all(problem.startswith(f"{kind}/step-0") for problem in found)


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_best_model_that_a_resume_needs_is_named_before_the_end(is_cut: bool, cut: Run) -> None:
    assert problems(RunDir(cut.path)) == []
    (best,) = cut.path.glob("best/step-*")
    if is_cut:
        os.truncate(best / "weights.safetensors", 10)
    else:
        shutil.rmtree(best)
    problem = problems(RunDir(cut.path))[0]
    assert problem.startswith(f"best/{best.name}: ")
    assert (
        "weights.safetensors is 10 bytes long" if is_cut else "missing, though the log names it"
    ) in problem


def test_a_prediction_names_the_best_model_that_is_missing(run: RunDir) -> None:
    (best,) = run.path.glob("best/step-*")
    shutil.rmtree(best)
    with pytest.raises(CheckpointError, match=f"^best model {best.name} is missing, though the run's log"):
        trainwright.load(run.path)


@pytest.mark.parametrize("file", ["weights.safetensors", "state.json"])
def test_files_of_checkpoints_that_are_cut_or_lost_are_named(file: str, run: RunDir) -> None:
    path = max(run.path.glob("checkpoints/*")) / file
    size = path.stat().st_size
    os.truncate(path, size - 1)
    name = path.parent.relative_to(run.path).as_posix()
    assert problems(run) == [f"{name}: {file} is {size - 1} bytes long: {size} bytes were written"]
    path.unlink()
    assert problems(run) == [f"{name}: {file} is missing: {size} bytes were written"]


def test_a_checkpoint_of_another_run_is_never_used(cut: Run, tmp_path: Path) -> None:
    """It is whole, and has the same name, files and shapes."""
    other = tmp_path / "other"
    with every_save_on_disk():
        trainwright.train(
            SMALL,
            {"experiment.seed": 4},
            runs_dir=other / "runs",
            callbacks=[ImageAt(13, other / "runs", other / "image")],
        )
    name = "checkpoints/step-000000010-a0001"
    shutil.rmtree(cut.path / name)
    shutil.copytree(next((other / "image").glob("small/*")) / name, cut.path / name)
    (problem,) = problems(RunDir(cut.path))
    assert problem.startswith(f"{name}/manifest.json: ")
    resumed = trainwright.resume(cut.path)  # from the one before
    assert resumed.digest == trainwright.train(SMALL, runs_dir=tmp_path / "again").digest


def test_the_config_and_manifest_of_another_run_are_never_used(cut: Run, tmp_path: Path) -> None:
    other = trainwright.train(SMALL, {"experiment.seed": 4}, runs_dir=tmp_path / "other")
    for name in ("config.yaml", "manifest.json"):
        shutil.copy(other.path / name, cut.path / name)
    for allow_change in (False, True):
        with pytest.raises(CheckpointError, match=r"made by another config .* put manifest.json"):
            trainwright.resume(cut.path, allow_change=allow_change)


def test_a_config_that_was_edited_is_known_after_a_kill(killed: Path, whole: Run, tmp_path: Path) -> None:
    """The manifest has the edited one from the start of an attempt on, the checkpoints from its first save."""
    folder = tmp_path / "runs" / "small" / killed.name
    shutil.copytree(killed, folder)
    for number, step in ((1, 11), (2, 12)):
        with (folder / "config.yaml").open("a") as config:
            config.write(f"# edit {number}\n")
        image = tmp_path / f"image{number}"
        trainwright.resume(folder, callbacks=[ImageAt(step, folder.parents[1], image)])
        shutil.rmtree(folder)
        shutil.copytree(next(image.glob("small/*")), folder)
    assert trainwright.resume(folder).digest == whole.digest


def test_a_best_model_in_the_place_of_another_is_never_used(tmp_path: Path) -> None:
    changes = {"checkpoint.save_top_k": 3, "evaluation.every_n_steps": 5}
    made = trainwright.train(SMALL, changes, runs_dir=tmp_path)
    best, other = sorted(
        (made.path / "best").iterdir(),
        key=lambda one: one.name != f"step-{made.result['best']['step']:09d}-a0001",
    )[:2]
    shutil.rmtree(best)
    shutil.copytree(other, best)
    (problem,) = problems(RunDir(made.path))
    assert problem.startswith(f"best/{best.name}/manifest.json: ")
    with pytest.raises(CheckpointError, match="not the one that the run wrote"):
        trainwright.load(made.path)


def test_a_run_without_the_end_of_its_log_is_not_completed(run: RunDir) -> None:
    """Nothing seals its result: as after a kill between the two, the end is made again."""
    result = run.require_result()
    max(run.path.glob("log/*")).unlink()
    with open(run.path / JOURNAL, "ab") as journal:
        journal.write(b'{"kind":"evaluation","step":12,"values":{"val_loss":0.1}}\n')
    assert run.status() == "crashed"
    with pytest.raises(InputError, match="crashed"):
        trainwright.reproduce(run.path)
    trainwright.resume(run.path)
    assert (run.status(), problems(run)) == ("completed", [])
    again = run.require_result()
    assert (again.digest, again.metrics, again.best) == (result.digest, result.metrics, result.best)


def test_the_report_that_a_run_writes_at_its_end_names_its_status(whole: Run) -> None:
    """The log does not say so yet."""
    page = (whole.path / "report.html").read_text()
    assert "completed" in page
    assert "running" not in page
    assert "crashed" not in page


def test_an_attempt_that_dies_before_its_manifest_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trainwright.create(SMALL, runs_dir=tmp_path)

    def die(*_: object) -> None:
        raise Crash

    monkeypatch.setattr("trainwright.runs.startup.Startup._record_or_compare", die)
    monkeypatch.setattr("trainwright.runs.session.Session.close", lambda *_: None)
    with pytest.raises(Crash):
        trainwright.resume(run.path)
    assert RunDir(run.path).status() == "crashed"
    assert problems(RunDir(run.path)) == []
    assert "manifest.json" not in write_report(run.path).read_text()


def test_the_list_names_damage_with_and_without_its_index(
    run: RunDir, caplog: pytest.LogCaptureFixture
) -> None:
    """The index watches the journal and the attempts, which change without a change of their folders."""
    runs_dir = run.path.parent.parent
    for path in run.path.rglob("*"):
        os.utime(path, (1e9, 1e9))
    assert "problems" not in summaries(runs_dir)[0]
    edit(run, JOURNAL, CHANGES["swapped"])
    expected = [f"{JOURNAL}: its content is not what was written"]
    os.utime(run.path / JOURNAL, (1.1e9, 1.1e9))
    for _ in range(2):  # the second comes from the index
        caplog.clear()
        (summary,) = summaries(runs_dir)
        assert (summary["problems"], summary["status"]) == (expected, "completed")
        assert f"run {run.id}: {expected[0]}" in caplog.text


@pytest.mark.parametrize("change", ["flipped", "deleted", "doubled", "truncated"])
def test_a_resume_names_a_changed_journal_and_so_does_what_follows(
    change: str, cut: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """Up to the last commit, that is: later lines belong to none, and a kill may have torn them."""
    directory = RunDir(cut.path)
    head = Log(LocalStore(cut.path)).head()
    assert head is not None
    path = cut.path / JOURNAL
    content = path.read_bytes()
    sealed = head.files[JOURNAL].bytes
    assert 0 < sealed < len(content)
    assert problems(directory) == []
    lines = CHANGES[change](content[:sealed].splitlines(keepends=True))
    path.write_bytes(b"".join(lines if change == "truncated" else [*lines, content[sealed:]]))
    (problem,) = problems(directory)
    resumed = trainwright.resume(cut)
    assert f"run {cut.id}: {problem}" in caplog.text
    assert resumed.status == "completed"
    assert problems(directory) == [problem], "the next attempt must not take damage for what was written"


def test_the_lines_that_a_kill_leaves_are_sealed_by_the_next_attempt(cut: Run) -> None:
    path = cut.path / JOURNAL
    with open(path, "ab") as file:
        file.write(b'{"kind":"los')  # torn
    size = len(path.read_bytes()) - len(b'{"kind":"los')
    assert problems(RunDir(cut.path)) == []
    trainwright.resume(cut)
    head = Log(LocalStore(cut.path)).head()
    assert head is not None
    assert head.files[JOURNAL].bytes == size
    assert problems(RunDir(cut.path)) == []
    edit(RunDir(cut.path), JOURNAL, lambda lines: [*lines[:-2], lines[-1]])
    assert [problem.partition(":")[0] for problem in problems(RunDir(cut.path))] == [JOURNAL]


def test_a_commit_hashes_only_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a journal of millions of lines, a commit reads no more than was written since the one before."""
    extend, read = GrowingHash.extend, list[int]()

    def counted(growing: GrowingHash, file: BinaryIO) -> None:
        read.append(os.fstat(file.fileno()).st_size - growing.sealed.bytes)
        extend(growing, file)

    monkeypatch.setattr(GrowingHash, "extend", counted)
    with every_save_on_disk():
        run = trainwright.train(SMALL, runs_dir=tmp_path)
    assert len(read) >= 6, "there are six commits, and an end"
    assert sum(read) == (run.path / JOURNAL).stat().st_size


def test_a_copy_at_any_moment_is_undamaged(tmp_path: Path) -> None:
    """As a power cut leaves it."""
    runs, steps = tmp_path / "runs", (1, 5, 6, 14, 29)
    images = [ImageAt(step, runs, tmp_path / f"image{step}") for step in steps]
    with every_save_on_disk():
        trainwright.train(SMALL, runs_dir=runs, callbacks=images)
    copies = list(tmp_path.glob("image*/small/*"))
    assert len(copies) == len(steps)
    assert [problems(RunDir(copy)) for copy in copies] == [[]] * len(steps)


def test_further_attempts_and_what_comes_after_the_end_are_no_damage(tmp_path: Path) -> None:
    run = preempted(tmp_path, at=8)
    directory = RunDir(run.path)
    assert problems(directory) == []
    with pytest.raises(Crash):
        trainwright.resume(run, callbacks=[CrashAt(12)])
    assert problems(directory) == []
    trainwright.resume(run)
    assert problems(directory) == []
    trainwright.explain(run)
    trainwright.report(run)
    assert problems(directory) == []
