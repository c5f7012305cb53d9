"""Training on TensorFlow: each operation is a graph that is traced once."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

from trainwright.errors import ModelError
from trainwright.frameworks.keras.backend_trainer import Compilation, shares, weights_in
from trainwright.frameworks.keras.draws import OwnDraws
from trainwright.require import require
from trainwright.types import FEATURES, TARGET, Array, Batch

log = logging.getLogger("trainwright")

Graph = Any  # a tf.function with one signature
_RANDOM_OPS = re.compile("Random|Rng|Multinomial|TruncatedNormal|Stateful(Uniform|StandardNormal)|PyFunc")


def _tensors(tf: Any, batch: Batch, seeds: Array, *scalars: Any) -> list[Any]:
    """Return features, targets, seeds, scalars and, if there are any, weights as tensors."""
    rows = [tf.constant(array) for array in (batch[FEATURES], batch[TARGET], seeds)]
    return [*rows, *scalars, *map(tf.constant, weights_in(batch))]


class _Graphs:
    """The graphs of some methods, each traced when it is first used.

    Args:
        tf: The module.
        compilation: What the methods compute with.
        consequence: What happens if the model draws from TensorFlow's own generators, for the message.
    """

    def __init__(self, tf: Any, compilation: Compilation, consequence: str) -> None:
        self._tf, self._compilation, self._consequence = tf, compilation, consequence
        self._graphs: dict[Any, Graph] = {}
        self._tracing = threading.Lock()

    def of(self, body: Callable[..., Any], batch: Batch, *scalars: Any) -> Graph:
        """Return the graph of a method for batches with these dtypes and shapes."""
        key = (body.__name__, *((array.dtype.str, array.shape[1:]) for array in batch.values()))
        if key not in self._graphs:
            with self._tracing:
                if key not in self._graphs:
                    self._graphs[key] = self._traced(body, batch, scalars)
        return self._graphs[key]

    def _traced(self, body: Callable[..., Any], batch: Batch, scalars: Sequence[Any]) -> Graph:
        spec = self._tf.TensorSpec
        rows = [spec((None, *batch[name].shape[1:]), batch[name].dtype) for name in (FEATURES, TARGET)]
        rest = [
            spec((len(self._compilation.generators), 2), "int64"),
            *(spec((), "float32") for _ in scalars),
            *(spec((None,), array.dtype) for array in weights_in(batch)),
        ]
        graph = self._tf.function(body, autograph=False).get_concrete_function(*rows, *rest)
        self._check_random_ops(graph)
        return graph

    def _check_random_ops(self, graph: Any) -> None:
        """Warn about TensorFlow's own generators, or refuse them: no checkpoint holds their state."""
        stateful = {
            op.type
            for op in graph.graph.get_operations()
            if op.op_def.is_stateful and _RANDOM_OPS.search(op.type)
        }
        if not stateful:
            return
        message = (
            f"the model draws from TensorFlow's own generators ({', '.join(sorted(stateful))}), so that "
            f"{self._consequence}; draw with keras.random and a keras.random.SeedGenerator"
        )
        if self._compilation.strict:
            raise ModelError(f"training.determinism: bitwise was requested, but {message}")
        log.warning("%s", message)


class TensorflowPredictor:
    """See `BackendPredictor`; threads may share it, since nothing is assigned."""

    def __init__(self, keras: Any, compilation: Compilation, draws: OwnDraws) -> None:
        self._tf: Any = require("tensorflow", "keras")
        self._keras, self._compilation, self._draws = keras, compilation, draws
        self._graphs = _Graphs(self._tf, compilation, "its outputs differ from call to call")

    def forward(self, batch: Batch, seeds: Array) -> tuple[Array, float]:
        """See `BackendPredictor`."""
        outputs, loss = self._graphs.of(self._predict, batch)(*_tensors(self._tf, batch, seeds))
        return outputs.numpy(), float(loss)

    def _predict(self, features: Any, targets: Any, seeds: Any, weights: Any = None) -> tuple[Any, Any]:
        """Return the outputs in inference mode, (rows, outputs) float32, and the mean loss."""
        with self._draws.seeded(self._compilation.generators, seeds):
            outputs = self._keras.ops.cast(self._compilation.model(features, training=False), "float32")
            return outputs, self._compilation.loss(outputs, targets, weights)


class TensorflowTrainer:
    """See `BackendTrainer`; graphs accept any number of rows, so they do not depend on the first batch."""

    def __init__(self, keras: Any, compilation: Compilation) -> None:
        self._tf: Any = require("tensorflow", "keras")
        self._keras = keras
        self._compilation = compilation
        self._variables = list(compilation.model.trainable_variables)
        self._graphs = _Graphs(self._tf, compilation, "a resumed run differs from an uninterrupted one")
        self._update = self._tf.function(self._apply, autograph=False)

    def step(self, microbatches: Sequence[Batch], seeds: Sequence[Array], lr: float) -> Any:
        """See `BackendTrainer`."""
        rate = self._tf.constant(lr, dtype="float32")
        if len(microbatches) == 1:
            return self._graphs.of(self._full_step, microbatches[0], rate)(
                *_tensors(self._tf, microbatches[0], seeds[0], rate)
            )
        total, gradients = None, [None] * len(self._variables)
        for part, some, share in zip(microbatches, seeds, shares(microbatches), strict=True):
            weight = self._tf.constant(share, dtype="float32")
            loss, new = self._graphs.of(self._gradients, part, weight)(
                *_tensors(self._tf, part, some, weight)
            )
            total = loss if total is None else total + loss
            gradients = [b if a is None else a + b for a, b in zip(gradients, new, strict=True)]
        self._update(gradients, rate)
        return total

    def forward(self, batch: Batch, seeds: Array) -> tuple[Array, float]:
        """See `BackendTrainer`."""
        outputs, loss = self._graphs.of(self._predict, batch)(*_tensors(self._tf, batch, seeds))
        return outputs.numpy(), float(loss)

    def publish(self) -> None:
        """Do nothing: the variables are the state."""

    def adopt(self) -> None:
        """Do nothing: the variables are the state."""

    def _seed(self, seeds: Any) -> None:
        """Assign the generators' seeds (generators, 2)."""
        for i, generator in enumerate(self._compilation.generators):
            generator.assign(seeds[i])

    def _full_step(self, features: Any, targets: Any, seeds: Any, rate: Any, weights: Any = None) -> Any:
        """Make a whole step of a single microbatch, and return the mean loss."""
        loss, gradients = self._gradients(features, targets, seeds, 1.0, weights)
        self._apply(gradients, rate)
        return loss

    def _gradients(
        self, features: Any, targets: Any, seeds: Any, share: Any, weights: Any = None
    ) -> tuple[Any, list[Any]]:
        """Return a microbatch's share of the loss, and the gradients of this share."""
        compilation = self._compilation
        self._seed(seeds)
        with self._tf.GradientTape() as tape:
            outputs = self._keras.ops.cast(compilation.model(features, training=True), "float32")
            loss = compilation.loss(outputs, targets, weights) * share
            added = [self._keras.ops.cast(some, "float32") for some in compilation.model.losses]
            scaled = compilation.optimizer.scale_loss(
                self._tf.add_n([loss, *(some * share for some in added)])
            )
        gradients = tape.gradient(scaled, self._variables)
        # Gradients of embeddings are sparse: rows of a matrix, in which a row may occur several times. They
        # cannot be summed over microbatches, and Keras would square each occurrence separately in norms and
        # in Adam's moments, so that training would differ from other backends.
        return loss, [None if one is None else self._tf.convert_to_tensor(one) for one in gradients]

    def _apply(self, gradients: Sequence[Any], rate: Any) -> None:
        """Apply gradients to the variables."""
        self._compilation.optimizer.learning_rate = rate
        self._compilation.optimizer.apply(gradients, self._variables)

    def _predict(self, features: Any, targets: Any, seeds: Any, weights: Any = None) -> tuple[Any, Any]:
        """Return the outputs in inference mode, (rows, outputs) float32, and the mean loss."""
        self._seed(seeds)
        outputs = self._keras.ops.cast(self._compilation.model(features, training=False), "float32")
        return outputs, self._compilation.loss(outputs, targets, weights)
