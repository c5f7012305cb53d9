"""The options of the built-in GPT, against Llama of `transformers`, a loop by hand, and formulas."""

from __future__ import annotations

import importlib
import math
from typing import Any

import pytest
import torch
from torch.nn import functional

from late import Late
from trainwright.errors import ModelError
from trainwright.frameworks.torch import work
from trainwright.frameworks.torch.models import build_model
from trainwright.frameworks.torch.models.attention import rotated, rotation_of
from trainwright.frameworks.torch.models.gpt import Gpt
from trainwright.frameworks.torch.params import GptParams
from trainwright.types import ArraySpec, DataInfo

transformers = Late(lambda: importlib.import_module("transformers"))

VOCABULARY, LENGTH = 61, 12
LLAMA = {"position": "rotary", "normalization": "rms", "activation": "swiglu", "bias": False}


def ids(seed: int = 0, rows: int = 3) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (rows, LENGTH), generator=torch.Generator().manual_seed(seed))


def gpt(**options: Any) -> Gpt:
    torch.manual_seed(0)
    return Gpt(VOCABULARY, LENGTH, 32, 2, 4, **options).eval()


def split(weight: torch.Tensor, kv_heads: int) -> tuple[torch.Tensor, ...]:
    """Return the rows of queries, keys and values, which are laid out by head of keys and values."""
    rows = weight.view(kv_heads, -1, 8, 32)  # (kv heads, their queries + 2, head size, hidden size)
    return rows[:, :-2].reshape(-1, 32), rows[:, -2].reshape(-1, 32), rows[:, -1].reshape(-1, 32)


@pytest.mark.soak  # its library takes seconds to import
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_it_is_a_llama_with_the_same_weights(kv_heads: int) -> None:
    ours = gpt(**LLAMA, num_kv_heads=kv_heads, tie_embeddings=False, rotary_base=500.0)
    inner = ours.blocks[0].mlp.up_proj.out_features
    assert inner == 88  # 8/3 of 32, rounded up to a multiple of 8
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=inner,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        tie_word_embeddings=False,
    )
    theirs = transformers.LlamaForCausalLM(config).eval()
    weights = {
        "model.embed_tokens.weight": ours.token_embedding.weight,
        "model.norm.weight": ours.norm.weight,
        "lm_head.weight": ours.head.weight,
    }
    for i, block in enumerate(ours.blocks):
        with torch.no_grad():
            block.attention_norm.weight.uniform_(0.5, 1.5)  # others than 1
        query, key, value = split(block.attention.qkv_proj.weight, kv_heads)
        parts = {
            "self_attn.q_proj": query,
            "self_attn.k_proj": key,
            "self_attn.v_proj": value,
            "self_attn.o_proj": block.attention.out_proj.weight,
            "mlp.gate_proj": block.mlp.gate_proj.weight,
            "mlp.up_proj": block.mlp.up_proj.weight,
            "mlp.down_proj": block.mlp.down_proj.weight,
            "input_layernorm": block.attention_norm.weight,
            "post_attention_layernorm": block.mlp_norm.weight,
        }
        weights |= {f"model.layers.{i}.{name}.weight": 1 * weight for name, weight in parts.items()}
    theirs.load_state_dict(weights)
    with torch.no_grad():
        torch.testing.assert_close(ours(ids()), theirs(ids()).logits, rtol=1e-5, atol=1e-5)


def test_a_block_is_what_the_papers_say() -> None:
    """Two heads read each head of keys and values; RMSNorm, softmax and SwiGLU are written out."""
    model = gpt(**LLAMA, num_kv_heads=2)
    block, hidden = model.blocks[0], torch.randn(LENGTH, 32, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        block.attention_norm.weight.uniform_(0.5, 1.5)
        found = block(hidden[None], rotation_of(torch.arange(LENGTH), 8, 10_000.0))[0]

        def normalized(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return rows / (rows.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight

        normal = normalized(hidden, block.attention_norm.weight)
        query, key, value = (normal @ part.T for part in split(block.attention.qkv_proj.weight, 2))
        rotation = rotation_of(torch.arange(LENGTH), 8, 10_000.0)
        mixed = torch.empty(LENGTH, 32)
        for head in range(4):
            own, shared = slice(8 * head, 8 * head + 8), slice(8 * (head // 2), 8 * (head // 2) + 8)
            q, k = (rotated(part[None, None], rotation)[0, 0] for part in (query[:, own], key[:, shared]))
            for i in range(LENGTH):
                weights = torch.softmax(q[i] @ k[: i + 1].T / 8**0.5, dim=0)
                mixed[i, own] = weights @ value[: i + 1, shared]
        attended = hidden + mixed @ block.attention.out_proj.weight.T
        normal = normalized(attended, block.mlp_norm.weight)
        gate = normal @ block.mlp.gate_proj.weight.T
        up = gate * torch.sigmoid(gate) * (normal @ block.mlp.up_proj.weight.T)
        torch.testing.assert_close(found, attended + up @ block.mlp.down_proj.weight.T, rtol=1e-5, atol=1e-6)


def test_rotations_are_those_of_the_formula() -> None:
    """Scores depend on the distance alone; element i turns by position / base^(2 i / size)."""
    heads = torch.randn(1, 2, LENGTH, 6, generator=torch.Generator().manual_seed(1))
    found = rotated(heads, rotation_of(torch.arange(LENGTH), 6, 100.0))
    for position in (0, 5, 11):
        for i in range(3):
            turn = torch.polar(torch.ones(()), torch.tensor(position / 100.0 ** (2 * i / 6)))
            pair = torch.complex(heads[0, :, position, i], heads[0, :, position, i + 3]) * turn
            torch.testing.assert_close(found[0, :, position, i], pair.real)
            torch.testing.assert_close(found[0, :, position, i + 3], pair.imag)
    same = rotated(heads[:, :, :1].expand(-1, -1, LENGTH, -1), rotation_of(torch.arange(LENGTH), 6, 100.0))
    scores = same @ same.mT  # (1, 2, length, length)
    torch.testing.assert_close(scores[0, :, 2, 5], scores[0, :, 7, 10])


@pytest.mark.parametrize(
    "options", [{}, LLAMA, {**LLAMA, "tie_embeddings": False, "num_kv_heads": 2}, {"bias": False}]
)
def test_it_knows_nothing_at_first(options: dict[str, Any]) -> None:
    """The loss begins at that of equal probabilities, ln(vocabulary)."""
    model = gpt(**options)
    with torch.no_grad():
        loss = functional.cross_entropy(model(ids(2, 50)).flatten(0, 1), ids(3, 50).flatten())
    assert float(loss) == pytest.approx(math.log(VOCABULARY), rel=0.01)


@pytest.mark.parametrize("options", [LLAMA, {**LLAMA, "num_kv_heads": 2}, {"bias": False}])
def test_no_position_sees_later_tokens(options: dict[str, Any]) -> None:
    model, one = gpt(**options), ids()
    other = one.clone()
    other[:, 7:] = ids(9)[:, 7:]
    with torch.no_grad():
        torch.testing.assert_close(model(one)[:, :7], model(other)[:, :7])
        assert not torch.allclose(model(one)[:, 7:], model(other)[:, 7:])
    by_place = gpt(**options)(one.flip(1))
    assert not torch.allclose(by_place[:, -1], model(one)[:, 0], atol=1e-3)


def test_options_change_what_they_say() -> None:
    names = {name for name, _ in gpt().named_parameters()}
    assert {name for name, _ in gpt(bias=False).named_parameters()} == {
        name for name in names if not name.endswith("bias")
    }
    assert names - {name for name, _ in gpt(position="rotary").named_parameters()} == {
        "position_embedding.weight"
    }
    assert {name for name, _ in gpt(tie_embeddings=False).named_parameters()} - names == {"head.weight"}
    assert gpt(intermediate_size=20).blocks[0].mlp.up_proj.weight.shape == (20, 32)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_kv_heads": 3}, r"num_kv_heads \(3\) must divide num_heads \(4\)"),
        ({"position": "rotary", "hidden_size": 20}, "rotary positions need heads of an even size, not 5"),
    ],
)
def test_what_does_not_fit_is_said(options: dict[str, Any], said: str) -> None:
    info = DataInfo("language_modeling", {"input_ids": ArraySpec((LENGTH,), "int64")}, VOCABULARY)
    with pytest.raises(ModelError, match=said):
        build_model("gpt", {"hidden_size": 32, **options}, info)


@pytest.mark.parametrize("options", [{}, LLAMA, {**LLAMA, "num_kv_heads": 2}])
def test_the_work_is_that_of_its_weights(options: dict[str, Any]) -> None:
    """A weight of a matrix is used once for each token, and each token looks at all others."""
    info = DataInfo("language_modeling", {"input_ids": ArraySpec((LENGTH,), "int64")}, VOCABULARY)
    params = GptParams(hidden_size=48, num_layers=3, **options).model_dump()
    model = Gpt(VOCABULARY, LENGTH, **params)
    matrices = sum(
        weight.numel()
        for name, weight in model.named_parameters()
        if weight.dim() == 2 and "position" not in name
    )
    attention = 3 * 2 * LENGTH * 48
    assert work._gpt(params, info) == pytest.approx(LENGTH * (matrices + attention))
