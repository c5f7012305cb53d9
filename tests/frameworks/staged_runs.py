"""Short trainings in a pipeline, of one process or several, for the tests."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn import functional

from trainwright.config.schema import TrainingConfig
from trainwright.frameworks.support.prefetcher import Samples
from trainwright.frameworks.torch.models.gpt import Gpt
from trainwright.frameworks.torch.models.text_transformer import TextTransformer
from trainwright.frameworks.torch.optim.build import build_optimizer
from trainwright.frameworks.torch.optim.update import Clipping, Update
from trainwright.frameworks.torch.outputs import as_float, first_output
from trainwright.frameworks.torch.parallel.pipeline.links import Links
from trainwright.frameworks.torch.parallel.pipeline.pipeline import Pipeline
from trainwright.frameworks.torch.parallel.pipeline.schedule import ONE_F_ONE_B
from trainwright.frameworks.torch.parallel.pipeline.split import split
from trainwright.frameworks.torch.parallel.pipeline.uses import uses_of
from trainwright.frameworks.torch.parallel.strategy import Strategy
from trainwright.frameworks.torch.precision import Precision
from trainwright.frameworks.torch.step import StepSettings, TorchStep
from trainwright.order import Cursor
from trainwright.types import Ids
from trainwright.world import Mesh, World

SEED, WORDS, LENGTH = 7, 23, 6
BATCHES = (13, 16, 3, 13)  # samples of each step: ranks of unequal sizes, and with 4 ranks an empty one
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Case:
    """A training: what its bits depend on, and, by name, how it is spread over processes."""

    model: str = "gpt"
    stages: int = 2
    ranks: int = 1
    microbatch: int = 4
    precision: str = "fp32"
    first_blocks: tuple[str, ...] = ()
    schedule: str = field(default=ONE_F_ONE_B)
    processes: int = 1
    separate: bool = False


class Row(World):
    """The processes of one pipeline."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size, self.mesh = rank, size, Mesh(pipeline=size)


class Batches:
    """The order of the samples, and the samples."""

    def __init__(self) -> None:
        random = np.random.default_rng(3)
        self._order = [random.permutation(40)[:size] for size in BATCHES]
        self._tokens = torch.from_numpy(random.integers(1, WORDS, (40, LENGTH + 1)))

    def batch(self, step: int) -> Ids:
        return self._order[step]

    def cursor(self, step: int) -> Cursor:
        return Cursor(step, 0, 0)

    def draw_numbers(self, step: int) -> None:
        return None

    def take(self, ids: Ids) -> dict[str, Tensor]:
        tokens = self._tokens[torch.from_numpy(ids)]
        return {"input_ids": tokens[:, :-1], "labels": tokens[:, 1:]}

    def take_from(self, samples: Samples) -> dict[str, Tensor]:
        return self.take(samples.ids)


def _llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=LENGTH,
        tie_word_embeddings=True,
        attention_dropout=0.1,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def _gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=16, n_layer=4, n_head=2, use_cache=False)
    return GPT2LMHeadModel(config)


class Repeated(nn.Module):
    """Blocks that are one module, called with their hidden state by name, and a frozen embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(16))
        self.embedding = nn.Embedding(WORDS, 16)
        self.embedding.weight.requires_grad_(False)
        block = _Named()
        self.blocks = nn.ModuleList([block, _Named(), block, block])
        self.head = nn.Linear(16, WORDS)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Map (rows, length) tokens to (rows, length, words)."""
        hidden = self.embedding(input_ids) * self.scale
        for block in self.blocks:
            hidden, _ = block(hidden=hidden, mask=input_ids > 3)
            hidden = hidden * 1.5
        logits: Tensor = self.head(hidden)
        return logits


class _Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.dropout = nn.Linear(16, 16), nn.Dropout(0.1)

    def forward(self, hidden: Tensor, mask: Tensor) -> tuple[Tensor, None]:
        """Map (rows, length, 16) to the same shape."""
        return hidden + self.dropout(self.linear(hidden).tanh()) * mask[..., None], None


def gpt(**options: Any) -> Gpt:
    return Gpt(WORDS, LENGTH, 16, 4, 2, 0.1, **options)


MODELS: Mapping[str, Callable[[], nn.Module]] = {
    "gpt": gpt,
    "rotary": lambda: gpt(position="rotary", normalization="rms", bias=False, activation="swiglu"),
    "untied": lambda: gpt(tie_embeddings=False),
    "encoder": lambda: TextTransformer(WORDS, LENGTH, (LENGTH, WORDS), 16, 4, 2, 0.1),
    "llama": _llama,
    "gpt2": _gpt2,
    "repeated": Repeated,
}


def loss_of(outputs: Any, batch: Mapping[str, Tensor]) -> Tensor:
    """The mean over the tokens."""
    logits = first_output(as_float(outputs))
    return functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())


def model_of(name: str) -> nn.Module:
    torch.manual_seed(1)
    return MODELS[name]()


class Run:
    """The parts of a training in this process."""

    def __init__(self, case: Case, group: Any = None) -> None:
        self.module, self.batches = model_of(case.model), Batches()
        precision = Precision(case.precision, CPU)

        def call(batch: Mapping[str, Tensor]) -> Any:
            return self.module(batch["input_ids"])

        self.call = call
        stages = split(self.module, case.stages, case.first_blocks)
        uses = uses_of(self.module, stages, call, self.batches.take(np.zeros(1, np.int64)))
        links = None if group is None else Links(group, separate=case.separate)
        self.pipeline = Pipeline(self.module, stages, uses, links=links, name=case.schedule)
        self.pipeline.place(CPU)
        parameters = list(self.module.parameters())
        config = TrainingConfig.model_validate({"optimizer": {"type": "adamw"}, "weight_decay": 0.0})
        self.optimizer = build_optimizer(config, self.module, CPU)
        update = Update(self.optimizer, parameters, precision, Clipping())
        settings = StepSettings(SEED, case.microbatch, case.ranks)
        world = Row(self.pipeline.index, self.pipeline.size)
        self.step = TorchStep(
            call,
            loss_of,
            update,
            precision,
            settings,
            strategy=Strategy(world),
            pipeline=self.pipeline,
        )

    def train(self) -> list[list[float]]:
        """Train; return the losses of each step, by virtual rank."""
        batches: Any = self.batches
        return [self.step(number, 1e-2, batches, batches).loss.tolist() for number in range(len(BATCHES))]


def digest(tensors: Mapping[str, Tensor]) -> str:
    """Return the hash of named tensors."""
    sha256 = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        sha256.update(
            name.encode() + tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        )
    return sha256.hexdigest()


@dataclass(frozen=True)
class Result:
    """What a training ends with."""

    digest: str
    losses: list[list[float]]
    outputs: str
    held: list[list[str]]


def result_of(case: Case, group: Any = None) -> Result:
    """Train, and put together what the processes have; raise if copies of a tensor differ."""
    run = Run(case, group)
    losses = run.train()
    run.module.eval()
    with torch.no_grad(), run.step._precision.autocast():
        shown = [
            run.pipeline.predict(3, run.batches.take(np.arange(5 + part)), run.call) for part in range(3)
        ]
    mine = {
        "state": dict(run.module.state_dict()),
        "losses": losses,
        "outputs": [None if one is None else first_output(one).float() for one in shown],
        "elsewhere": sorted(run.pipeline.elsewhere),
    }
    everyone = [mine]
    if group is not None:
        everyone = [mine] * dist.get_world_size(group)
        dist.all_gather_object(everyone, mine, group=group)
    whole: dict[str, Tensor] = {}
    for one in everyone:
        for name, tensor in one["state"].items():
            if not torch.equal(whole.setdefault(name, tensor), tensor):
                raise AssertionError(f"copies of {name} differ")
    for one in everyone:
        assert sorted({*one["state"], *one["elsewhere"]}) == sorted(whole)
    last = everyone[-1]
    outputs = digest({str(number): one for number, one in enumerate(last["outputs"])})
    return Result(digest(whole), last["losses"], outputs, [sorted(one["state"]) for one in everyone])


def _member(rank: int, size: int, store: str, cases: list[Case], answers: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    groups = {count: dist.new_group(list(range(count))) for count in range(1, size + 1)}
    for case in cases:
        if rank < case.processes:
            result = result_of(case, groups[case.processes])
            if rank == 0:
                answers.put((case, result))
    dist.barrier()
    dist.destroy_process_group()


def in_processes(cases: list[Case], store: Any) -> dict[Case, Result]:
    """Return what trainings in several processes end with."""
    answers = mp.get_context("spawn").SimpleQueue()
    size = max(case.processes for case in cases)
    context = mp.spawn(_member, args=(size, str(store), cases, answers), nprocs=size, join=False)
    results: dict[Case, Result] = {}
    while len(results) < len(cases):
        if answers.empty() and context.join(timeout=0.05):
            break
        while not answers.empty():
            case, result = answers.get()
            results[case] = result
    while not context.join():
        pass
    return results
