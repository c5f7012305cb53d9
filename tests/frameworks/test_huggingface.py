"""Models of transformers in the torch trainer, beside loops by hand with transformers and peft themselves."""

import importlib
import json
import shutil
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import trainwright
from late import Late
from small_runs import SMALL, assert_same, checkpoints, flip, preempted, whole_and_resumed
from trainwright.config import load
from trainwright.errors import ChangedInputsError, ConfigError, ModelError
from trainwright.frameworks.torch.huggingface.build import ARCHITECTURE, build
from trainwright.order import INIT, stream_seed
from trainwright.records.journal import losses, read
from trainwright.runs.catalog import Catalog
from trainwright.runs.run import Run
from trainwright.testing.framework_suite import FrameworkSuite, Kills

transformers = Late(lambda: importlib.import_module("transformers"))
peft = Late(lambda: importlib.import_module("peft"))

ROOT = Path(__file__).parents[2]
CLASSIFIER = "transformers:AutoModelForSequenceClassification"
LANGUAGE_MODEL = "transformers:AutoModelForCausalLM"
_SIZES = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 24}
BERT = {"model_type": "bert", "vocab_size": 40, "max_position_embeddings": 12, **_SIZES}
LLAMA = {"model_type": "llama", "num_key_value_heads": 1, "max_position_embeddings": 16, **_SIZES}
GPT2 = {"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16}
WITHOUT_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
LORA = {"r": 4, "alpha": 8, "dropout": 0.1}
TEXT = "the quick brown fox jumps over the lazy dog, and the dog sleeps on.\n" * 40


def rows_of_tokens(rows: int = 48, seed: int = 0) -> dict[str, Any]:
    """Rows of up to 10 tokens, padded with 0; the class is the remainder of the first token by 3."""
    draws = np.random.default_rng(seed)
    ids = draws.integers(3, 40, (rows, 10))
    lengths = draws.integers(4, 11, rows)
    mask = (np.arange(10)[None] < lengths[:, None]).astype(np.int64)
    return {"input_ids": ids * mask, "attention_mask": mask, "target": ids[:, 0] % 3}


def classifier(config: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """The overrides of a small run that classifies tokens."""
    source = {} if "path" in options else BERT
    return {
        "data": None,
        "model": {"type": CLASSIFIER, "config": {**source, **(config or {})}, **options},
        "training.batch_size": 16,
    }


def split(**changed: Any) -> dict[str, Any]:
    return {"train": {**rows_of_tokens(), **changed}, "val": {**rows_of_tokens(seed=1), **changed}}


def language_model(folder: Path, config: dict[str, Any], **options: Any) -> dict[str, Any]:
    """The overrides of a small run that learns a text, by its bytes."""
    (folder / "text.txt").write_text(TEXT)
    return {
        "data": {"type": "text", "path": str(folder / "text.txt"), "length": 16},
        "model": {"type": LANGUAGE_MODEL, "config": config, **options},
        "training.batch_size": 16,
    }


def trained(folder: Path, overrides: dict[str, Any], steps: int = 3, **objects: Any) -> Run:
    run = trainwright.train(
        SMALL, {**overrides, "training.max_steps": steps}, runs_dir=folder / "runs", **objects
    )
    assert isinstance(run, Run)
    return run


def losses_of(run: Run) -> list[float]:
    return list(losses(list(read(run.path / "journal"))).values())


def saved_model(folder: Path, auto_class: str, config: dict[str, Any], **more: Any) -> Path:
    """A folder that save_pretrained has written, with random weights."""
    torch.manual_seed(5)
    kind = {**config, **more}
    made = transformers.AutoConfig.for_model(**kind)
    getattr(transformers, auto_class).from_config(made).save_pretrained(folder)
    return folder


# -- beside loops by hand


def test_a_classifier_learns_as_a_loop_by_hand(tmp_path):
    path = saved_model(
        tmp_path / "bert", "AutoModelForSequenceClassification", {**BERT, **WITHOUT_DROPOUT}, num_labels=3
    )
    run = trained(tmp_path, {**classifier(path=str(path)), "training.batch_size": 48}, data=split())

    model = transformers.AutoModelForSequenceClassification.from_pretrained(path).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0)
    rows = {name: torch.tensor(value) for name, value in rows_of_tokens().items()}
    labels = rows.pop("target")
    expected = []
    for _ in range(3):
        output = model(**rows, labels=labels)  # its own loss, of all rows
        output.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        expected.append(output.loss.item())
    assert losses_of(run) == pytest.approx(expected, abs=2e-6)
    assert [label for _, label in sorted(trainwright.load(run).native.config.id2label.items())] == [
        "0",
        "1",
        "2",
    ]


def test_adapters_learn_as_a_loop_by_hand_with_peft(tmp_path):
    path = saved_model(tmp_path / "llama", "AutoModelForCausalLM", {**LLAMA, "vocab_size": 256})
    text = TEXT.encode()[: 24 * 16 + 1]
    (tmp_path / "train.txt").write_bytes(text)
    (tmp_path / "val.txt").write_text(TEXT[100:500])
    paths = {f"{name}_path": str(tmp_path / f"{name}.txt") for name in ("train", "val")}
    overrides = {
        "data": {"type": "text", "length": 16, **paths},
        "model": {"type": LANGUAGE_MODEL, "path": str(path), "lora": {"r": 4, "alpha": 8}},
        "training.batch_size": 24,
    }
    run = trained(tmp_path, overrides)

    base = transformers.AutoModelForCausalLM.from_pretrained(path)
    torch.manual_seed(stream_seed(SMALL["experiment"]["seed"], INIT))
    model = peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8)).train()
    optimizer = torch.optim.AdamW(
        [one for one in model.parameters() if one.requires_grad], lr=0.01, weight_decay=0.0
    )
    ids = torch.tensor(list(text)).unfold(0, 17, 16)  # (24, 17): samples with the token that follows
    expected = []
    for _ in range(3):
        loss = model(input_ids=ids, labels=ids).loss  # its own, which shifts the labels itself
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        expected.append(loss.item())
    assert losses_of(run) == pytest.approx(expected, abs=2e-6)

    trainwright.export(run, tmp_path / "adapters", "peft")
    trainwright.export(run, tmp_path / "merged", "huggingface")
    base = transformers.AutoModelForCausalLM.from_pretrained(path)
    adapted = peft.PeftModel.from_pretrained(base, tmp_path / "adapters").eval()
    merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    with torch.no_grad():
        wanted = model.eval()(ids[:, :-1]).logits
        assert torch.allclose(adapted(ids[:, :-1]).logits, wanted, atol=1e-5)
        assert torch.allclose(merged(ids[:, :-1]).logits, wanted, atol=1e-5)
        assert torch.allclose(trainwright.load(run).native(ids[:, :-1]).logits, wanted, atol=1e-5)
    assert not any("lora" in name for name, _ in merged.named_parameters())


@pytest.mark.parametrize(
    ("task", "targets", "loss"),
    [
        ("regression", lambda draws: draws.normal(3, 2, 48).astype(np.float32), torch.nn.functional.mse_loss),
        (
            "multilabel",
            lambda draws: draws.integers(0, 2, (48, 3)).astype(np.float32),
            torch.nn.functional.binary_cross_entropy_with_logits,
        ),
    ],
)
def test_the_loss_is_that_of_the_task(task, targets, loss, tmp_path):
    path = saved_model(
        tmp_path / "bert",
        "AutoModelForSequenceClassification",
        {**BERT, **WITHOUT_DROPOUT},
        num_labels=1 if task == "regression" else 3,
    )
    target = targets(np.random.default_rng(4))
    overrides = {**classifier(path=str(path)), "training.batch_size": 48}
    run = trained(tmp_path, overrides, steps=1, data=split(target=target))
    rows = {name: torch.tensor(value) for name, value in rows_of_tokens().items() if name != "target"}
    with torch.no_grad():
        logits = transformers.AutoModelForSequenceClassification.from_pretrained(path)(**rows).logits
    wanted = torch.tensor(target)
    if task == "regression":
        logits, wanted = logits[:, 0], (wanted - wanted.mean()) / wanted.std(correction=0)
    assert losses_of(run) == pytest.approx([float(loss(logits, wanted))], abs=2e-6)


def test_the_example(tmp_path):
    small = {"training.max_steps": 2, "data.path": str(ROOT / "docs"), "data.pattern": "security.md"}
    run = trainwright.train(ROOT / "examples" / "lora.yaml", small, runs_dir=tmp_path / "runs")
    assert run.result["metrics"]["val_loss"] < np.log(256) + 0.1
    trained = {name for name, one in trainwright.load(run).native.named_parameters() if one.requires_grad}
    assert {name.rpartition(".default")[0].rpartition(".")[2] for name in trained} == {
        "lora_A",
        "lora_B",
        "modules_to_save",
    }


# -- the same bits


def heavy(folder: Path) -> dict[str, Any]:
    """Adapters on a model with rotary positions, recomputed activations, averages, and virtual ranks."""
    return {
        **language_model(folder, LLAMA, lora=LORA),
        "training.max_steps": 16,
        "training.microbatch_size": 5,
        "training.activation_checkpointing": ["*.layers.0"],
        "training.ema": 0.9,
        "training.freeze": [{"match": "*.layers.0.*lora_A*", "until_step": 12}],
        "training.parameter_groups": [{"match": "*lora_B*", "lr_ratio": 4.0}],
        "training.layer_decay": 0.9,
        "distributed.virtual.data": 2,
    }


def test_adapters_resume_to_the_same_bits(tmp_path):
    whole, resumed = whole_and_resumed(tmp_path, heavy(tmp_path))
    assert_same(resumed, whole)
    begun, ended = (_weights(whole, index) for index in (0, -1))
    changed = {name for name in begun if not torch.equal(begun[name], ended[name])}
    assert changed
    assert all("lora_" in name for name in changed)
    text = trainwright.load(whole).generate("the ", 8, seed=2)
    assert text == trainwright.load(resumed).generate("the ", 8, seed=2)
    assert len(text) > 0


@pytest.mark.soak
def test_a_model_with_tied_weights_and_dropout_resumes_to_the_same_bits(tmp_path):
    overrides = {**language_model(tmp_path, GPT2), "training.microbatch_size": 6}
    whole, resumed = whole_and_resumed(tmp_path, overrides)
    assert_same(resumed, whole)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["bert", "bert-lora", "roberta", "opt", "qwen2", "gemma", "mistral"])
def test_architectures_resume_to_the_same_bits(kind, tmp_path):
    if kind.startswith("bert"):
        overrides, objects = classifier(lora=LORA if "lora" in kind else None), {"data": split()}
    else:
        own = {
            "roberta": {"is_decoder": True, "intermediate_size": 24},
            "opt": {"ffn_dim": 24, "word_embed_proj_dim": 16},
        }
        grouped = {"num_key_value_heads": 1, "intermediate_size": 24}
        grouped |= {"head_dim": 8} if kind == "gemma" else {}
        sizes = {name: value for name, value in _SIZES.items() if name != "intermediate_size"}
        config = {"model_type": kind, **sizes, "max_position_embeddings": 24, **own.get(kind, grouped)}
        overrides, objects = language_model(tmp_path, config), {}
    whole, resumed = whole_and_resumed(tmp_path, overrides, **objects)
    assert_same(resumed, whole)


@pytest.mark.soak
def test_two_processes_have_the_bits_of_one(tmp_path):
    whole = trainwright.train(SMALL, heavy(tmp_path), runs_dir=tmp_path / "one")
    two = trainwright.train(SMALL, {**heavy(tmp_path), "distributed.nproc": 2}, runs_dir=tmp_path / "two")
    assert two.result["digest"] == whole.result["digest"]
    assert losses_of(two) == losses_of(whole)


def _weights(run: Run, index: int) -> dict[str, Any]:
    return dict(load_file(checkpoints(run)[index] / "weights.safetensors"))


ROWS = """
import numpy as np


def load():
    draws = np.random.default_rng(0)
    ids = draws.integers(3, 40, (200, 10))
    mask = (np.arange(10)[None] < draws.integers(4, 11, 200)[:, None]).astype(np.int64)
    rows = {"input_ids": ids * mask, "attention_mask": mask, "target": ids[:, 0] % 3}
    return {"train": {k: v[:150] for k, v in rows.items()}, "val": {k: v[150:] for k, v in rows.items()}}
"""


@pytest.mark.soak
class TestHuggingface(FrameworkSuite):
    """A model of transformers with adapters, killed by kill -9."""

    framework = "torch"
    starts_afresh = False
    kills: ClassVar[Kills] = (("step", 13), ("evaluation", 3), ("commit", 4), ("end", 1))
    sources: ClassVar[dict[str, str]] = {"huggingface_rows.py": ROWS}

    @classmethod
    def config(cls) -> dict[str, Any]:
        return {
            "data": {"type": "huggingface_rows:load"},
            "model": {"type": CLASSIFIER, "params": {"config": BERT, "lora": LORA}},
            "training": {
                "max_steps": 36,
                "batch_size": 25,
                "microbatch_size": 13,
                "learning_rate": 0.01,
                "activation_checkpointing": ["*.layer.1"],
                "ema": 0.9,
                "threads": 1,
            },
            "evaluation": {"every_n_steps": 3},
            "distributed": {"virtual": {"data": 2}},
        }


# -- where the weights come from


def test_weights_and_architecture_are_inputs(tmp_path):
    path = saved_model(tmp_path / "bert", "AutoModelForSequenceClassification", BERT, num_labels=3)
    weights, config = path / "model.safetensors", path / "config.json"
    begun = {file: file.read_bytes() for file in (weights, config)}
    short = {**classifier(path=str(path)), "training.max_steps": 4}
    run = preempted(tmp_path / "runs", short, at=2, data=split())
    flip(weights)
    with pytest.raises(ChangedInputsError, match="weights"):
        trainwright.resume(run, data=split())
    weights.write_bytes(begun[weights])
    config.write_text(json.dumps({**json.loads(begun[config]), "hidden_dropout_prob": 0.5}))
    with pytest.raises(ChangedInputsError, match="architecture"):
        trainwright.resume(run, data=split())
    config.write_bytes(begun[config])
    run = trainwright.resume(run, data=split())

    rows = {name: value for name, value in rows_of_tokens().items() if name != "target"}
    before = trainwright.load(run).predict_proba(rows)
    shutil.rmtree(path)  # a trained model needs the folder no more
    assert np.array_equal(trainwright.load(run).predict_proba(rows), before)


def test_a_model_of_the_hub(tmp_path, monkeypatch):
    constants = importlib.import_module("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    model, commit = {**classifier(path="someone/tiny"), "model.revision": "v1"}, "0123456789" * 4
    with pytest.raises(ModelError) as caught:
        trained(tmp_path, model, data=split())
    assert "hf download someone/tiny --revision v1 --local-dir tiny" in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 4

    home = tmp_path / "cache" / "models--someone--tiny"
    saved_model(home / "snapshots" / commit, "AutoModelForSequenceClassification", BERT, num_labels=3)
    (home / "refs").mkdir()
    (home / "refs" / "v1").write_text(commit)
    run = trained(tmp_path, model, steps=1, data=split())
    assert run.manifest["model"]["commit"] == commit


def test_a_model_of_other_labels_gets_a_new_head(tmp_path, caplog):
    path = saved_model(tmp_path / "bert", "AutoModelForSequenceClassification", BERT, num_labels=2)
    overrides = {**classifier(path=str(path)), "training.learning_rate": 1e-30}
    runs = [trained(tmp_path / name, overrides, steps=1, data=split()) for name in ("one", "again")]
    assert runs[0].digest == runs[1].digest
    assert "saved with other labels: a new head, classifier.bias, classifier.weight" in caplog.text
    own, saved = trainwright.load(runs[0]).native.state_dict(), load_file(path / "model.safetensors")
    assert own["classifier.weight"].shape == (3, 16)
    assert own["classifier.weight"].abs().max() > 0
    for name in saved.keys() - {"classifier.weight", "classifier.bias"}:
        assert torch.allclose(own[name], saved[name], rtol=0, atol=1e-12), name


def test_adapters_of_another_run_are_a_start(tmp_path):
    path = saved_model(tmp_path / "bert", "AutoModelForSequenceClassification", BERT, num_labels=3)
    first = trained(tmp_path, classifier(path=str(path), lora=LORA), data=split())
    adapters = tmp_path / "adapters"
    trainwright.load(first).native.save_pretrained(adapters)
    begun = {
        **classifier(path=str(path), lora=LORA, init_from=str(adapters)),
        "training.learning_rate": 1e-30,
    }
    second = trained(tmp_path, begun, steps=1, data=split())
    then, now = (trainwright.load(one).native.state_dict() for one in (first, second))
    changed = {name for name in now if "lora_" in name or "modules_to_save" in name}
    assert len(changed) > 4
    for name, one in now.items():
        assert torch.allclose(one, then[name], rtol=0, atol=1e-12), name
    loaded = second.manifest["weights"]["loaded"]
    assert (loaded["loaded"], loaded["missing"]) == (len(changed), [])
    for lora, said in (
        ({**LORA, "alpha": 4}, r"scaled by 8\.0 / 4, .* by 4\.0 / 4"),
        (None, "without the model"),
    ):
        wrong = classifier(path=str(path), lora=lora, init_from=str(adapters))
        with pytest.raises(ModelError, match=said):
            trained(tmp_path, wrong, steps=1, data=split())


def test_a_folder_executes_nothing(tmp_path):
    path = saved_model(tmp_path / "bert", "AutoModelForSequenceClassification", BERT, num_labels=3)
    (path / "evil.py").write_text("raise SystemExit('executed')")
    evil = {
        "auto_map": dict.fromkeys(("AutoConfig", "AutoModelForSequenceClassification"), "evil.Model"),
        "_attn_implementation": "someone/kernels",
        "attn_implementation": "someone/kernels",
    }
    config = path / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **evil}))
    run = trained(tmp_path, classifier(path=str(path)), steps=1, data=split())
    assert trainwright.load(run).native.config._attn_implementation == "sdpa"
    # A run directory may come from someone else, too: a checkpoint says what model it is of.
    stored = {"path": str(path), ARCHITECTURE: json.loads(config.read_text())}
    made = build(CLASSIFIER, stored, trainwright.load(run).info)[0].config
    assert made._attn_implementation == "sdpa"
    assert "auto_map" not in made.to_dict()  # nor does an export lead anyone to that code


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("a pickle", "a pickle, which could execute code"),
        ("adapters", "holds adapters of peft"),
        ({"quantization_config": {"bits": 4}}, "holds quantized weights"),
        ({"model_type": "berd"}, "transformers has no 'berd'; nearest: bert"),
        (
            {"model_type": "own", "auto_map": {"AutoConfig": "evil.Own"}},
            "'own'; it has code of its own, which is",
        ),
        ({"hidden_size": 32}, r"have other shapes: .*leave out what model\.config"),
    ],
    ids=str,
)
def test_a_folder_that_cannot_be_used(change, said, tmp_path):
    path = saved_model(tmp_path / "bert", "AutoModelForSequenceClassification", BERT, num_labels=3)
    if change == "a pickle":
        (path / "model.safetensors").rename(path / "pytorch_model.bin")
    elif change == "adapters":
        (path / "adapter_config.json").write_text("{}")
    else:
        config = path / "config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), **change}))
    with pytest.raises(ModelError, match=said):
        trained(tmp_path, classifier(path=str(path)), data=split())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"path": "./nowhere/at/all"}, "there is no folder ./nowhere/at/all"),
        ({"config": {"hiden_size": 8}}, "bert has no option 'hiden_size'; did you mean 'hidden_size'?"),
        ({"config": {"hidden_size": "big"}}, "expected int, got str"),
        ({"config": {"attn_implementation": "someone/kernels"}}, "write model.attn_implementation"),
        ({"config": {"num_labels": 9}}, "9 given, but the data have 3; leave it out"),
        ({"config": {"max_position_embeddings": 8}}, "the model has 8 positions, but samples have 10 tokens"),
        ({"config": {**LLAMA, "vocab_size": 40}}, "pad_token_id: llama reads the answer"),
        ({"config": {"vocab_size": 20}}, "the model has 20 tokens .* of train has token 39"),
        (
            {"lora": {"target_modules": ["nothing"]}},
            "no layer of the model matches; its linear layers: classifier, dense, key, query",
        ),
        (
            {"type": LANGUAGE_MODEL},
            "is not for classification; write model.type: transformers:AutoModelForSeq",
        ),
    ],
    ids=str,
)
def test_options_that_cannot_be_used(options, said, tmp_path):
    overrides = classifier(**options) if "type" not in options else classifier()
    overrides["model"] |= {"type": options.get("type", CLASSIFIER)}
    with pytest.raises(ModelError, match=said) as caught:
        trained(tmp_path, overrides, data=split())
    assert len(str(caught.value).splitlines()) <= 4


@pytest.mark.parametrize("size", [200, 300])
def test_the_tokens_of_a_model_are_those_of_the_tokenizer(size, tmp_path):
    path = saved_model(tmp_path / "llama", "AutoModelForCausalLM", {**LLAMA, "vocab_size": size})
    overrides = {**language_model(tmp_path, {}, path=str(path)), "data.split.val": 0.5}
    if size < 256:
        with pytest.raises(ModelError, match="has 200 tokens, but the tokenizer of the data has 256"):
            trained(tmp_path, overrides)
        return
    run = trained(tmp_path, {**overrides, "training.learning_rate": 1e-30}, steps=1)
    model = transformers.AutoModelForCausalLM.from_pretrained(path).eval()
    ids = torch.tensor([list(b"the quick brown ")])
    with torch.no_grad():
        wanted = model(ids).logits[..., :256]
        assert torch.allclose(trainwright.load(run).native(ids).logits, wanted, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"trust_remote_code": True, "path": "x"}, "code that comes with weights is never executed"),
        ({}, "write path: FOLDER"),
        ({"revision": "main", "config": BERT}, "revision given without path"),
        ({"config": BERT, "lora": {"alfa": 3}}, "alfa.*alpha"),
        ({"type": "transformers:BertModel"}, "there are transformers:AutoModelForSeq.*my_module:build"),
    ],
    ids=str,
)
def test_a_config_is_checked_without_transformers(options, said):
    with pytest.raises(ConfigError, match=said):
        load({"data": "wine", "model": {"type": CLASSIFIER, **options}}, adapters=Catalog())
