"""Initial weights: the same bits however a model is made and placed, and no process that holds them all."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_torch_reference import draw_weights
from torch import nn

import placed_weights
from placed_weights import CPU, SEED, info_of, whole
from trainwright.errors import ModelError
from trainwright.frameworks.torch.huggingface.module import architecture_of
from trainwright.frameworks.torch.initial import InitialWeights
from trainwright.frameworks.torch.models.drawing import Drawn, draw, undrawn
from trainwright.frameworks.torch.parallel.pipeline.pipeline import Pipeline
from trainwright.frameworks.torch.parallel.pipeline.split import split
from trainwright.frameworks.torch.parallel.pipeline.uses import uses_of

TOKENS = {"task": "language_modeling", "outputs": 61, "inputs": {"input_ids": [[8], "int64"]}}
LABELLED = {
    "task": "classification",
    "outputs": 3,
    "inputs": {"input_ids": [[8], "int64"], "attention_mask": [[8], "int64"]},
}
IMAGES = {"task": "classification", "outputs": 3, "inputs": {"features": [[3, 16, 16], "float32"]}}
ROWS = {"task": "classification", "outputs": 3, "inputs": {"features": [[7], "float32"]}}
LLAMA = {
    "position": "rotary",
    "normalization": "rms",
    "activation": "swiglu",
    "num_kv_heads": 2,
    "bias": False,
}
HUGGING_FACE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "pad_token_id": 0,
    "tie_word_embeddings": True,
}
BUILT_IN: dict[str, dict[str, Any]] = {
    "gpt": {"type": "gpt", "params": {"hidden_size": 20, "num_layers": 2, "dropout": 0.1}, **TOKENS},
    "llama": {"type": "gpt", "params": {"hidden_size": 16, "tie_embeddings": False, **LLAMA}, **TOKENS},
    "text_transformer": {
        "type": "text_transformer",
        "params": {"vocab_size": 50, "hidden_size": 20, "pooling": "cls"},
        **LABELLED,
    },
    "lstm": {
        "type": "lstm",
        "params": {"vocab_size": 50, "num_layers": 2, "bidirectional": True},
        **LABELLED,
    },
    "transformer": {"type": "transformer", "params": {"hidden_size": 20}, **ROWS},
    "mlp": {"type": "mlp", "params": {"hidden": [19, 5], "normalization": "batch"}, **ROWS},
    "resnet18": {"type": "resnet18", "params": {}, **IMAGES},
    "cnn": {"type": "cnn", "params": {"filters": [5], "normalization": "batch"}, **IMAGES},
    "unet": {"type": "unet", "params": {"depth": 1}, **IMAGES, "task": "segmentation"},
}
TRANSFORMERS: dict[str, dict[str, Any]] = {
    model_type: {
        "type": f"transformers:{auto_class}",
        "params": {"config": {"model_type": model_type, **HUGGING_FACE, **more}},
        **data,
    }
    for model_type, auto_class, data, more in [
        ("llama", "AutoModelForCausalLM", TOKENS, {"num_key_value_heads": 2, "intermediate_size": 24}),
        ("gpt2", "AutoModelForCausalLM", TOKENS, {}),
        ("gemma3_text", "AutoModelForCausalLM", TOKENS, {"intermediate_size": 24, "head_dim": 8}),
        ("bert", "AutoModelForSequenceClassification", LABELLED, {"vocab_size": 50}),
        ("modernbert", "AutoModelForSequenceClassification", LABELLED, {"vocab_size": 50}),
    ]
}


def made(given: dict[str, Any], *, divided: bool = False) -> InitialWeights:
    """Return a model with its initial weights."""
    initial = InitialWeights.of(given["type"], given["params"], info_of(given), divided=divided)
    initial.fill(CPU, SEED)
    return initial


def in_processes(folder: Path, models: dict[str, dict[str, Any]], size: int) -> None:
    """Make models in parts, in so many processes."""
    (folder / "models.json").write_text(json.dumps(models))
    command = [sys.executable, placed_weights.__file__, str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = [subprocess.Popen([*command, str(rank), str(size)], env=environment) for rank in range(size)]
    try:
        assert [process.wait(120) for process in processes] == [0] * size
    finally:
        for process in processes:
            process.kill()


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    """Check that all tensors have the same bits."""
    assert one.keys() == other.keys()
    assert [name for name, tensor in one.items() if not torch.equal(tensor, other[name])] == []


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_built_in_model_is_made_without_memory_and_drawn_by_the_names_of_its_modules(name: str) -> None:
    given = BUILT_IN[name]
    initial = InitialWeights.of(given["type"], given["params"], info_of(given))
    assert initial.why_whole == ""
    assert {one.device.type for one in (*initial.module.parameters(), *initial.module.buffers())} == {"meta"}
    initial.fill(CPU, SEED)
    layers = given["params"].get("num_layers", 4)
    residual = 0.02 / (2 * layers) ** 0.5 if given["type"] == "gpt" else None
    by_hand = draw_weights(made(given).module, SEED, residual)
    assert_equal(whole(initial.module), whole(by_hand))
    drawn = [one for one in initial.module.parameters() if one.dim() > 1 and one.std() > 0]
    assert len({one.flatten()[:3].sum().item() for one in drawn}) == len(drawn), "each has numbers of its own"


def test_parts_that_two_processes_hold_are_those_of_the_whole(tmp_path: Path) -> None:
    models = {name: given for name, given in BUILT_IN.items() if name != "resnet18"}  # which is large
    others = {name: 2 * one + 1 for name, one in whole(made(models["gpt"]).module).items()}
    (tmp_path / "restored").mkdir()
    save_file(dict(list(others.items())[:7]), tmp_path / "restored" / "weights.safetensors")
    save_file(
        {name: one.double() for name, one in list(others.items())[7:]},  # rounded when it is read
        tmp_path / "restored" / "weights.1.safetensors",
    )
    restored = {"restored": {**models["gpt"], "restored": str(tmp_path / "restored")}}
    in_processes(tmp_path, models | restored, 2)
    assert_equal(load_file(tmp_path / "restored.safetensors"), others)
    for name, given in models.items():
        assert_equal(load_file(tmp_path / f"{name}.safetensors"), whole(made(given).module))


def test_the_generators_of_torch_stay_as_they_are() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    made(BUILT_IN["mlp"])
    assert torch.equal(torch.rand(2), expected)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_a_random_model_of_transformers_is_drawn_by_its_own_rules(name: str) -> None:
    given = TRANSFORMERS[name]
    initial = InitialWeights.of(given["type"], given["params"], info_of(given))
    assert initial.why_whole == ""
    initial.fill(CPU, SEED)
    ours, torch_s = whole(initial.module), whole(of_library(name))
    assert ours.keys() == torch_s.keys()  # the same are tied
    for key, theirs in torch_s.items():  # one has the values of another stream
        if not theirs.is_floating_point() or theirs.std() == 0 or "inv_freq" in key:
            assert torch.equal(ours[key], theirs), key
        elif theirs.numel() > 400:
            assert float(ours[key].std()) == pytest.approx(float(theirs.std()), rel=0.2), key
    assert_equal(ours, whole(made(given).module))


def of_library(name: str) -> nn.Module:
    """Return a model as transformers makes it."""
    import transformers

    given = TRANSFORMERS[name]
    sizes = {"vocab_size": 61} if given["task"] == "language_modeling" else {"num_labels": 3}
    config = transformers.AutoConfig.for_model(**given["params"]["config"], **sizes)
    auto_class = getattr(transformers, given["type"].partition(":")[2])
    torch.manual_seed(2)
    module: nn.Module = auto_class.from_config(config)
    return module


def saved(folder: Path, name: str, form: str) -> dict[str, Any]:
    """Save a model of transformers with weights of its own, and return a model that begins with them.

    `form` is `tied`, `sharded` (into several files), `base` (without the head), `half` (in bfloat16) or `both` (the
    head is in the files beside the embedding that it is tied to).
    """
    model: Any = of_library(name)
    if form == "half":
        model = model.to(torch.bfloat16)
    (model.base_model if form == "base" else model).save_pretrained(
        folder, **({"max_shard_size": "10KB"} if form == "sharded" else {})
    )
    if form == "both":
        path = folder / "model.safetensors"
        tensors = load_file(path)
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        save_file(tensors, path, {"format": "pt"})
    given = TRANSFORMERS[name]
    return {**given, "params": {"path": str(folder)}}


SAVED = [
    ("llama", "tied"),
    ("llama", "sharded"),
    ("llama", "both"),
    ("gpt2", "half"),
    ("bert", "base"),
    ("modernbert", "sharded"),
]


@pytest.mark.parametrize(("name", "form"), SAVED)
def test_a_folder_is_read_in_parts_as_it_is_read_whole(name: str, form: str, tmp_path: Path) -> None:
    given = saved(tmp_path, name, form)
    read_whole = made(given)
    assert read_whole.why_whole == "its weights are read whole, for this process"
    read_in_parts = made(given, divided=True)
    assert read_in_parts.why_whole == ""
    assert_equal(whole(read_in_parts.module), whole(read_whole.module))
    assert architecture_of(read_in_parts.module) == architecture_of(read_whole.module)
    theirs = whole(of_library(name))
    drawn = [
        key
        for key, one in whole(read_whole.module).items()
        if not torch.allclose(one, theirs[key], atol=0.01)
    ]
    assert drawn == (
        ["bert.pooler.dense.weight", "classifier.weight"][form == "base" :] if form == "base" else []
    )


@pytest.mark.services
def test_models_of_transformers_are_divided_among_processes(tmp_path: Path) -> None:
    models = {**TRANSFORMERS}
    for name, form in SAVED:
        (tmp_path / form / name).mkdir(parents=True)
        models[f"{name}-{form}"] = saved(tmp_path / form / name, name, form)
    in_processes(tmp_path, models, 2)
    for name, given in models.items():
        assert_equal(load_file(tmp_path / f"{name}.safetensors"), whole(made(given).module))


def test_a_folder_that_transformers_must_convert_is_read_whole(tmp_path: Path) -> None:
    given = saved(tmp_path, "llama", "tied")
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    save_file({**tensors, "lm_head.weight": torch.zeros(61, 32)}, path, {"format": "pt"})
    initial = InitialWeights.of(given["type"], given["params"], info_of(given), divided=True)
    assert initial.why_whole == "the folder has two tensors for model.embed_tokens.weight, which differ"


class Own(nn.Module):
    """A model of the user's, with a rule and a table of its own."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.first = nn.Linear(in_features, 4)
        self.last = nn.Linear(4, out_features)
        self.tied = self.last
        self.gain = nn.Parameter(torch.full((4,), 7.0))

    def draw_parameters(self, module: nn.Module, name: str) -> None:
        """Draw matrices with a larger deviation."""
        for key, parameter in module.named_parameters(recurse=False):
            nn.init.constant_(parameter, 1.0) if key == "gain" else nn.init.normal_(parameter, std=3.0)


class WithTable(Own):
    """One whose table no rule sets."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        self.register_buffer("table", torch.arange(3.0))


class Careless(Own):
    """One that leaves a row without values."""

    def draw_parameters(self, module: nn.Module, name: str) -> None:
        """Leave out a row of the last layer."""
        for parameter in module.parameters(recurse=False):
            nn.init.ones_(parameter[1:])


class Plain(nn.Sequential):
    """One that draws its weights when it is made."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(7, 3))


def own(name: str) -> dict[str, Any]:
    """Return a model of the user's."""
    return {"type": f"test_initial_weights:{name}", "params": {}, **ROWS}


def test_a_class_with_a_rule_is_drawn_by_it() -> None:
    given = own("Own")
    initial = InitialWeights.of(given["type"], {}, info_of(given))
    assert (initial.why_whole, initial.module.first.weight.device.type) == ("", "meta")
    initial.fill(CPU, SEED)
    assert initial.module.gain.tolist() == [1.0] * 4
    assert initial.module.tied is initial.module.last
    with_table = made(own("WithTable"))
    assert with_table.why_whole == "only its constructor gives table a value"
    assert with_table.module.table.tolist() == [0.0, 1.0, 2.0]
    tensors = whole(with_table.module)
    del tensors["table"]
    assert_equal(tensors, whole(initial.module))
    with pytest.raises(ModelError, match=r"initial values of last\.weight are not all set"):
        made(own("Careless"))


def test_other_classes_draw_their_weights_when_they_are_made() -> None:
    torch.manual_seed(1)
    expected = Plain()
    torch.manual_seed(1)
    plain = made(own("Plain"))
    assert "a method draw_parameters(module, name) would draw parts" in plain.why_whole
    assert_equal(whole(plain.module), whole(expected))


class Tied(Drawn):
    """Two layers with one matrix, and one whose rule also sets a tensor of the layer within."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4, padding_idx=0)
        self.head = nn.Linear(4, 5)
        self.head.weight = self.embedding.weight
        self.attention = nn.MultiheadAttention(4, 2)
        self.orthogonal = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))


def test_the_first_of_tied_layers_draws_and_what_no_rule_sets_is_named() -> None:
    model = Tied()
    before = model.attention.out_proj.weight.clone()
    assert undrawn(model, model.draw_parameters) == [
        "orthogonal.parametrizations.weight.original0",
        "orthogonal.parametrizations.weight.original1",
    ]
    draw(model, model.draw_parameters, SEED)
    assert model.head.weight is model.embedding.weight
    assert model.embedding.weight[0].tolist() == [0.0] * 4
    assert model.embedding.weight[1:].std() > 0.5  # of an embedding, not of a linear layer
    assert not model.attention.out_proj.bias.any()
    assert not torch.equal(model.attention.out_proj.weight, before)


@pytest.mark.services
@pytest.mark.parametrize("from_folder", [False, True])
def test_no_process_holds_the_whole(from_folder: bool, tmp_path: Path) -> None:
    wide = {**TOKENS, "measured": True}
    given = {"type": "gpt", "params": {"hidden_size": 512, "num_layers": 16, "num_heads": 8}, **wide}
    if from_folder:
        import transformers

        config = transformers.GPT2Config(n_embd=512, n_layer=16, n_head=8, vocab_size=61)
        transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "model")
        given = {
            "type": "transformers:AutoModelForCausalLM",
            "params": {"path": str(tmp_path / "model")},
            **wide,
        }
    for size in (1, 2, 4):
        folder = tmp_path / str(size)
        folder.mkdir()
        small = TRANSFORMERS["gpt2"] if from_folder else BUILT_IN["gpt"]  # imports what both need
        in_processes(folder, {"small": small, "large": given}, size)
        for rank in range(size):
            measured = json.loads((folder / f"large.{rank}.json").read_text())
            assert measured["own"] == pytest.approx(202e6 / size, rel=0.02)
            assert measured["grew"] < measured["own"] + 16e6


@pytest.mark.parametrize(("name", "form"), [("llama", "tied"), ("gpt2", "half")])
def test_each_stage_of_a_pipeline_reads_its_own_part_of_a_folder(
    name: str, form: str, tmp_path: Path
) -> None:
    given = saved(tmp_path, name, form)
    model = made(given).module
    expected = whole(model)
    stages = split(model, 2)
    uses = uses_of(model, stages, lambda batch: model(**batch), {"input_ids": torch.ones(2, 5).long()})
    read: set[str] = set()
    for index in range(2):
        initial = InitialWeights.of(given["type"], given["params"], info_of(given), divided=True)
        module, links = initial.module, SimpleNamespace(index=index, size=2, open=lambda *_: None)
        Pipeline(module, stages, uses, links=links).place(CPU)  # type: ignore[arg-type]
        initial.fill(CPU, SEED)
        own = {key: value for key, value in module.state_dict(keep_vars=True).items() if key in expected}
        assert 1 < len(own) < len(expected)
        assert_equal(own, {key: expected[key] for key in own})
        read |= own.keys()
    assert read >= {key for key, _ in model.named_parameters()}
