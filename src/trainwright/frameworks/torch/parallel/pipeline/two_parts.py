"""A backward pass in two parts: the gradient of a stage's input first, those of its weights later.

Both parts call the operations of autograd's graph that one whole pass would call, each of which makes only
the gradients that are asked for. So the bits are those of a whole pass. The idea is that of
`torch.distributed.pipelining`, which goes through all operations between two uses of a weight a second time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from trainwright.errors import ModelError

KEY = "distributed.schedule"
_LEAF, _REENTRANT = "AccumulateGrad", "CheckpointFunctionBackward"
REFUSAL = (
    f"{KEY}: zero_bubble cannot divide the backward pass of a model that saves activations in its own way, "
    "as with torch.utils.checkpoint; use 1f1b or interleaved, or training.activation_checkpointing"
)
Leaves = dict[Node, None]  # an ordered set


class _Junction(NamedTuple):
    """An operation that has weights, or what they were computed from, among its arguments.

    Attributes:
        node: The operation.
        weights: The leaves of the graph whose gradients it makes, and no other operation.
        gradients: The gradients of the operation's outputs, once they are known.
    """

    node: Node
    weights: Sequence[Tensor]
    gradients: list[Tensor | None]


class WeightGradients:
    """The gradients of a stage's weights that are still to be made, or added up, for a microbatch.

    It keeps the activations, and a gradient for each operation with weights.

    Args:
        junctions: The operations that make them.
        repeated: Those that have been made, by the leaf of the graph.
    """

    def __init__(
        self, junctions: Sequence[_Junction], repeated: Sequence[tuple[Node, Tensor | None]]
    ) -> None:
        ready = [_Junction(leaf, [_variable(leaf)], [gradient]) for leaf, gradient in repeated]
        self._junctions = [*junctions, *ready]

    def add(self) -> None:
        """Make the gradients, and add them to those that the weights have."""
        for node, weights, gradients in self._junctions:
            known = [(GradientEdge(node, i), one) for i, one in enumerate(gradients) if one is not None]
            if not known:
                continue
            # Hooks of tensors have changed the gradients in the first part, and must not do so again.
            handle = node.register_prehook(lambda _, final=tuple(gradients): final)
            try:
                edges, values = zip(*known, strict=True)
                torch.autograd.backward(edges, values, inputs=weights)
            finally:
                handle.remove()
        self._junctions = []


def backward_input(output: Tensor, gradient: Tensor | None, hidden: Tensor) -> WeightGradients:
    """Make the first part of the backward pass of a stage, and set the gradient of the hidden state.

    Args:
        output: The hidden state that the stage hands on, or the loss, ().
        gradient: The gradient of the output; None for a loss.
        hidden: The hidden state with which the stage begins, a leaf.

    Raises:
        ModelError: The pass cannot be divided.
    """
    root = output.grad_fn
    assert root is not None, "a stage computes something"
    way, found, weights = _divided(root, hidden)
    if root not in way:  # all is left to the second part
        gradients: list[Tensor | None] = [None] * (output.output_nr + 1)
        gradients[output.output_nr] = torch.ones_like(output) if gradient is None else gradient
        return WeightGradients([_Junction(root, [*map(_variable, weights[root])], gradients)], [])
    counts = Counter(leaf for _, own in found for leaf in own)
    junctions = [
        _Junction(node, [_variable(leaf) for leaf in own if counts[leaf] == 1], []) for node, own in found
    ]
    junctions = [one for one in junctions if one.weights]
    # From one of the operations that have such a weight, others are reached on the way of the first part.
    repeated = [leaf for leaf, count in counts.items() if count > 1]
    handles = [
        one.node.register_prehook(lambda now, kept=one.gradients: kept.extend(now)) for one in junctions
    ]
    try:
        back, *early = torch.autograd.grad(
            output, [hidden, *map(_variable, repeated)], gradient, retain_graph=True, allow_unused=True
        )
    finally:
        for handle in handles:
            handle.remove()
    hidden.grad = back
    return WeightGradients(junctions, list(zip(repeated, early, strict=True)))


def _divided(root: Node, hidden: Tensor) -> tuple[set[Node], list[tuple[Node, Leaves]], dict[Node, Leaves]]:
    """Return how a graph is divided.

    Returns:
        The nodes on the way to the hidden state; those of them that lead to weights off this way, from the
        root on, and these; the weights below each of the other nodes.

    Raises:
        ModelError: A node can make only all gradients at once.
    """
    way: set[Node] = set()
    found: list[tuple[Node, Leaves]] = []
    weights: dict[Node, Leaves] = {}
    for node, following in _from_the_leaves(root):
        kind = type(node).__name__
        if kind == _REENTRANT:
            raise ModelError(REFUSAL)
        own: Leaves = {}
        for one in following:
            own |= weights.get(one, {})
        if kind == _LEAF and _variable(node) is not hidden:
            weights[node] = {node: None}
        elif kind != _LEAF and way.isdisjoint(following):
            weights[node] = own
        else:
            way.add(node)
            if own:
                found.append((node, own))
    return way, found[::-1], weights


def _variable(leaf: Node) -> Tensor:
    variable: Any = leaf.variable  # type: ignore[attr-defined]
    assert isinstance(variable, Tensor)
    return variable


def _from_the_leaves(root: Node) -> Iterator[tuple[Node, list[Node]]]:
    """Yield each node of a graph with those that follow it in a backward pass, which come before it."""
    seen, todo = {root}, [(root, iter(following := _following(root)), following)]
    while todo:
        node, left, following = todo[-1]
        for one in left:
            if one not in seen:
                seen.add(one)
                todo.append((one, iter(below := _following(one)), below))
                break
        else:
            todo.pop()
            yield node, following


def _following(node: Node) -> list[Node]:
    return [one for one, _ in node.next_functions if one is not None]
