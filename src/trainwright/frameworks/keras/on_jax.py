"""Training on JAX: pure functions of the state, compiled once for each shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trainwright.frameworks.keras.backend_trainer import Compilation, shares, weights_in
from trainwright.require import require
from trainwright.types import FEATURES, TARGET, Array, Batch

# The values of the trainable variables, of the other variables and of the optimizer's variables.
State = tuple[list[Any], list[Any], list[Any]]


def _pair(batch: Batch) -> tuple[Array, Array]:
    return batch[FEATURES], batch[TARGET]


class JaxTrainer:
    """See `BackendTrainer`; it keeps the state itself, since assigning variables in every step is slow."""

    def __init__(self, keras: Any, compilation: Compilation) -> None:
        self._jax: Any = require("jax", "keras-jax")
        self._keras = keras
        self._compilation = compilation
        model, optimizer = compilation.model, compilation.optimizer
        self._of_loss = list(compilation.of_loss)
        self._variables = [
            list(model.trainable_variables),
            [*model.non_trainable_variables, *self._of_loss],
        ]
        self._variables.append(list(optimizer.variables) if optimizer is not None else [])
        at = {id(variable): i for i, variable in enumerate(self._variables[1])}
        # None for the shared generator: it is not a variable of the model, so compiled functions cannot use
        # it.
        self._generators = [at.get(id(variable)) for variable in compilation.generators]
        self._jit_step = self._jax.jit(self._step)
        self._jit_gradients = self._jax.jit(self._gradients)
        self._jit_apply = self._jax.jit(self._apply)
        self._jit_outputs = self._jax.jit(self._outputs)
        self._state = self._read()

    def step(self, microbatches: Sequence[Batch], seeds: Sequence[Array], lr: float) -> Any:
        """See `BackendTrainer`."""
        rate = np.float32(lr)
        if len(microbatches) == 1:
            self._state, loss = self._jit_step(
                self._state,
                *_pair(microbatches[0]),
                seeds[0].astype(np.uint32),
                rate,
                *weights_in(microbatches[0]),
            )
            return loss
        total, gradients = 0.0, None
        for part, some, share in zip(microbatches, seeds, shares(microbatches), strict=True):
            new, others, loss = self._jit_gradients(
                self._state, *_pair(part), some.astype(np.uint32), np.float32(share), *weights_in(part)
            )
            self._state = (self._state[0], others, self._state[2])
            total = total + loss
            gradients = new if gradients is None else [a + b for a, b in zip(gradients, new, strict=True)]
        self._state = self._jit_apply(self._state, gradients, rate)
        return total

    def forward(self, batch: Batch, seeds: Array) -> tuple[Array, float]:
        """See `BackendTrainer`."""
        outputs, loss = self._jit_outputs(
            self._state, *_pair(batch), seeds.astype(np.uint32), *weights_in(batch)
        )
        return np.array(outputs), float(loss)

    def publish(self) -> None:
        """See `BackendTrainer`."""
        for variables, values in zip(self._variables, self._state, strict=True):
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)

    def adopt(self) -> None:
        """See `BackendTrainer`."""
        self._state = self._read()

    def _read(self) -> State:
        """Return the values of all variables."""
        first, second, third = ([variable.value for variable in variables] for variables in self._variables)
        return first, second, third

    def _step(
        self, state: State, features: Any, targets: Any, seeds: Any, rate: Any, *weights: Any
    ) -> tuple[State, Any]:
        """Compute a whole step of a single microbatch: the new state and the mean loss."""
        gradients, others, loss = self._gradients(state, features, targets, seeds, 1.0, *weights)
        return self._apply((state[0], others, state[2]), gradients, rate), loss

    def _gradients(
        self, state: State, features: Any, targets: Any, seeds: Any, share: Any, *weights: Any
    ) -> tuple[list[Any], list[Any], Any]:
        """Return the gradients, the other variables' new values, and the microbatch's share of the loss."""
        trainable, others, optimizer_values = state
        compilation = self._compilation
        scaled_in = self._keras.StatelessScope(
            state_mapping=list(zip(compilation.optimizer.variables, optimizer_values, strict=True))
        )

        def total(trained: list[Any]) -> tuple[Any, Any]:
            of_model, of_loss = self._divided(others)
            outputs, new, added = compilation.model.stateless_call(
                trained, self._seeded(of_model, seeds), features, return_losses=True, training=True
            )
            with self._keras.StatelessScope(
                state_mapping=list(zip(self._of_loss, of_loss, strict=True))
            ) as scope:
                loss = compilation.loss(outputs.astype("float32"), targets, *weights) * share
            new = [*new, *(scope.get_current_value(one) for one in self._of_loss)]
            with scaled_in:
                scaled = compilation.optimizer.scale_loss(
                    sum((some.astype("float32") * share for some in added), loss)
                )
            return scaled, (new, loss)

        gradients, (new, loss) = self._jax.grad(total, has_aux=True)(trainable)
        return gradients, new, loss

    def _apply(self, state: State, gradients: list[Any], rate: Any) -> State:
        """Return the state after an optimizer update."""
        trainable, others, values = state
        optimizer = self._compilation.optimizer
        with self._keras.StatelessScope(
            state_mapping=list(zip(optimizer.variables, values, strict=True))
        ) as scope:
            optimizer.learning_rate = rate
            values = [scope.get_current_value(variable) for variable in optimizer.variables]
        trained, values = optimizer.stateless_apply(values, gradients, trainable)
        return trained, others, values

    def _outputs(
        self, state: State, features: Any, targets: Any, seeds: Any, *weights: Any
    ) -> tuple[Any, Any]:
        """Return the outputs in inference mode, (rows, outputs) float32, and the mean loss."""
        of_model, of_loss = self._divided(state[1])
        outputs, _ = self._compilation.model.stateless_call(
            state[0], self._seeded(of_model, seeds), features, training=False
        )
        outputs = outputs.astype("float32")
        with self._keras.StatelessScope(state_mapping=list(zip(self._of_loss, of_loss, strict=True))):
            return outputs, self._compilation.loss(outputs, targets, *weights)

    def _divided(self, others: list[Any]) -> tuple[list[Any], list[Any]]:
        """Return the values of the model's other variables, and of those of the loss."""
        count = len(others) - len(self._of_loss)
        return others[:count], others[count:]

    def _seeded(self, others: list[Any], seeds: Any) -> list[Any]:
        """Return the values of the other variables with the generators' replaced by the seeds."""
        seeded = list(others)
        for i, at in enumerate(self._generators):
            if at is not None:
                seeded[at] = seeds[i]
        return seeded
