"""Plans of tensor parallelism: what they split, what a split model computes, and what they refuse."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tensor_models import LLAMA, MODELS, OWN_PLAN, Own, gpt, huggingface, ids, loss_of, plan_for
from trainwright.errors import ModelError
from trainwright.frameworks.torch.models.mlp import Mlp as TableMlp
from trainwright.frameworks.torch.outputs import first_output
from trainwright.frameworks.torch.parallel.tensor.cross_entropy import SplitLogits
from trainwright.frameworks.torch.parallel.tensor.parallelize import parallelize
from trainwright.frameworks.torch.parallel.tensor.plan import Plan, layout_of
from trainwright.frameworks.torch.parallel.tensor.plans import plan_of
from trainwright.frameworks.torch.parallel.tensor.slices import Slices
from trainwright.frameworks.torch.state.unsaved import fingerprints


def gradients(model: nn.Module, *, training: bool = False) -> dict[str, Tensor]:
    torch.manual_seed(1)
    model.train(training).zero_grad()
    loss_of(model, ids(0), bf16=False).backward()
    return {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}


@pytest.mark.parametrize(
    "name",
    [
        *("gpt", "llama", "features", "text", "sequence", "vocabulary", "hf_vocabulary", "own"),
        *("hf_gpt2", "hf_gptj", "hf_bert", "hf_distilbert", "hf_opt", "lora_gpt2", "lora_bert"),
    ],
)
def test_slices_add_up_to_the_model(name: str) -> None:
    """Without dropout, loss and gradients are those of the model that is not split, up to rounding."""
    torch.manual_seed(0)
    model = MODELS[name]()
    with torch.no_grad():  # biases others than 0
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) / 50)
        for part in model.modules():
            for rate in ("p", "dropout", "attention_dropout"):
                if isinstance(getattr(part, rate, None), float):
                    setattr(part, rate, 0.0)
    training = "vocabulary" in name  # in evaluation, a split vocabulary is put together
    expected = gradients(model, training=training)
    split = parallelize(model, plan_for(name, model), Slices(4))
    found = gradients(model, training=training)
    assert found.keys() == expected.keys()
    for key, gradient in expected.items():
        torch.testing.assert_close(found[key], gradient, rtol=1e-4, atol=1e-6)
    assert any(not torch.equal(found[key], gradient) for key, gradient in expected.items())
    split.undo()
    for key, gradient in gradients(model, training=training).items():
        assert torch.equal(gradient, expected[key])


def test_each_slice_draws_its_own_numbers() -> None:
    """Equal slices with dropout differ; in evaluation nothing is drawn."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8, bias=False))
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].bias.fill_(1)
        model[2].weight.copy_(torch.eye(8))
    parallelize(model, Plan(["0"], ["2"]), Slices(4))
    torch.manual_seed(0)
    first, second = model(torch.zeros(50, 8)).view(50, 4, 2).unbind(1)[:2]
    assert not torch.equal(first, second)
    again = model(torch.zeros(50, 8)).view(50, 4, 2)[:, 0]
    assert not torch.equal(first, again)
    before = torch.get_rng_state()
    model.eval()(torch.zeros(50, 8))
    assert torch.equal(torch.get_rng_state(), before)


def test_dropout_at_the_end_is_that_of_the_sum() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)))
    x = torch.randn(50, 8)
    whole = model.eval()(x)
    split = parallelize(model, Plan(["0"], ["2.0"]), Slices(4))
    torch.testing.assert_close(model(x), whole)
    found = model.train()(x)
    kept = found != 0
    assert 0.4 < kept.float().mean() < 0.6
    torch.testing.assert_close(found[kept], 2 * whole[kept])
    split.undo()
    assert all("forward" not in vars(part) for part in model.modules())


class Between(nn.Module):
    """A feed-forward layer whose second half has the norm and the residual, and may get something else."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Sequential(nn.Linear(8, 8), nn.GELU())
        self.act, self.down, self.norm = nn.Tanh(), nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x: Tensor, *, skips: bool = False) -> Tensor:
        return self.norm(x + self.down(x if skips else self.act(self.up(x))))


def test_slices_go_from_module_to_module() -> None:
    torch.manual_seed(0)
    model, x = Between(), torch.randn(5, 8, requires_grad=True)
    (expected,) = torch.autograd.grad(model(x).pow(3).sum(), x)
    parallelize(model, Plan(["up.0"], ["down"], openings=["up", "act"]), Slices(4))
    (found,) = torch.autograd.grad(model(x).pow(3).sum(), x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    with pytest.raises(ModelError, match="down is rowwise, but gets what no colwise layer has given"):
        model(x, skips=True)


def test_a_copy_is_split_by_itself() -> None:
    model = gpt().eval()
    parallelize(model, plan_of(model), Slices(2))
    other = copy.deepcopy(model)
    expected = model(ids(0))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(other(ids(0)), expected)


def test_a_failure_leaves_the_module_whole() -> None:
    model = Own()
    parallelize(model, OWN_PLAN, Slices(2))
    before = dict(model.named_parameters())
    with pytest.raises(RuntimeError):
        model.attention(torch.zeros(2, 3, 7))
    after = dict(model.named_parameters())
    assert model.attention.heads == 4
    assert after.keys() == before.keys()
    assert all(after[name] is one for name, one in before.items())


class Block(nn.Module):
    """A feed-forward layer with norm, residual and dropout in one module, and a second one on demand."""

    def __init__(self, *, is_double: bool = False, shared: bool = False) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8) if shared else nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 8)
        self.more = nn.Linear(8, 8) if is_double else None

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(self.norm(x)))


def tied() -> nn.Module:
    model = Own()
    model.mlp[0].weight = model.attention.query.weight
    return model


@pytest.mark.parametrize(
    ("make", "plan", "virtual", "said"),
    [
        (Own, replace(OWN_PLAN, rowwise=["*.output", "mlp.7"]), 2, "'mlp.7' matches no module; nearest: mlp"),
        (Own, OWN_PLAN, 8, r"8 does not divide attention.heads \(4\); for this model: 1, 2, 4"),
        (Own, replace(OWN_PLAN, divided={}), 8, r"8 does not divide the outputs of mlp.0 \(92\).*: 1, 2, 4"),
        (Own, replace(OWN_PLAN, sizes={"num_heads": 6}), 4, r"4 does not divide num_heads \(6\).*: 1, 2$"),
        (Own, replace(OWN_PLAN, rowwise=["*.output"]), 2, "mlp.0 has no rowwise layer after it in mlp"),
        (Own, replace(OWN_PLAN, colwise=["embedding"]), 2, "embedding is a Embedding, which cannot be split"),
        (Own, replace(OWN_PLAN, rowwise=["mlp.0"]), 2, "mlp.0 is matched by both colwise and rowwise"),
        (Own, replace(OWN_PLAN, divided={"attention": ["head"]}), 2, "attention.head is not an integer"),
        (Own, replace(OWN_PLAN, sequence=["mlp.1"]), 2, "mlp.1 is in mlp, which is split"),
        (tied, OWN_PLAN, 2, "are one tensor, which cannot be split"),
        (lambda: Block(shared=True), Plan(["up"], ["down"]), 2, "norm has running statistics"),
        (
            lambda: Block(is_double=True),
            Plan(["up"], ["down", "more"]),
            2,
            r"several rowwise layers \(down, more\).*modules of their own",
        ),
    ],
)
def test_what_does_not_fit_is_said(make: Callable[[], Any], plan: Plan, virtual: int, said: str) -> None:
    with torch.device("meta"):
        model = make()
    with pytest.raises(ModelError, match=said):
        layout_of(model, plan, virtual)


@pytest.mark.parametrize(
    ("model", "plan"),
    [
        (Block(), Plan(["up"], ["down"])),
        (nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.Tanh())), Plan(["0"], ["1.0"])),
    ],
)
def test_what_a_block_computes_with_a_part_of_a_sum_is_refused(model: nn.Module, plan: Plan) -> None:
    parallelize(model, plan, Slices(2))
    with pytest.raises(ModelError, match="computes more after its rowwise layer"):
        model(torch.ones(2, 8))


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.size, self.heads = 2, 4
        self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        by_head = self.up(x).view(len(x), self.heads, self.size)
        whole: torch.Tensor = self.down(by_head.flatten(1))
        return whole


def test_numbers_of_the_whole_are_named_where_a_slice_fails() -> None:
    model = nn.Sequential(Heads())
    parallelize(model, Plan(["0.up"], ["0.down"]), Slices(2))
    with pytest.raises(
        ModelError, match=r'invalid for .*plan.divided: \{"\*": \[heads\]\}; it has heads, size$'
    ):
        model(torch.ones(3, 8))
    model = nn.Sequential(Heads())
    expected = model(torch.ones(3, 8))
    parallelize(model, Plan(["0.up"], ["0.down"], divided={"*": ["heads"]}), Slices(2))
    assert torch.allclose(model(torch.ones(3, 8)), expected, atol=1e-6)


def test_heads_that_the_slices_do_not_divide() -> None:
    with pytest.raises(ModelError, match=r"4 does not divide num_kv_heads \(2\); for this model: 1, 2$"):
        layout_of(model := gpt(48, 8, **LLAMA, num_kv_heads=2), plan_of(model), 4)
    with pytest.raises(ModelError, match="no plan is known for Mlp: name its modules"):
        plan_of(TableMlp(3, 2, [4]))


def test_a_split_vocabulary_is_whole_in_evaluation() -> None:
    torch.manual_seed(0)
    model = MODELS["vocabulary"]().eval()
    expected = model(ids(0))
    parallelize(model, plan_for("vocabulary", model), Slices(4))
    torch.testing.assert_close(model(ids(0)), expected)
    assert isinstance(model.train()(ids(0)), SplitLogits)
    with pytest.raises(ModelError, match="only the loss of language models can be computed"):
        first_output(model(ids(0)))


@pytest.mark.parametrize("virtual", [0, 3])
def test_slices_are_powers_of_two(virtual: int) -> None:
    with pytest.raises(ValueError, match="a power of two is needed"):
        Slices(virtual)


def test_models_of_transformers() -> None:
    model = huggingface("llama")
    layout = layout_of(model, plan_of(model), 4)
    assert [region.name for region in layout.regions] == [
        f"model.layers.{i}.{part}" for i in range(2) for part in ("self_attn", "mlp")
    ]
    with pytest.raises(ModelError, match=r"8 does not divide num_key_value_heads \(4\)"):
        layout_of(model, plan_of(model), 8)
    parallelize(model, plan_of(model), Slices(2))
    with pytest.raises(ModelError, match="cannot keep keys and values: call it with use_cache=False"):
        model(ids(0), use_cache=True)
    with pytest.raises(ModelError, match="qkv_proj of phi3 as colwise_gather_output"):
        plan_of(huggingface("phi3", pad_token_id=0))
    with pytest.raises(ModelError, match=r"no plan .* for gpt_bigcode .*use one of bert, .*gpt2"):
        plan_of(huggingface("gpt_bigcode"))
    with pytest.raises(
        ModelError, match=r"no plan .* for hunyuan_v1_dense"
    ):  # it has one that splits no layer
        plan_of(huggingface("hunyuan_v1_dense", head_dim=6, pad_token_id=0))


@pytest.mark.parametrize("name", ["own", "hf_gpt2", "hf_bert"])
def test_a_pass_leaves_no_state(name: str) -> None:
    """What training changes besides weights, no checkpoint holds."""
    model = MODELS[name]()
    sequence = ["embedding"] if name == "own" else []
    parallelize(model, replace(plan_for(name, model), sequence=sequence), Slices(2))
    before = fingerprints(model)
    gradients(model, training=True)
    model.zero_grad()
    assert fingerprints(model) == before
