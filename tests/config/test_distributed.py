"""How many processes a config asks for, and in which spellings."""

from pathlib import Path
from typing import Any

import pytest

from trainwright.config import load
from trainwright.errors import ConfigError
from trainwright.runs.catalog import Catalog

GOOD: dict[str, Any] = {"data": "digits", "model": "mlp"}


def loaded(**distributed: Any) -> Any:
    return load({**GOOD, "distributed": distributed})


@pytest.mark.parametrize("spelling", ["dp", "DP", "DataParallel", "data_parallel", "torch.nn.DataParallel"])
def test_data_parallel_is_trained_as_ddp_with_advice(spelling: str) -> None:
    resolved = loaded(strategy=spelling)
    assert resolved.config.distributed.strategy == "ddp"
    (note,) = resolved.notes
    assert f"distributed.strategy: {spelling} is read as ddp" in note
    assert "distributed.nproc" in note


@pytest.mark.parametrize(
    "spelling",
    ["ddp", "DDP", "DistributedDataParallel", "ddp_spawn", "ddp_find_unused_parameters_true", "MULTI_GPU"],
)
def test_other_spellings_of_ddp(spelling: str) -> None:
    resolved = loaded(strategy=spelling)
    assert resolved.config.distributed.strategy == "ddp"
    assert len(resolved.notes) == (spelling != "ddp")


@pytest.mark.parametrize(
    ("spelling", "ours"),
    [("FSDP2", "fsdp"), ("fully_shard", "fsdp"), ("FULL_SHARD", "fsdp"), ("HYBRID_SHARD", "hsdp")],
)
def test_spellings_of_sharding(spelling: str, ours: str) -> None:
    resolved = loaded(strategy=spelling)
    assert resolved.config.distributed.strategy == ours
    assert f"{spelling} is read as {ours}" in resolved.notes[0]


@pytest.mark.parametrize(
    ("spelling", "ours"),
    [
        ("1F1B", "1f1b"),
        ("ScheduleGPipe", "gpipe"),
        ("Interleaved1F1B", "interleaved"),
        ("interleaved_1f1b", "interleaved"),
        ("InterleavedZeroBubble", "zero_bubble"),
    ],
)
def test_schedules_as_torch_calls_them(spelling: str, ours: str) -> None:
    resolved = loaded(nproc=2, pipeline=2, virtual={"pipeline": 4}, pipeline_parallel_schedule=spelling)
    assert resolved.config.distributed.schedule == ours
    assert any(f"distributed.schedule: {spelling} is read as {ours}" in note for note in resolved.notes)


def test_one_pattern_of_modules_stands_for_a_list() -> None:
    distributed = loaded(
        nproc=2,
        strategy="fsdp",
        wrap="layers.*",
        virtual={"tensor": 2},
        plan={"colwise": "q", "rowwise": "o"},
    ).config.distributed
    assert distributed.wrap == ["layers.*"]
    assert distributed.plan is not None
    assert (distributed.plan.colwise, distributed.plan.rowwise) == (["q"], ["o"])


@pytest.mark.parametrize(
    ("key", "advice"),
    [
        ("tensor_model_parallel_size", "write distributed.tensor: PROCESSES"),
        ("tensor_parallel_degree", "write distributed.tensor: PROCESSES"),
        ("pipeline_parallel_degree", "write distributed.pipeline: STAGES"),
        ("pipeline_model_parallel_size", "write distributed.pipeline: STAGES"),
        ("data_parallel_shard_degree", "hsdp, in which groups of distributed.shard"),
        ("sharding_strategy", "write distributed.strategy: fsdp"),
        ("dp", "divide the batch"),
        ("data", "divide the batch"),
        ("virtual_ranks", "write distributed.virtual: {data: NUMBER}"),
        ("tp_plan", "write distributed.plan: "),
        ("sequence_parallel", "distributed.plan.sequence"),
        ("context_parallel_degree", "there are no such axes"),
        ("expert_model_parallel_size", "there are no such axes"),
        ("num_microbatches", "write training.microbatch_size"),
        ("mixed_precision", "write training.precision"),
    ],
)
def test_keys_of_megatron_and_torchtitan_say_what_to_write(key: str, advice: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(**{key: 2})
    (problem,) = caught.value.problems
    assert (problem.path, advice in problem.message) == (f"distributed.{key}", True), problem.message


def test_the_names_of_accelerate() -> None:
    distributed = loaded(
        strategy="fsdp", fsdp_min_num_params=1000, fsdp_reshard_after_forward=False
    ).config.distributed
    assert (distributed.min_num_params, distributed.reshard_after_forward) == (1000, False)


@pytest.mark.parametrize("strategy", ["deepspeed_stage_2", "tensor_parallel", "pp"])
def test_other_ways_to_split_a_model_are_named(strategy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load({**GOOD, "distributed": {"strategy": strategy}}, adapters=Catalog())
    (problem,) = caught.value.problems
    assert problem.path == "distributed.strategy"
    assert "write fsdp" in problem.message
    assert "distributed.tensor or distributed.pipeline" in problem.message


def test_a_strategy_of_a_model_of_one_process_has_no_effect() -> None:
    text = {"data": "wine", "model": "lightgbm", "distributed": {"strategy": "ddp"}}
    (line,) = load(text, adapters=Catalog()).unused
    assert "distributed.strategy has no effect on lightgbm (lightgbm), which is trained in one" in line
    assert not load({**GOOD, "distributed": {"strategy": "ddp"}}, adapters=Catalog()).unused


def test_a_file_that_writes_down_the_default_strategy_is_not_warned_of(tmp_path: Path) -> None:
    file = tmp_path / "best.yaml"
    file.write_text(load({"data": "wine", "model": "lightgbm"}, adapters=Catalog()).dump())
    assert not load(file, adapters=Catalog()).unused


def test_an_unknown_strategy_is_named_with_those_there_are() -> None:
    with pytest.raises(
        ConfigError, match="unknown strategy 'dpp'; known: auto, ddp, fsdp, hsdp; did you mean 'ddp'"
    ):
        load({**GOOD, "distributed": {"strategy": "dpp"}}, adapters=Catalog())


@pytest.mark.parametrize(
    ("nproc", "ranks", "resolved", "first"),
    [("1..4", "auto", 4, 4), ("1..6", "auto", 4, 4), ("2..8", 4, 4, 4), ("3..8", 8, 8, 8), ("1..4", 8, 8, 4)],
)
def test_a_range_begins_with_the_largest_divisor(
    nproc: str, ranks: str | int, resolved: int, first: int
) -> None:
    distributed = loaded(nproc=nproc, virtual={"data": ranks}).config.distributed
    assert (distributed.virtual.data, distributed.processes()) == (resolved, first)


def test_a_range_goes_down_to_its_least_divisor() -> None:
    assert [loaded(nproc="1..4").config.distributed.processes(left) for left in range(5)] == [1, 1, 2, 2, 4]
    assert [loaded(nproc="3..8").config.distributed.processes(left) for left in (8, 7, 3)] == [8, 4, 4]
    assert loaded(nproc=4).config.distributed.processes(1) == 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"nproc": "4..1"}, "the range 4..1 is empty"),
        ({"nproc": "3..3", "virtual": {"data": 8}}, "3..3 does not divide the 8 virtual ranks of the batch"),
        (
            {"nproc": "5..7", "virtual": {"data": 8}},
            "5..7 holds no divisor of the 8 virtual ranks of the batch",
        ),
        ({"nproc": "8..9", "virtual": {"data": 4}}, "allowed: 1, 2, 4"),
        ({"nproc": "0..4"}, "expected auto or a whole number or a range such as 1..4, got '0..4'"),
        ({"nproc": "many"}, "a range such as 1..4"),
    ],
)
def test_a_range_that_cannot_be(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(**settings)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"nproc": 3}, "3 does not divide the 2 virtual ranks of the batch; allowed: 1, 2"),
        ({"nproc": 3, "virtual": {"data": 4}}, "allowed: 1, 2, 4"),
        ({"nproc": 0}, "give 1 or more"),
        (
            {"nproc": 6, "tensor": 2},
            "are not tensor 2 x a divisor of virtual.data, which is 2; allowed: 1, 2, 4; or",
        ),
        ({"nproc": 4, "pipeline": 2, "virtual": {"pipeline": 3}}, "allowed: 1, 3"),
        ({"nproc": 2, "tensor": 2, "virtual": {"tensor": 1}}, "2 does not divide virtual.tensor, which is 1"),
        ({"nproc": 2, "shard": 2}, "set distributed.strategy: hsdp"),
        ({"nproc": 2, "strategy": "fsdp", "shard": 4}, "4 does not divide virtual.data, which is 2"),
        ({"nproc": 2, "wrap": ["layers.*"]}, "set distributed.strategy: fsdp"),
        ({"nproc": 2, "min_num_params": 1000}, "set distributed.strategy: fsdp"),
        (
            {"nproc": 2, "strategy": "fsdp", "wrap": ["layers.*"], "min_num_params": 1000},
            "keep one of the two",
        ),
        (
            {"nproc": 2, "strategy": "fsdp", "fsdp_auto_wrap_policy": "SIZE_BASED_WRAP"},
            "distributed.min_num_params: NUMBER",
        ),
        ({"nproc": 2, "strategy": "fsdp", "offload_optimizer": {"device": "cpu"}}, "offload: true"),
    ],
)
def test_a_wrong_mesh_is_one_problem(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(**settings)
    (problem,) = caught.value.problems
    assert said in problem.message


def test_the_virtual_ranks_of_several_nodes() -> None:
    nodes = {"nnodes": 2, "rdzv_endpoint": "first:29400"}
    distributed = loaded(nproc=2, **nodes).config.distributed
    assert (distributed.virtual.data, distributed.processes()) == (4, 2)
    with pytest.raises(ConfigError, match="2 on each of 2 nodes does not divide the 2 virtual ranks"):
        loaded(nproc=2, virtual={"data": 2}, **nodes)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"nnodes": 2}, "several nodes also need rdzv_endpoint: HOST:PORT"),
        ({"nnodes": 2, "rdzv_endpoint": "first"}, "expected HOST:PORT, or null, got 'first'"),
        ({"nnodes": 2, "nproc": "1..4", "rdzv_endpoint": "a:1"}, "the range 1..4 is for one node"),
    ],
)
def test_nodes_that_cannot_be(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(**settings)
    assert message in str(caught.value)


def test_a_launcher_counts_the_processes_of_all_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "3"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    distributed = loaded(nproc=2, nnodes=2).config.distributed
    assert (distributed.nproc, distributed.nnodes, distributed.virtual.data) == (4, 1, 4)


@pytest.mark.parametrize("settings", [{"virtual": {"tensor": 2}}, {"nproc": 2, "tensor": 2}])
def test_layers_in_slices_are_not_compiled(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="cannot compile layers that are computed in slices"):
        load({**GOOD, "training": {"compile": True}, "distributed": settings})
    assert load({**GOOD, "training": {"compile": True}}).config.training.compile
