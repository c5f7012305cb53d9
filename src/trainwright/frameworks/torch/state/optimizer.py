"""The state of an optimizer as named tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from trainwright.errors import ModelError
from trainwright.frameworks.torch.optim.build import is_built_in
from trainwright.frameworks.torch.optim.custom import CustomOptimizerState
from trainwright.frameworks.torch.optim.ema import Average
from trainwright.frameworks.torch.parallel.blocks import Blocks
from trainwright.frameworks.torch.precision import Precision
from trainwright.frameworks.torch.state.json_tensors import from_tensor, to_tensor
from trainwright.frameworks.torch.state.layout import Strides, like, with_strides
from trainwright.frameworks.torch.state.snapshot import Tensors
from trainwright.frameworks.torch.state.unsaved import optimizer_fingerprints

_SCALER, _TRAINED, _GROUPS, _ATTRIBUTES, _VALUES = "scaler/", "trained/", "groups/", "attributes/", "values"


class OptimizerState:
    """The state that an optimizer resumes with: its own, the scaler's, and the weights that it trains.

    Args:
        optimizer: The optimizer.
        model: The module whose parameters it trains.
        precision: The holder of the gradient scaler.
        average: The average of the weights, if there is one: then the weights that are trained are not those
            of the model, and belong to the state.
        blocks: What the optimizer updates in place of the parameters; default: these.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: torch.nn.Module,
        precision: Precision,
        average: Average | None = None,
        blocks: Blocks | None = None,
    ) -> None:
        self._optimizer = optimizer
        self._blocks = blocks = blocks or Blocks([])
        self._model = model
        self._precision = precision
        self._average = average
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        # The model's parameters, by what the optimizer updates in their place.
        self._of = {id(blocks.updated(one)): one for one in model.parameters()}
        named = {id(blocks.updated(one)): self._names[id(one)] for one in model.parameters()}
        self._custom = None if is_built_in(optimizer) else CustomOptimizerState(optimizer, named)

    def parameters(self) -> Tensors:
        """Return the parameters that the optimizer trains, by name."""
        trained = [self._of[id(one)] for group in self._optimizer.param_groups for one in group["params"]]
        return {self._names[id(one)]: one.detach() for one in trained}

    def layouts(self) -> Callable[[str], torch.Tensor | None]:
        """Return a function from the name of a tensor of the state to the parameter that it belongs to."""
        known = dict(self._model.named_parameters())
        return lambda name: known.get(name.removeprefix(_TRAINED), known.get(name.rpartition(".")[0]))

    def tensors(self) -> Tensors:
        """Return the live tensors by name."""
        tensors = {
            f"{self._names[id(parameter)]}.{key}": self._blocks.outward(parameter, value)
            for group in self._optimizer.param_groups
            for updated in group["params"]
            for key, value in sorted(self._optimizer.state.get(updated, {}).items())
            if isinstance(value, torch.Tensor)
            for parameter in [self._of[id(updated)]]
        }
        tensors |= {f"{_SCALER}{key}": value for key, value in self._precision.state().items()}
        if self._custom is not None:
            tensors |= {f"{_GROUPS}{key}": value for key, value in self._custom.tensors().items()}
            attributes = self._custom.attribute_tensors()
            tensors |= {f"{_ATTRIBUTES}{name}": value for name, value in attributes.items()}
        if self._average is not None:
            tensors |= {f"{_TRAINED}{name}": value for name, value in self._average.trained().items()}
        if self._custom is not None:
            tensors[_VALUES] = to_tensor(self._custom.values())
        return tensors

    def load(self, tensors: Mapping[str, torch.Tensor], strides: Strides) -> None:
        """Restore what `tensors` returned.

        Args:
            tensors: The saved tensors by name.
            strides: Those of the tensors that were not in row-major order, by name.
        """
        kinds: dict[str, Tensors] = {_SCALER: {}, _TRAINED: {}, _GROUPS: {}, _ATTRIBUTES: {}}
        by_parameter: dict[str, Tensors] = {}
        for name, value in tensors.items():
            kind = next((kind for kind in kinds if name.startswith(kind)), None)
            if kind is not None:
                kinds[kind][name.removeprefix(kind)] = value
            elif name != _VALUES:
                parameter, _, key = name.rpartition(".")  # a parameter's name may have dots, a key has none
                by_parameter.setdefault(parameter, {})[key] = value
        self._precision.load(kinds[_SCALER])
        if self._average is not None:
            self._average.restore(kinds[_TRAINED])
        self._load_by_parameter(by_parameter, strides)
        if self._custom is not None:
            self._custom.restore(from_tensor(tensors[_VALUES]), kinds[_GROUPS], kinds[_ATTRIBUTES])

    def _load_by_parameter(self, saved: Mapping[str, Tensors], strides: Strides) -> None:
        for group in self._optimizer.param_groups:
            # Where torch's optimizers keep step counters; others' are in `CustomOptimizerState`.
            on_host = self._custom is None and not (group.get("fused") or group.get("capturable"))
            for updated in group["params"]:
                parameter = self._of[id(updated)]
                name = self._names[id(parameter)]
                for key, value in saved.get(name, {}).items():
                    device = torch.device("cpu") if key == "step" and on_host else parameter.device
                    wanted = strides.get(f"{name}.{key}")
                    restored = like(value, parameter, device)
                    if wanted is not None and list(restored.stride()) != wanted:
                        restored = with_strides(value, wanted, device)
                    self._optimizer.state[updated][key] = self._blocks.inward(parameter, restored)

    def unsaved(self) -> dict[str, str]:
        """Return a hash of each part that no checkpoint can hold, by name."""
        if self._custom is None:
            return {}
        state = optimizer_fingerprints(self._custom.unsaved(), self._saved_with_model(), self._optimizer)
        return {**state, **self._custom.unsaved_attributes()}

    def shared(self) -> list[str]:
        """Return the names of tensors that share memory, which a restore separates."""
        return [] if self._custom is None else self._custom.shared(self._saved_with_model())

    def check_parameters(self) -> None:
        """Check that the model still has the parameters that the optimizer was built with.

        Raises:
            ModelError: Training added, replaced or removed parameters.
        """
        live = {id(parameter): name for name, parameter in self._model.named_parameters()}
        if live != self._names:
            names = sorted({name for _, name in live.items() ^ self._names.items()})
            raise ModelError(
                f"training added, replaced or removed the parameter {', '.join(names[:5])}: the optimizer "
                "would not train it, and no run could be resumed; create parameters in __init__ and assign "
                "to their .data, or use a buffer"
            )

    def _saved_with_model(self) -> list[torch.Tensor]:
        return [*self._model.parameters(), *self._model.buffers()]
