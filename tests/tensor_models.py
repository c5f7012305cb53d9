"""Train small models by hand with split layers, on meshes of four processes; print the digests of their weights.

Called with names of cases, in each process of a group of four.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

from trainwright.frameworks.torch.activations import checkpoint_activations
from trainwright.frameworks.torch.losses.tokens import token_cross_entropy
from trainwright.frameworks.torch.models.gpt import Gpt
from trainwright.frameworks.torch.models.text_transformer import TextTransformer
from trainwright.frameworks.torch.models.transformer import Transformer
from trainwright.frameworks.torch.outputs import as_float
from trainwright.frameworks.torch.parallel.tensor.parallelize import parallelize
from trainwright.frameworks.torch.parallel.tensor.plan import Plan
from trainwright.frameworks.torch.parallel.tensor.plans import plan_of
from trainwright.frameworks.torch.parallel.tensor.slices import Slices
from trainwright.frameworks.torch.state.layout import block_of, local
from trainwright.types import LABELS, NO_LABEL

# Numbers that leave a rest after whole vectors, also in a slice.
VOCABULARY, LENGTH, ROWS, STEPS = 53, 15, 6, 3
LLAMA = {"position": "rotary", "normalization": "rms", "activation": "swiglu", "bias": False}
KINDS: Mapping[str, Mapping[str, Any]] = {  # and options of their architectures
    **{kind: {"head_dim": 6} for kind in ("llama", "mistral", "qwen3", "gemma")},
    "qwen2": {},
    "gpt2": {"n_inner": 92},
    "gptj": {"n_inner": 92, "rotary_dim": 4, "attn_pdrop": 0.1, "resid_pdrop": 0.1},
    "bert": {"is_decoder": True},
    "distilbert": {"hidden_dim": 92},
    "opt": {"ffn_dim": 92, "word_embed_proj_dim": 48},
}
Meshes = Mapping[int, DeviceMesh | None]  # by the number of processes on the axis `tensor`


def ids(step: int, rows: int = ROWS) -> Tensor:
    return torch.randint(0, VOCABULARY, (rows, LENGTH), generator=torch.Generator().manual_seed(step))


def gpt(hidden_size: int = 40, num_heads: int = 4, dropout: float = 0.1, **options: Any) -> Gpt:
    return Gpt(VOCABULARY, LENGTH, hidden_size, 2, num_heads, dropout, intermediate_size=92, **options)


def huggingface(kind: str, **options: Any) -> Any:
    import transformers

    config = transformers.AutoConfig.for_model(
        kind,
        hidden_size=48,
        intermediate_size=92,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        attention_dropout=0.1,
        use_cache=False,
        **{"vocab_size": VOCABULARY, **KINDS.get(kind, {}), **options},
    )
    masked = kind == "distilbert"
    auto_class = transformers.AutoModelForMaskedLM if masked else transformers.AutoModelForCausalLM
    return auto_class.from_config(config, attn_implementation="sdpa")


def with_adapters(model: Any, targets: Sequence[str]) -> Any:
    import peft

    options = peft.LoraConfig(r=4, target_modules=list(targets), lora_dropout=0.1, init_lora_weights=False)
    return peft.get_peft_model(model, options)


class Features(Transformer):
    """Reads the tokens as numbers."""

    def forward(self, features: Tensor) -> Tensor:
        return super().forward(features.float() / VOCABULARY)


class Attention(nn.Module):
    """Attention as users write it, with a number of heads that a slice has a share of."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.output = nn.Linear(width, width)
        self.scale = nn.Parameter(torch.ones(self.size))  # of each head, in all slices

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        query, key, value = (
            layer(x).reshape(*x.shape[:2], self.heads, self.size).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        weights = functional.dropout(torch.softmax((query * self.scale) @ key.mT, -1), 0.1, self.training)
        return self.output((weights @ value).transpose(1, 2).flatten(2)), weights


class Own(nn.Module):
    """A model of a user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 40)
        self.attention = Attention(40, 4)
        self.mlp = nn.Sequential(nn.Linear(40, 92), nn.GELU(), nn.Dropout(0.1), nn.Linear(92, 40, bias=False))
        self.head = nn.Linear(40, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        x = x + self.attention(x)[0]
        return self.head(x + self.mlp(x))


OWN_PLAN = Plan(
    colwise=["attention.query", "attention.key", "attention.value", "mlp.0"],
    rowwise=["*.output", "mlp.3"],
    divided={"attention": ["heads"]},
)


MODELS: Mapping[str, Callable[[], nn.Module]] = {
    "gpt": gpt,
    "llama": lambda: gpt(48, 8, **LLAMA, num_kv_heads=4),
    "sequence": gpt,
    "checkpointed": gpt,
    "vocabulary": lambda: Gpt(VOCABULARY + 3, LENGTH, 40, 1, 4, 0.1, tie_embeddings=False),
    "hf_vocabulary": lambda: huggingface("llama", vocab_size=VOCABULARY + 3),
    "own": Own,
    "features": lambda: Features(LENGTH, VOCABULARY, 48, num_heads=4),
    "text": lambda: TextTransformer(VOCABULARY, LENGTH, (VOCABULARY,), 48, num_heads=4, intermediate_size=92),
    **{f"hf_{kind}": lambda kind=kind: huggingface(kind) for kind in KINDS},
    "lora": lambda: with_adapters(
        huggingface("llama", attention_bias=True), ["q_proj", "o_proj", "up_proj", "down_proj"]
    ),
    "lora_gpt2": lambda: with_adapters(huggingface("gpt2"), ["c_attn", "c_proj"]),
    "lora_bert": lambda: with_adapters(huggingface("bert"), ["query", "dense"]),
}


def whole(tensor: Any) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def own(tensor: Any) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def digest(tensors: Mapping[str, Tensor]) -> str:
    hashed = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        hashed.update(name.encode() + whole(tensor.detach()).contiguous().numpy().tobytes())
    return hashed.hexdigest()


def loss_of(model: nn.Module, tokens: Tensor, *, bf16: bool) -> Tensor:
    """Return the loss of the next tokens, or of a class for each row, as a mean."""
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        outputs = model(tokens)
    if isinstance(outputs, Tensor) and outputs.dim() == 2:
        return functional.cross_entropy(outputs.float(), tokens[:, 0])
    labels = functional.pad(tokens[:, 1:], (0, 1), value=NO_LABEL)
    return token_cross_entropy(as_float(outputs), {LABELS: labels})


def updates(model: nn.Module) -> Callable[[], None]:
    """Return what makes an update by the gradients, with the elements of this process alone."""
    parameters = [one for one in model.parameters() if one.requires_grad]
    blocks = [own(one.detach()).requires_grad_() for one in parameters]
    optimizer = torch.optim.AdamW(blocks, 1e-2, foreach=False, fused=False)

    def update() -> None:
        for block, parameter in zip(blocks, parameters, strict=True):
            block.grad, parameter.grad = own(parameter.grad), None
        optimizer.step()

    return update


def plan_for(name: str, model: nn.Module) -> Plan:
    if name == "own":
        return OWN_PLAN
    sequence = ["*norm"] if name == "sequence" else []
    vocabulary = ["*head"] if "vocabulary" in name else []
    return replace(plan_of(model), sequence=sequence, vocabulary=vocabulary)


def train(name: str, slices: Slices, *, bf16: bool = False) -> str:
    """Train a model; return the digest of its weights and losses."""
    torch.manual_seed(0)
    model = MODELS[name]().train()
    parallelize(model, plan_for(name, model), slices)
    if name == "checkpointed":
        checkpoint_activations(model, ["blocks.*", "norm"], synchronized=False)
    update, losses = updates(model), []
    for step in range(STEPS):
        torch.manual_seed(step)
        loss = loss_of(model, ids(step), bf16=bf16)
        loss.backward()
        update()
        losses.append(loss.detach())
    return digest({**dict(model.named_parameters()), "losses": torch.stack(losses)})


def train_sharded(name: str, virtual: int, mesh: DeviceMesh | None) -> str:
    """Train with two halves of each batch, which processes of the axis `shard` compute by FSDP2."""
    torch.manual_seed(0)
    model: Any = MODELS[name]().train()
    slices = Slices(virtual, None if mesh is None else mesh["tensor"])
    parallelize(model, plan_for(name, model), slices)
    halves: Sequence[int] = range(2)
    if mesh is not None:
        for block in (*getattr(model, "blocks", ()), model):
            fully_shard(block, mesh=mesh["shard"])
            block.set_gradient_divide_factor(1.0)
            block.set_force_sum_reduction_for_comms(enable=True)
        halves = [mesh["shard"].get_local_rank()]
    update = updates(model)
    for step in range(STEPS):
        for half in halves:
            torch.manual_seed(2 * step + half)
            (loss_of(model, ids(step).chunk(2)[half], bf16=False) / 2).backward()
        update()
    return digest(dict(model.named_parameters()))


def trained_from_meta(slices: Slices) -> str:
    """Return the digest of a model that gets its parameters after it was split, as blocks of the whole ones."""
    torch.manual_seed(0)
    values = dict(gpt().named_parameters())
    with torch.device("meta"):
        model = gpt()
    parallelize(model, plan_of(model), slices)
    assert all(one.is_meta for one in model.parameters())
    model.to_empty(device="cpu")
    for name, parameter in model.named_parameters():
        block = block_of(parameter)
        of = values[name].detach()
        if block is not None:
            ends = zip(block.offset, local(parameter).shape, strict=True)
            of = of[tuple(slice(first, first + size) for first, size in ends)]
        local(parameter.detach()).copy_(of)
    return digest(dict(model.named_parameters()))


def blocks(square: DeviceMesh) -> str:
    """Return the digest of the parameters, put together of the blocks that checkpoints have of FSDP2's."""
    torch.manual_seed(0)
    model: Any = gpt()
    parallelize(model, plan_of(model), Slices(2, square["tensor"]))
    fully_shard(model, mesh=square["shard"])
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(
        found, [(name, block_of(one), local(one.detach())) for name, one in model.named_parameters()]
    )
    joined: dict[str, Tensor] = {}
    for name, block, values in (one for some in found for one in some):
        target = joined.setdefault(name, torch.zeros(block.whole))
        target[tuple(slice(at, at + size) for at, size in zip(block.offset, values.shape, strict=True))] = (
            values
        )
    return digest(joined)


def sums(slices: Slices) -> str:
    """Return the digest of sums over the slices; the last one is sent in shares, with a rest."""
    found = {}
    for size in (1, 1000, 40_001):
        parts = torch.randn(slices.virtual, size, generator=torch.Generator().manual_seed(size))
        found[str(size)] = slices.tree_sum(parts[slices.own.start : slices.own.stop].unbind())
    return digest(found)


def cases(meshes: Meshes, square: DeviceMesh) -> dict[str, Callable[[], str]]:
    """Return the cases by name: the model, the number of slices, that of processes, and what else it has."""
    found: dict[str, Callable[[], str]] = {}
    for name in MODELS:
        for virtual in (2, 4):
            for size, mesh in meshes.items():
                if size > virtual:
                    continue
                slices = Slices(virtual, mesh)
                found[f"{name}/{virtual}/{size}"] = lambda name=name, slices=slices: train(name, slices)
                found[f"{name}/{virtual}/{size}/bf16"] = lambda name=name, slices=slices: train(
                    name, slices, bf16=True
                )
        found[f"{name}/2/1/halves"] = lambda name=name: train_sharded(name, 2, None)
        found[f"{name}/2/2x2/halves"] = lambda name=name: train_sharded(name, 2, square)
    for size, mesh in meshes.items():
        found[f"sums/4/{size}"] = lambda mesh=mesh: sums(Slices(4, mesh))
        found[f"meta/4/{size}"] = lambda mesh=mesh: trained_from_meta(Slices(4, mesh))
    found["blocks/2/2x2"] = lambda: blocks(square)
    return found


def main() -> None:
    """Compute the cases that are named, after the file where processes meet and the number of this one."""
    torch.set_num_threads(1)
    store, rank = sys.argv[1:3]
    dist.init_process_group(
        "gloo", f"file://{store}", timeout=timedelta(seconds=60), rank=int(rank), world_size=4
    )
    square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("shard", "tensor"))
    line = init_device_mesh("cpu", (4,), mesh_dim_names=("tensor",))
    known = cases({1: None, 2: square["tensor"], 4: line}, square)
    for case in sys.argv[3:]:
        print(json.dumps([case, known[case]()]), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
