"""Steps and predictions on TensorFlow: each a graph, traced once."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from typing import Any

from trainyard.errors import ModelError
from trainyard.frameworks.keras.engine import Learner, shares
from trainyard.require import require
from trainyard.types import Array, Batch

log = logging.getLogger("trainyard")

Graph = Any  # a tf.function with one signature
_CHANCE = re.compile("Random|Rng|Multinomial|TruncatedNormal|Stateful(Uniform|StandardNormal)|PyFunc")


class TensorflowEngine:
    """See `Engine`. The number of rows is left open in every graph, so that a graph does not depend on what came first."""

    def __init__(self, keras: Any, learner: Learner) -> None:
        self._tf: Any = require("tensorflow", "keras")
        self._keras = keras
        self._learner = learner
        self._variables = list(learner.model.trainable_variables)
        self._graphs: dict[Any, Graph] = {}
        self._update = self._tf.function(self._apply)

    def step(self, parts: Sequence[Batch], seeds: Sequence[Array], lr: float) -> Any:
        """See `Engine`."""
        rate = self._tf.constant(lr, dtype="float32")
        if len(parts) == 1:
            return self._graph(self._whole, parts[0], rate)(*self._tensors(parts[0], seeds[0]), rate)
        total, gradients = None, [None] * len(self._variables)
        for part, some, share in zip(parts, seeds, shares(parts), strict=True):
            weight = self._tf.constant(share, dtype="float32")
            loss, found = self._graph(self._gradients, part, weight)(*self._tensors(part, some), weight)
            total = loss if total is None else total + loss
            gradients = [new if old is None else old + new for old, new in zip(gradients, found, strict=True)]
        self._update(gradients, rate)
        return total

    def forward(self, batch: Batch, seeds: Array) -> tuple[Array, float]:
        """See `Engine`."""
        outputs, loss = self._graph(self._predict, batch)(*self._tensors(batch, seeds))
        return outputs.numpy(), float(loss)

    def publish(self) -> None:
        """The variables are the state."""

    def adopt(self) -> None:
        """The variables are the state."""

    def _tensors(self, batch: Batch, seeds: Array) -> list[Any]:
        return [self._tf.constant(array) for array in (batch.features, batch.targets, seeds)]

    def _graph(self, body: Callable[..., Any], batch: Batch, *scalars: Any) -> Graph:
        """The graph of a method for batches of such samples."""
        key = (body.__name__, *((array.dtype.str, array.shape[1:]) for array in batch))
        if key not in self._graphs:
            spec = self._tf.TensorSpec
            rows = [spec((None, *array.shape[1:]), array.dtype) for array in batch]
            rest = [
                spec((len(self._learner.generators), 2), "int64"),
                *(spec((), "float32") for _ in scalars),
            ]
            self._graphs[key] = self._tf.function(body).get_concrete_function(*rows, *rest)
            self._look_for_chance(self._graphs[key])
        return self._graphs[key]

    def _look_for_chance(self, graph: Any) -> None:
        """TensorFlow's own generators have a state of their own, which no checkpoint holds."""
        found = {
            op.type
            for op in graph.graph.get_operations()
            if op.op_def.is_stateful and _CHANCE.search(op.type)
        }
        if not found:
            return
        told = (
            f"the model draws from TensorFlow's own generators ({', '.join(sorted(found))}), so that a resumed run differs from "
            "an uninterrupted one; draw with keras.random and a keras.random.SeedGenerator"
        )
        if self._learner.strict:
            raise ModelError(f"training.determinism: bitwise is asked for, but {told}")
        log.warning("%s", told)

    def _seed(self, seeds: Any) -> None:
        for i, generator in enumerate(self._learner.generators):
            generator.assign(seeds[i])

    def _whole(self, features: Any, targets: Any, seeds: Any, rate: Any) -> Any:
        loss, gradients = self._gradients(features, targets, seeds, 1.0)
        self._apply(gradients, rate)
        return loss

    def _gradients(self, features: Any, targets: Any, seeds: Any, share: Any) -> tuple[Any, list[Any]]:
        learner = self._learner
        self._seed(seeds)
        with self._tf.GradientTape() as tape:
            outputs = self._keras.ops.cast(learner.model(features, training=True), "float32")
            loss = learner.loss(outputs, targets) * share
            added = [self._keras.ops.cast(some, "float32") for some in learner.model.losses]
            scaled = learner.optimizer.scale_loss(self._tf.add_n([loss, *(some * share for some in added)]))
        found = tape.gradient(scaled, self._variables)
        # An embedding's are rows of a matrix, one and the same row several times. Those cannot be added up over microbatches, and
        # Keras squares each for itself, in norms and in Adam's moments, so that it would learn otherwise than elsewhere.
        return loss, [None if one is None else self._tf.convert_to_tensor(one) for one in found]

    def _apply(self, gradients: Sequence[Any], rate: Any) -> None:
        self._learner.optimizer.learning_rate = rate
        self._learner.optimizer.apply(gradients, self._variables)

    def _predict(self, features: Any, targets: Any, seeds: Any) -> tuple[Any, Any]:
        self._seed(seeds)
        outputs = self._keras.ops.cast(self._learner.model(features, training=False), "float32")
        return outputs, self._learner.loss(outputs, targets)
