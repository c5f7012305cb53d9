"""The forward and backward passes that one process makes in a step of a pipeline."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from trainwright.frameworks.support.prefetcher import Samples
from trainwright.frameworks.torch.data import Tensors
from trainwright.frameworks.torch.outputs import Outputs
from trainwright.frameworks.torch.parallel.pipeline.schedule import Action, Kind
from trainwright.frameworks.torch.parallel.pipeline.shared import Exchange, SharedGradients
from trainwright.frameworks.torch.parallel.pipeline.split import Stages
from trainwright.frameworks.torch.parallel.pipeline.transfers import Transfers
from trainwright.frameworks.torch.parallel.pipeline.two_parts import WeightGradients, backward_input

_AHEAD = 3  # passes for which tensors are received, with the one that is made now


class Microbatch(NamedTuple):
    """A microbatch of a step.

    Attributes:
        samples: (microbatch,) the samples.
        rank: The virtual rank.
        seed: What its random numbers are a function of.
        factor: The factor on its loss.
        is_idle: Whether it adds nothing to the gradients, but other processes wait for its passes.
        ends_rank: Whether it is the last one of its virtual rank.
    """

    samples: Samples
    rank: int
    seed: int
    factor: float
    is_idle: bool
    ends_rank: bool


class Computation(Protocol):
    """The work that a step does for one microbatch, and for one virtual rank."""

    def take(self, microbatch: Microbatch) -> Tensors:
        """Return its tensors; called in the order of the microbatches."""
        ...

    def outputs(self, batch: Tensors) -> Outputs:
        """Call the model."""
        ...

    def loss(self, outputs: Outputs, batch: Tensors, microbatch: Microbatch) -> tuple[Tensor, Tensor]:
        """Return what is differentiated, and the microbatch's share of the loss, both ()."""
        ...

    def backward(
        self,
        output: Tensor,
        gradient: Tensor | None,
        microbatch: Microbatch,
        stage: Sequence[nn.Parameter],
    ) -> None:
        """Add the gradients of a stage's output, or of the loss, to those of the parameters."""
        ...

    def end_stage(self, parameters: Sequence[nn.Parameter]) -> None:
        """Put the gradients that a stage has of a virtual rank into its parameters."""
        ...

    def end_rank(self, rank: int) -> None:
        """Take the gradients of a virtual rank out of the parameters."""
        ...


class OwnStages(Protocol):
    """The stages of this process."""

    stages: Stages
    owned: list[int]
    parameters: list[nn.Parameter]

    def compute(self, stage: int, hidden: Tensor | None, seed: int, call: Callable[[], Outputs]) -> Outputs:
        """Make the forward pass of a stage."""
        ...

    def own_parameters(self, stage: int) -> Sequence[nn.Parameter]:
        """Return the parameters that a stage uses alone."""
        ...


class Passes:
    """The passes of one step in one process.

    The virtual ranks flow through the stages without a pause. So a stage may be at work for one while another
    stage of this process has not ended the one before: each keeps what it has until the process has ended it.
    """

    def __init__(
        self,
        pipeline: OwnStages,
        transfers: Transfers,
        shared: SharedGradients,
        microbatches: Sequence[Microbatch],
        computation: Computation,
    ) -> None:
        self._pipeline, self._transfers, self._shared = pipeline, transfers, shared
        self._microbatches, self._computation = microbatches, computation
        self._batches: dict[int, Tensors] = {}
        self._inputs: dict[tuple[int, int], Tensor] = {}  # by stage and microbatch
        self._outputs: dict[tuple[int, int], Tensor] = {}
        self._weights: dict[tuple[int, int], WeightGradients] = {}
        self._ended: dict[int, int] = {}  # stages of this process that have ended each virtual rank
        self._gradients: dict[int, list[tuple[nn.Parameter, Tensor | None]]] = {}  # by virtual rank
        self._exchanges: deque[tuple[int, Exchange]] = deque()
        self.losses: list[Tensor] = []
        self._make = {
            Kind.FORWARD: self._forward,
            Kind.BACKWARD: self._backward,
            Kind.INPUT: self._backward_input,
            Kind.WEIGHT: self._backward_weight,
        }

    def run(self, actions: Sequence[Action], ranks: Sequence[int]) -> None:
        """Make passes, and end the virtual ranks in their order."""
        counts = dict.fromkeys(ranks, 0)
        for one in self._microbatches:
            counts[one.rank] += 1
        left = deque(ranks)
        for number, action in enumerate(actions):
            self._expect(actions[number : number + _AHEAD])
            self._make[action.kind](action.stage, action.microbatch)
            while left and (not counts[left[0]] or self._has_ended(left[0])):
                self._exchange(left.popleft())
        for rank in left:  # without microbatches
            self._exchange(rank)
        while self._exchanges:
            self._end_rank(*self._exchanges.popleft())

    def _has_ended(self, rank: int) -> bool:
        return self._ended.get(rank) == len(self._pipeline.owned)

    def _expect(self, actions: Sequence[Action]) -> None:
        """Begin to receive what the next passes need."""
        for kind, stage, microbatch in actions:
            if kind is not Kind.FORWARD:
                if kind is Kind.WEIGHT or stage == self._pipeline.stages.count - 1:
                    continue
                if (output := self._outputs.get((stage, microbatch))) is None:
                    return
                self._transfers.expect_gradient(stage, microbatch, output)
            elif stage and not self._transfers.expect_hidden(stage, microbatch, self._batch(microbatch)):
                return

    def _batch(self, microbatch: int) -> Tensors:
        """Return the tensors of a microbatch, which are kept until its last forward pass here."""
        if microbatch not in self._batches:
            self._batches[microbatch] = self._computation.take(self._microbatches[microbatch])
        return self._batches[microbatch]

    def _forward(self, stage: int, number: int) -> None:
        microbatch, batch, pipeline = self._microbatches[number], self._batch(number), self._pipeline
        hidden = None
        if stage:
            hidden = self._transfers.hidden(stage, number, batch).requires_grad_()
            self._inputs[stage, number] = hidden
        output = pipeline.compute(stage, hidden, microbatch.seed, lambda: self._computation.outputs(batch))
        if stage == pipeline.stages.count - 1:
            output, loss = self._computation.loss(output, batch, microbatch)
            self.losses.append(loss)
        else:
            self._transfers.give_hidden(stage + 1, number, output.detach(), batch)
        self._outputs[stage, number] = output
        if stage == pipeline.owned[-1]:
            del self._batches[number]

    def _backward(self, stage: int, number: int) -> None:
        microbatch, output, gradient = self._backward_arguments(stage, number)
        if output.requires_grad:  # unless all is frozen
            self._shared.begin(stage)
            own = self._pipeline.own_parameters(stage)
            self._computation.backward(output, gradient, microbatch, own)
            self._shared.end(stage)
        self._give_gradient(stage, number)
        if microbatch.ends_rank:
            self._end_stage(stage, microbatch.rank)

    def _backward_arguments(self, stage: int, number: int) -> tuple[Microbatch, Tensor, Tensor | None]:
        """Return the microbatch, a stage's output of it, and the gradient of this, but for a loss."""
        output, gradient = self._outputs.pop((stage, number)), None
        if stage < self._pipeline.stages.count - 1:
            gradient = self._transfers.gradient(stage, number, output)
        return self._microbatches[number], output, gradient

    def _give_gradient(self, stage: int, number: int) -> None:
        """Hand the gradient of a stage's input back to the stage before it."""
        if stage:
            hidden = self._inputs.pop((stage, number))
            back = torch.zeros_like(hidden) if hidden.grad is None else hidden.grad.contiguous()
            self._transfers.give_gradient(stage - 1, number, back)

    def _backward_input(self, stage: int, number: int) -> None:
        """Make the first part of a backward pass, which adds nothing to the gradients of weights yet."""
        _, output, gradient = self._backward_arguments(stage, number)
        if output.requires_grad:
            self._weights[stage, number] = backward_input(output, gradient, self._inputs[stage, number])
        self._give_gradient(stage, number)

    def _backward_weight(self, stage: int, number: int) -> None:
        """Make the second part of a backward pass."""
        if (weights := self._weights.pop((stage, number), None)) is not None:
            self._shared.begin(stage)
            weights.add()
            self._shared.end(stage)
        microbatch = self._microbatches[number]
        if microbatch.ends_rank:
            self._end_stage(stage, microbatch.rank)

    def _end_stage(self, stage: int, rank: int) -> None:
        """Put aside the gradients of a virtual rank in one stage."""
        gradients = self._gradients.setdefault(rank, [])
        self._computation.end_stage(self._pipeline.own_parameters(stage))
        for parameter in self._pipeline.own_parameters(stage):
            gradients.append((parameter, parameter.grad))
            parameter.grad = None
        self._shared.end_rank(stage, rank)
        self._ended[rank] = self._ended.get(rank, 0) + 1

    def _exchange(self, rank: int) -> None:
        """End a virtual rank, or begin to: the sum of gradients that other processes have may come later."""
        if self._exchanges:
            self._end_rank(*self._exchanges.popleft())
        exchange = self._shared.exchange(rank, is_empty=rank not in self._ended)
        if exchange.is_remote:
            self._exchanges.append((rank, exchange))
        else:
            self._end_rank(rank, exchange)

    def _end_rank(self, rank: int, exchange: Exchange) -> None:
        """Give the parameters the gradients of a virtual rank, and have them taken."""
        parameters = self._pipeline.parameters
        later = [(one, one.grad) for one in parameters if one.grad is not None]
        for one, _ in later:
            one.grad = None
        for parameter, gradient in (*self._gradients.pop(rank, []), *exchange.finish()):
            parameter.grad = gradient
        self._computation.end_rank(rank)
        for one, gradient in later:
            one.grad = gradient
