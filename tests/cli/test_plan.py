import json
from pathlib import Path

from commandline import Command


def write(path: Path, **sections: object) -> Path:
    model = {"type": "gpt", "hidden_size": 32, "num_layers": 4, "num_heads": 2}
    (path / "text.txt").write_text("some words in a line\n" * 400)
    config = {
        "data": {"type": "text", "path": str(path / "text.txt"), "length": 16},
        "model": model,
        "training": {"max_steps": 1, "batch_size": 8, "device": "cpu"},
        **sections,
    }
    (path / "config.yaml").write_text(json.dumps(config))
    return path / "config.yaml"


def test_plan_of_a_mesh_and_three_others(command: Command, tmp_path: Path) -> None:
    config = write(tmp_path)
    found = command("plan", config, "--gpus", 4, "--memory", "1GB", "--json").json
    assert found["meshes"][0]["distributed"] == {
        "nproc": 4,
        "strategy": "ddp",
        "virtual": {"data": 4, "tensor": 1, "pipeline": 1},
    }
    assert found["assumed"]["memory"] == 1e9
    meshes = [one["mesh"] for one in found["meshes"]]
    assert len(meshes) == 4
    assert all(meshes.count(one) == 1 for one in meshes)
    for one in found["meshes"]:
        size = one["mesh"]
        assert size["data"] * size["shard"] * size["tensor"] * size["pipeline"] == 4
        assert one["memory_bytes"]["total"] == sum(one["memory_bytes"].values()) / 2
        assert one["fits"]
        assert not one["has_other_bits"]
        stages, axis = size["pipeline"], one["distributed"]["virtual"]
        microbatches = axis["data"] // (size["data"] * size["shard"])
        assert one["bubble"] == (stages - 1) / (microbatches + stages - 1)
    times = [one["seconds"] for one in found["meshes"][1:]]
    assert times == sorted(times)


def test_the_bytes_that_processes_send(command: Command, tmp_path: Path) -> None:
    """What leaves a process of a ring: two times all but its own share of the gradients."""
    found = command("plan", write(tmp_path), "--gpus", 4, "--json").json
    assert found["meshes"][0]["sent_bytes"] == {"data": 2 * 3 / 4 * 4 * found["parameters"]}


def test_plan_in_words(command: Command, tmp_path: Path) -> None:
    config = write(tmp_path, distributed={"virtual": {"data": 1}})
    done = command("plan", config, "--memory", "1KB")
    assert done.code == 0, done.err
    assert "fits" in done.out
    assert " parameters, 1 process, " in done.out
    assert "config: distributed: {nproc: 1, strategy: ddp, virtual: {data: 1" in done.out


def test_a_mesh_with_other_bits_is_named(command: Command, tmp_path: Path) -> None:
    config = write(tmp_path, distributed={"nproc": 2, "tensor": 2, "virtual": {"data": 1, "tensor": 2}})
    done = command("plan", config)
    assert "this needs another virtual mesh than the config's, and so gives other bits" in done.out
    found = command("plan", config, "--json").json
    assert [one["has_other_bits"] for one in found["meshes"]] == [
        one["distributed"]["virtual"] != {"data": 1, "tensor": 2, "pipeline": 1} for one in found["meshes"]
    ]


def test_a_framework_of_one_process(command: Command, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("data: {type: iris}\nmodel: {type: random_forest}\n")
    done = command("plan", tmp_path / "config.yaml")
    assert done.code == 2
    assert "trains in one process" in done.err


def test_the_schedule_says_how_long_processes_wait(command: Command, tmp_path: Path) -> None:
    """Two stages of 1F1B wait for a forward and a backward pass (3 units), of zero bubble for a third."""
    mesh = {"nproc": 2, "pipeline": 2, "virtual": {"data": 1, "pipeline": 2}}
    config = write(tmp_path, distributed=mesh)
    few = ["training.microbatch_size=2", "--json"]  # 4 microbatches
    found = {}
    for schedule in ("1f1b", "zero_bubble"):
        own = command("plan", config, f"distributed.schedule={schedule}", *few).json["meshes"][0]
        found[schedule] = own["bubble"]
        if schedule == "zero_bubble":
            held = own["memory_bytes"]["activations"]
    assert found == {"1f1b": 3 / 15, "zero_bubble": 1 / 13}
    checkpointing = ["distributed.schedule=zero_bubble", "training.activation_checkpointing=[blocks.*]"]
    own = command("plan", config, *checkpointing, *few).json["meshes"][0]
    assert own["bubble"] == 3 / 15
    assert own["memory_bytes"]["activations"] < held


def test_a_number_that_does_not_divide_the_virtual_mesh(command: Command, tmp_path: Path) -> None:
    """The config's mesh is kept where a larger virtual mesh makes it possible."""
    config = write(tmp_path, distributed={"strategy": "fsdp", "virtual": {"data": 4}})
    found = command("plan", config, "--gpus", 8, "--json").json
    refusal, proposal = found["changes"]
    assert "8 does not divide the 4 virtual ranks of the batch; allowed: 1, 2, 4" in refusal
    assert proposal == "with 8 processes, distributed.virtual.data: 8 (not 4) would be possible"
    assert found["meshes"][0]["mesh"] == {"pipeline": 1, "data": 1, "shard": 8, "tensor": 1}
    assert found["meshes"][0]["has_other_bits"]
    shown = command("plan", config, "--gpus", 8).out
    assert refusal in shown
    assert "proposed: distributed: {nproc: 8, strategy: fsdp, virtual: {data: 8" in shown


def test_a_number_that_needs_another_mesh(command: Command, tmp_path: Path) -> None:
    """Six processes are three stages of two, or six stages: their number alone need be no power of two."""
    found = command("plan", write(tmp_path), "--gpus", 6, "--json").json
    assert "allowed: 1, 2, 4" in found["changes"][0]
    assert found["meshes"][0]["mesh"]["pipeline"] == 3
    assert "distributed.pipeline: 3 (not 1)" in found["changes"][1]
    assert not any(one["has_other_bits"] for one in found["meshes"])  # the config says nothing of bits


def test_a_number_for_which_no_mesh_is_possible(command: Command, tmp_path: Path) -> None:
    done = command("plan", write(tmp_path), "--gpus", 7)
    assert done.code == 2
    assert "no mesh of 7 processes is possible" in done.err
    assert "allowed: 1, 2, 4" in done.err


def test_a_memory_without_a_unit_is_refused_with_what_to_write(command: Command, tmp_path: Path) -> None:
    refused = command("plan", write(tmp_path), "--memory", "80")
    assert refused.code == 2
    assert "'80' is not a size; write, for example, 80GB or 80MiB" in refused.err
    assert "write, for example, 5GB or 500MiB" in command("plan", write(tmp_path), "--memory", "0").err
