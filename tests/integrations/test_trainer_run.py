"""What the callbacks of all trainers share."""

import json
import random
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import trainwright
from trainwright.config import load
from trainwright.errors import InputError
from trainwright.integrations.checkpoints import Checkpoint, TrainerCheckpoints
from trainwright.integrations.description import Description, to_json_value, trackers
from trainwright.integrations.fingerprints import data_inputs, weights_digest
from trainwright.integrations.foreign import refuse_foreign_run
from trainwright.records.manifest import Manifest
from trainwright.records.result import AttemptRecord, Result
from trainwright.records.run_dir import RunDir
from trainwright.require import class_name
from trainwright.types import Determinism


class Color(Enum):
    RED = "red"


class Local:
    pass


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (1.5, 1.5),
        (float("inf"), "Infinity"),
        (Color.RED, "red"),
        (Path("/a/b"), "/a/b"),
        (np.float32(0.5), 0.5),
        (torch.tensor(3), 3),
        (torch.bfloat16, "torch.bfloat16"),
        ({1: (2, None)}, {"1": [2, None]}),
        ({"b", "a"}, ["a", "b"]),
        ({"": "\udcff"}, {"_": "?"}),
        (Local(), f"{__name__}:Local"),
        (Local, f"{__name__}:Local"),
        (len, "len"),
        (SimpleNamespace(to_dict=lambda: {"hub_token": "sesame"}), {"hub_token": "***"}),
        ({"uri": "https://me:sesame@host/x", "n": 3}, {"uri": "https://***@host/x", "n": 3}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_plain_value_becomes_one(value: Any, kept: Any) -> None:
    assert to_json_value(value) == kept
    json.dumps(to_json_value(value), allow_nan=False)


def test_a_long_list_is_named_by_its_hash() -> None:
    assert to_json_value(list(range(1000))).startswith("1000 values, sha256 ")
    assert to_json_value(list(range(1000))) != to_json_value(list(range(1, 1001)))


def test_a_class_within_a_function_has_a_name_that_configs_take() -> None:
    class Inner:
        pass

    assert class_name(Inner) == f"{__name__}:Inner"


def description(**arguments: Any) -> Description:
    return Description(
        trainer="transformers",
        model=torch.nn.Linear(2, 2),
        arguments=to_json_value(arguments),
        options={},
        record=frozenset({"output_dir"}),
        identity={},
        seed=None,
        determinism=Determinism("order", ""),
        data={},
        checkpoints=(),
        libraries={},
    )


def test_the_config_can_be_read_whatever_the_arguments_are(tmp_path: Path) -> None:
    hard = {
        "template": "${data.path}",
        "a.b": 1,
        "nan": float("nan"),
        "text": 'a: "b"\n- c',
        "no": None,
        "<<": [{"x": []}],
    }
    tracking, templates = trackers(["tensorboard"])
    (tmp_path / "config.yaml").write_text(description(**hard).config("bert", tracking, templates))
    config = load(tmp_path / "config.yaml").config
    found = config.model.params["arguments"]
    assert found["template"] == "$ {data.path}"
    assert {**found, "template": ""} == {**hard, "template": "", "nan": "NaN"}
    assert [item.type for item in config.tracking] == ["tensorboard"]


def test_commands_that_would_compute_it_say_whose_run_it_is(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "bert", "")
    refuse_foreign_run(run, "resume")
    manifest = {"trainer": {"name": "transformers"}, "command": ["train.py", "--lr", "1"]}
    run.write("manifest.json", Manifest(run_id=run.id, experiment="e", **manifest))
    TrainerCheckpoints(run.path).commit(saved(tmp_path, 3))
    with pytest.raises(InputError, match=r"cannot resume it.*python train.py --lr 1.*checkpoint-3$"):
        refuse_foreign_run(run, "resume")
    run.write_attempt(AttemptRecord(attempt=1, status="completed"))
    run.write(Result.FILE, Result(status="completed", run_id=run.id, attempts=1))
    with pytest.raises(InputError, match=r"cannot reproduce it; it is completed; its newest checkpoint"):
        refuse_foreign_run(run, "reproduce")
    assert trainwright.resume(run.path).status == "completed"
    verbs: dict[str, Callable[[], object]] = {
        "load": lambda: trainwright.load(run.path),
        "predict": lambda: trainwright.predict(run.path, "rows.csv"),
        "evaluate": lambda: trainwright.evaluate(run.path),
        "explain": lambda: trainwright.explain(run.path),
        "export": lambda: trainwright.export(run.path, tmp_path / "model"),
    }
    for verb, call in verbs.items():
        with pytest.raises(InputError, match=f"cannot {verb} it"):
            call()


def test_what_only_the_record_depends_on_changes_no_computation() -> None:
    first, second = (
        description(lr=1, output_dir="a").computation(),
        description(lr=1, output_dir="b").computation(),
    )
    assert first == second != description(lr=2, output_dir="a").computation()


def test_secrets_of_trackers_stay_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERE", "/sesame")
    tracking, templates = trackers([{"type": "tensorboard", "log_dir": "${env:WHERE}/tb"}])
    text = description().config("bert", tracking, templates)
    assert "${env:WHERE}/tb" in text
    assert "sesame" not in text


class Drawn:
    """Items that are drawn at random, each time."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> Any:
        return {"x": torch.randn(3), "y": np.random.random(), "z": [random.random(), "text", b"bytes", None]}


class Stream:
    def __iter__(self) -> Any:
        raise AssertionError("a stream is not to be read")


class Broken:
    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        raise OSError("not downloaded yet")


def split(*datasets: Any, sample: int = 16) -> dict[str, Any]:
    return data_inputs({"train": datasets}, sample).splits["train"].to_json()


def test_data_are_identified_by_a_sample() -> None:
    same, other = torch.arange(400).reshape(100, 4), torch.arange(1, 401).reshape(100, 4)
    assert split(list(same)) == split(list(same.clone()))
    assert split(list(same))["sha256"] != split(list(other))["sha256"]
    assert split(list(same))["rows"] == 100
    assert split(list(same), list(other))["rows"] == 200
    assert split(list(same), sample=0)["sha256"] == split(list(other), sample=0)["sha256"]
    assert data_inputs({"train": [list(same)]}, 4).content_hashed is False


def test_random_items_have_one_fingerprint_and_cost_no_randomness() -> None:
    states = random.getstate(), torch.get_rng_state(), np.random.get_state()[1].tolist()  # type: ignore[index,union-attr]
    assert split(Drawn()) == split(Drawn())
    assert random.getstate() == states[0]
    assert torch.equal(torch.get_rng_state(), states[1])
    assert np.random.get_state()[1].tolist() == states[2]  # type: ignore[index,union-attr]


def test_what_cannot_be_read_is_said() -> None:
    assert split(Stream())["by"] == "its type (it is a stream)"
    assert split(Broken())["by"] == "its number of rows"
    assert split(SimpleNamespace(_fingerprint="abc"))["by"] == "its own fingerprint"
    assert data_inputs({"train": [Broken()]}, 4).warnings == [
        "the train split is identified by its number of rows only"
    ]


def test_weights_have_the_digest_of_a_model_of_ours() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 2)
    digest = weights_digest(model)
    with torch.no_grad():
        model.weight[0, 0] += 1
    assert digest != weights_digest(model)
    with torch.device("meta"):
        assert weights_digest(torch.nn.Linear(2, 2)) is None


def saved(folder: Path, step: int, **known: Any) -> Checkpoint:
    path = folder / "out" / f"checkpoint-{step}"
    (path / "inner").mkdir(parents=True)
    (path / "weights.bin").write_bytes(bytes(range(256)) * step)
    (path / "inner" / "empty").touch()
    return Checkpoint(path, step, 1, 1.0, 2.0, **{"resumable": True, **known})


def test_the_newest_whole_checkpoint_is_found(tmp_path: Path) -> None:
    checkpoints = TrainerCheckpoints(tmp_path)
    for step in (1, 2, 3, 4, 5):
        checkpoints.commit(saved(tmp_path, step, resumable=step != 5))
    newest, complaints = checkpoints.newest()
    assert (newest and newest.step, complaints) == (4, [])
    assert newest is not None
    assert [file.name for file in newest.files] == ["inner/empty", "weights.bin"]
    (tmp_path / "out/checkpoint-4/inner/empty").unlink()
    (tmp_path / "out/checkpoint-3").rename(tmp_path / "out/moved")
    (manifest,) = tmp_path.glob("checkpoints/checkpoint-2-*/manifest.json")
    manifest.write_text(manifest.read_text().replace('"step": 2', '"step": 9'))
    newest, complaints = checkpoints.newest()
    assert newest is not None
    assert newest.step == 1
    assert len(complaints) == 2
    assert "checkpoint-2-" in complaints[0]
    assert complaints[1].endswith("checkpoint-4 is damaged: inner/empty: No such file or directory")


def test_a_checkpoint_written_anew_is_known_anew(tmp_path: Path) -> None:
    checkpoints = TrainerCheckpoints(tmp_path)
    first = saved(tmp_path, 1)
    checkpoints.commit(first)
    (first.path / "weights.bin").write_bytes(b"other")
    assert checkpoints.newest()[0] is None
    checkpoints.commit(first)
    newest, _ = checkpoints.newest()
    assert newest is not None
    assert newest.files[1].bytes == 5


def test_what_was_deleted_meanwhile_is_no_failure(tmp_path: Path) -> None:
    gone = Checkpoint(tmp_path / "out/checkpoint-7", 7, 1, 1.0, 2.0, resumable=True)
    checkpoints = TrainerCheckpoints(tmp_path)
    checkpoints.commit(gone)
    assert checkpoints.newest() == (None, [])


def test_what_was_never_finished_is_named(tmp_path: Path) -> None:
    checkpoints = TrainerCheckpoints(tmp_path)
    checkpoints.commit(saved(tmp_path, 1))
    saved(tmp_path, 2)
    places = [(str(tmp_path / "out"), "checkpoint-*")]
    (complaint,) = checkpoints.unfinished(places, since=0)
    assert "checkpoint-2 is skipped" in complaint
    assert checkpoints.unfinished(places, since=2**40) == []
