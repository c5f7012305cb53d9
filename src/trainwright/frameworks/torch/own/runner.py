"""Steps of modules that say themselves how they are trained."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from trainwright.errors import ModelError
from trainwright.frameworks.support.prefetcher import Samples
from trainwright.frameworks.torch.data import TensorSource
from trainwright.frameworks.torch.generators import drawing_from, seed_generators
from trainwright.frameworks.torch.optim.ema import Average
from trainwright.frameworks.torch.optim.update import Update
from trainwright.frameworks.torch.own.training import OwnTraining
from trainwright.frameworks.torch.parallel import virtual_ranks
from trainwright.frameworks.torch.parallel.lockstep import Lockstep
from trainwright.frameworks.torch.step import UPDATE_STREAM, Take, TorchStep
from trainwright.numerals import listed
from trainwright.order import SampleOrder, stream_seed
from trainwright.types import StepResult

_UNEQUAL = (
    "training_step asks for other updates in one part of the batch than in another (virtual ranks and "
    "microbatches): let them depend on step.number, not on the rows"
)


class OwnStep(TorchStep):
    """Run the steps of a module that returns its loss; see `TorchStep`."""

    def __init__(self, own: OwnTraining, *args: Any, **options: Any) -> None:
        super().__init__(own.call, lambda loss, _: loss.float(), *args, **options)
        self._own = own

    def __call__(self, step: int, lr: float, order: SampleOrder, source: TensorSource) -> StepResult:
        """Run step number `step`, counted from 0; see `TorchStep`."""
        self._own.begin(step, order)
        with self._own.attached():
            return self._run(step, lr, order, source)

    def _run(self, step: int, lr: float, order: SampleOrder, source: TensorSource) -> StepResult:
        return super().__call__(step, lr, order, source)


class ManualStep(OwnStep):
    """Run the steps of a module that makes its updates itself.

    The microbatches of this process run in turns. Each waits where it asks for an update, until all have
    come there; then their gradients are added up, and the update is made once.

    Args:
        own: The module's step.
        updates: The updates by the names of the optimizers.
        average: The average of the weights, if there is one.
        args: The others of `TorchStep`.
        options: Its options.
    """

    def __init__(
        self,
        own: OwnTraining,
        updates: Mapping[str, Update],
        average: Average | None,
        *args: Any,
        **options: Any,
    ) -> None:
        super().__init__(own, *args, **options)
        self._updates, self._average = updates, average
        self._names = [*updates]
        # A LightningModule says itself when gradients are forgotten, which may be after the step.
        self.lightning = own.lightning
        if self.lightning is not None:
            self.lightning.updates = {name: one.parameters for name, one in updates.items()}
        self._left: set[str] = set()  # optimizers with gradients from an earlier step
        self._turns: dict[int, Lockstep] = {}  # by the number of microbatches
        self._is_direct = False  # whether gradients need not be added up
        self._made: list[_Microbatch] = []
        self._step, self._lr, self._count = 0, 0.0, 0

    def _run(self, step: int, lr: float, order: SampleOrder, source: TensorSource) -> StepResult:
        if self._freezing is not None and self._freezing.apply(step):
            self._prepare_sums()
        samples, ranks = Samples.of_step(order, step), self._settings.virtual_ranks
        parts, size = virtual_ranks.cut(samples, ranks), self._settings.microbatch_size
        self._step, self._lr, self._count = step, lr, 0
        self._made = [
            _Microbatch(
                self, rank, some, stream_seed(self._stream, *((step, rank) if ranks > 1 else (step,)), number)
            )
            for rank in self._mine
            for number, some in enumerate(virtual_ranks.microbatches(parts[rank], size))
        ]
        world, count = self._strategy.world, len(self._made)
        self._is_direct = count == 1 and ranks == 1 and world.size == 1 and self.lightning is None
        if count not in self._turns:
            self._turns[count] = Lockstep(self._generators, world, count, _UNEQUAL)
        compute = partial(self._computed, source.take_from, len(samples))
        losses = self._turns[count].run([partial(compute, one) for one in self._made])
        for one in self._parameters:
            one.grad = None
        if self.lightning is not None:
            self._left = self._left - self._made[0].zeroed | self._made[0].left(self._updates)
        if self._average is not None:
            self._average.update(step + 1)
        ranked = list(zip([one.rank for one in self._made], losses, strict=True))
        by_rank = [torch.stack([loss for of, loss in ranked if of == rank]).sum() for rank in self._mine]
        self._made = []
        loss = by_rank[0] if ranks == 1 and world.size == 1 else torch.stack(by_rank)
        return StepResult(loss, len(samples))

    def _computed(self, take: Take, total: int, microbatch: _Microbatch) -> Tensor:
        """Call the module with a microbatch; return its share of the loss, ()."""
        seed_generators(self._generators, microbatch.seed)
        microbatch.factor = len(microbatch.samples) / total
        with self._precision.autocast():
            loss = self._own.made(take(microbatch.samples), microbatch)
        return microbatch.loss if loss is None else loss.detach().float() * microbatch.factor

    def update(self, name: str | None) -> None:
        """Make an update once all microbatches of this process have come here.

        Raises:
            ModelError: No optimizer has this name, or they ask for different ones.
        """
        if name is None and len(self._names) == 1:
            (name,) = self._names
        if name is None or name not in self._updates:
            asked = "without a name" if name is None else repr(name)
            raise ModelError(f"step.update: {asked} given; the optimizers are {listed(self._names)}")
        self._turns[len(self._made)].meet(name, self._updated)

    def _updated(self, names: Sequence[str]) -> None:
        name, update = names[0], self._updates[names[0]]
        if {*names} != {name}:
            raise ModelError(_UNEQUAL)
        if name in self._left and name not in self._made[0].zeroed:
            raise ModelError(
                f"optimizer {name} has gradients of an earlier step, which no checkpoint holds: call "
                "zero_grad before the backward pass; for larger batches set training.batch_size and "
                "microbatch_size"
            )
        self._turns[len(self._made)].agree(self._names.index(name))
        if not self._is_direct:
            self._add_up(update)
        self._count += 1
        if not update.may_draw:
            update(self._step, self._lr)
        else:
            states = [one.get_state() for one in self._generators]
            with drawing_from(
                self._generators, stream_seed(self._stream, self._step, UPDATE_STREAM, self._count)
            ):
                update(self._step, self._lr)
            for generator, state in zip(self._generators, states, strict=True):
                generator.set_state(state)
        for one in self._made:
            one.is_spent = True

    def _add_up(self, update: Update) -> None:
        """Set the gradients of the parameters of an update to the sums over all microbatches."""
        has_tree = self._settings.virtual_ranks > 1 or self._strategy.world.size > 1
        for one in self._parameters:
            one.grad = None
        for rank in self._mine:
            for microbatch in self._made:
                if microbatch.rank == rank:
                    microbatch.gradients.take(update.parameters, keeps=self.lightning is not None)
            if has_tree:
                self._strategy.end_part(is_last=rank == self._mine[-1])
        if has_tree:
            self._strategy.reduce()


class _Microbatch:
    """The backward passes and updates of a microbatch.

    Args:
        step: The steps of the run.
        rank: Its virtual rank.
        samples: Its samples.
        seed: The seed of its random numbers.
    """

    def __init__(self, step: ManualStep, rank: int, samples: Samples, seed: int) -> None:
        self.rank, self.samples, self.seed, self.factor = rank, samples, seed, 1.0
        self.gradients = virtual_ranks.PartGradients(step._parameters)
        self.zeroed: set[str] = set()  # optimizers whose gradients were forgotten in this step
        self.is_spent = False  # whether an update was made since the last backward pass
        self.only: Collection[Tensor] | None = None  # the parameters that get gradients; None: all
        self.loss = torch.zeros((), device=step._device)  # the sum of what `backward` was given
        self._step = step

    def backward(self, loss: Tensor, *, retain_graph: bool = False) -> None:
        """Add the gradients of a loss, ()."""
        with torch.autocast(self._step._device.type, enabled=False):
            scaled = loss.reshape(()).float() * self.factor
            self.loss = self.loss + scaled.detach()
            if not self._step._is_direct:
                if self.is_spent and self._step.lightning is None:
                    self.gradients.clear()
                self.gradients.add(scaled, only=self.only, retains=retain_graph)
            else:
                if self.is_spent:
                    for one in self._step._parameters:
                        one.grad = None
                scaled.backward(retain_graph=retain_graph, inputs=None if self.only is None else [*self.only])
        self.is_spent = False

    def update(self, name: str | None = None) -> None:
        """Wait for the others, and update the parameters of an optimizer."""
        self._step.update(name)

    def zero(self, name: str) -> None:
        """Forget the gradients of the parameters of an optimizer."""
        self.gradients.drop(self._step._updates[name].parameters)
        self.zeroed.add(name)

    def left(self, updates: Mapping[str, Update]) -> set[str]:
        """Return the optimizers that have gradients."""
        return {name for name, one in updates.items() if self.gradients.has(one.parameters)}
