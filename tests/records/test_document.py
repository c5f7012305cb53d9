"""Records in files: what is damaged is told, and what is whole comes back."""

import json
import math
import random
from pathlib import Path

import pytest

from trainwright.errors import CheckpointError, OtherFormatError
from trainwright.records.document import FORMAT, dump, parse_json
from trainwright.records.lineage import Lineage
from trainwright.records.manifest import Difference, Manifest
from trainwright.records.result import AttemptRecord, BestModel, Result

RESULT = Result(
    status="completed",
    run_id="r",
    experiment="e",
    steps=30,
    epochs=3.75,
    metrics={"val_loss": 0.1, "test_f1": math.nan, "test_r2": -math.inf},
    best=BestModel(step=7, metric="val_loss", value=0.1, digest="d"),
    attempts=2,
)


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    RESULT.save(tmp_path / "result.json")
    loaded = Result.load(tmp_path / "result.json")
    assert loaded is not None
    assert repr(loaded) == repr(RESULT)  # as text, a NaN equals a NaN
    assert json.loads((tmp_path / "result.json").read_text())["metrics"]["test_f1"] == "NaN"


def test_a_record_that_is_not_there_is_none(tmp_path: Path) -> None:
    assert Result.load(tmp_path / "result.json") is None


@pytest.mark.parametrize("name", ["../../other", "/tmp/other", "..", "", "a\0b"])
def test_no_record_names_what_is_elsewhere(name: str, tmp_path: Path) -> None:
    """A record may come from someone else: what it names is read, and copied into exports."""
    manifest = Manifest(run_id="r", experiment="e").to_json()
    for field in ({"data_file": name}, {"parent": {"run_id": name, "relation": "reproduce"}}):
        (tmp_path / "manifest.json").write_bytes(dump({**manifest, **field}))
        with pytest.raises(CheckpointError, match="is damaged"):
            Manifest.load(tmp_path / "manifest.json")
    (tmp_path / "parent.json").write_bytes(dump({"format": 2, "run_id": name, "relation": "fork"}))
    with pytest.raises(CheckpointError, match="is damaged"):
        Lineage.load(tmp_path / "parent.json")


def test_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    """Or changes nothing, as it may in the white space."""
    path = tmp_path / "result.json"
    RESULT.save(path)
    content, draw = path.read_bytes(), random.Random(0)
    for _ in range(300):
        damaged = bytearray(content)
        position = draw.randrange(len(damaged))
        damaged[position] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        try:
            loaded = Result.load(path)
        except CheckpointError:
            continue
        assert repr(loaded) == repr(RESULT), bytes(damaged[max(0, position - 20) : position + 20])


@pytest.mark.parametrize(
    "content",
    [
        "",
        "null",
        "[]",
        "{",
        '{"status": 3}',
        '{"format": 99, "status": "completed"}',
        '{"format": "x"}',
        "[" * 10**5,
    ],
)
def test_whatever_else_stands_there_is_an_error_of_ours(content: str, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"result\.json is damaged: ") as raised:
        Result.load(tmp_path / "result.json")
    assert len(str(raised.value).splitlines()) == 1


def _anything(draw: random.Random, depth: int) -> object:
    """Return what JSON can hold, with texts that look like its punctuation and keys that are not texts."""
    keys = ["a", "b!", 'b"', "\uffff", "\U0001f600", "c, d", 9, 10, True, None, 1.5]
    makes = [
        lambda: draw.choice(
            [1, -(2**70), True, None, 0.1, 1e-300, -0.0, "x: y, z", "\n", 'q"', "\U0001f600"]
        ),
        lambda: draw.choice([[], {}, (), [[]], [{}]]),
        lambda: [draw.random() for _ in range(draw.randrange(5))],
        lambda: [_anything(draw, depth - 1) for _ in range(draw.randrange(4))],
        lambda: {draw.choice(keys): _anything(draw, depth - 1) for _ in range(draw.randrange(5))},
    ]
    return draw.choice(makes[: 5 if depth else 3])()


def test_what_is_written_is_what_the_standard_library_encodes() -> None:
    draw = random.Random(0)
    for _ in range(2000):
        data = {"first": _anything(draw, 4), "second": _anything(draw, 4)}
        content = dump(data)
        assert parse_json(content) == json.loads(json.dumps(data))
        lines = json.dumps(json.loads(json.dumps(data)), indent=1).splitlines()
        own = [line for line in lines if line.startswith(' "')]  # the keys of the object itself
        assert [line.partition(":")[0] for line in own] == [
            line.partition(":")[0] for line in content.decode().splitlines() if line.startswith(' "')
        ][:-1]
    assert parse_json(dump({})) == {}
    with pytest.raises(ValueError, match="not JSON compliant"):
        dump({"loss": [0.0, math.nan]})


def test_what_this_version_does_not_know_is_kept(tmp_path: Path) -> None:
    (tmp_path / "0001.json").write_bytes(dump({"format": FORMAT, "attempt": 1, "unknown": 1}))
    record = AttemptRecord.load(tmp_path / "0001.json")
    assert record is not None
    assert record.to_json()["unknown"] == 1


@pytest.mark.parametrize("version", [1, 99, "x", None])
def test_another_format_is_refused_in_one_line(version: object, tmp_path: Path) -> None:
    (tmp_path / "0001.json").write_bytes(dump({"attempt": 1, "format": version}))
    reason = rf"0001.json was written by another version .*\(format {version}; this one reads {FORMAT}\)"
    with pytest.raises(OtherFormatError, match=reason):
        AttemptRecord.load(tmp_path / "0001.json")


def test_a_record_without_its_checksum_is_refused(tmp_path: Path) -> None:
    (tmp_path / "0001.json").write_text(json.dumps({"format": FORMAT, "attempt": 1}))
    with pytest.raises(CheckpointError, match="its content is not what was written"):
        AttemptRecord.load(tmp_path / "0001.json")


def test_a_link_or_a_pipe_in_place_of_a_record_is_not_read(tmp_path: Path) -> None:
    import os

    RESULT.save(tmp_path / "elsewhere.json")
    (tmp_path / "link.json").symlink_to(tmp_path / "elsewhere.json")
    os.mkfifo(tmp_path / "pipe.json")
    for name, reason in (("link", "symbolic link"), ("pipe", "not a regular file")):
        with pytest.raises(CheckpointError, match=reason):
            Result.load(tmp_path / f"{name}.json")


def test_the_sources_of_trainwright_are_a_record_and_its_semantics_are_compared() -> None:
    def manifest(sources: str, semantics: dict[str, int]) -> Manifest:
        return Manifest.model_validate(
            {
                "run_id": "r",
                "experiment": "e",
                "semantics": semantics,
                "code": {"hash": sources, "trainwright": sources, "trainwright_sha256": sources},
            }
        )

    assert manifest("a", {"order": 1}).differences(manifest("b", {"order": 1})) == []
    assert manifest("a", {"order": 1}).differences(manifest("a", {"order": 2})) == [
        Difference("code", "semantics of order", 1, 2)
    ]
