"""Keras 3 on TensorFlow, JAX or PyTorch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel

from trainwright.config.schema import RunConfig, TrainingConfig
from trainwright.config.spellings import Spellings
from trainwright.frameworks.base import (
    Advice,
    Capabilities,
    Framework,
    Learner,
    LearnerInputs,
    Library,
    Model,
    ModelInputs,
    Plan,
)
from trainwright.frameworks.keras.params import COMPILED, LOSSES, MODELS, OPTIMIZERS
from trainwright.frameworks.support.advice import BATCH, DROPOUT, RATE, WIDTHS
from trainwright.frameworks.support.inputs import network_form
from trainwright.frameworks.support.network_spellings import NETWORKS
from trainwright.frameworks.support.optimizers import SPELLINGS
from trainwright.frameworks.support.plans import minibatch_plan
from trainwright.require import require
from trainwright.types import Determinism, FeatureForm, Suggestion

# Other names of the models, with the task that a name implies.
OTHER_NAMES: Mapping[str, tuple[str, str | None]] = {
    "mlp": ("keras_mlp", None),
    "cnn": ("keras_cnn", None),
    "convnet": ("keras_cnn", None),
}


_TORCH_ALONE = {
    *("log_grad_norm", "no_decay", "parameter_groups", "layer_decay", "freeze", "ema", "heads"),
    *("compile", "activation_checkpointing"),
}


_NETWORK = {"training.learning_rate": RATE, "training.batch_size": BATCH}

_SPACES: Mapping[str, Mapping[str, Suggestion]] = {
    "keras_mlp": {**_NETWORK, "model.hidden": WIDTHS, "model.dropout": DROPOUT},
    "keras_cnn": {
        **_NETWORK,
        "model.filters": Suggestion([[16, 32], [32, 64], [32, 64, 128]], "channels of the layers"),
        "model.dropout": DROPOUT,
    },
}


class KerasFramework(Framework):
    """A run trains a `keras.Model` on one device."""

    models: ClassVar[Mapping[str, type[BaseModel]]] = MODELS
    optimizers: ClassVar[Mapping[str, type[BaseModel]]] = OPTIMIZERS
    spellings: ClassVar[Spellings] = NETWORKS
    optimizer_spellings: ClassVar[Spellings] = SPELLINGS
    losses: ClassVar[Sequence[str]] = LOSSES
    tasks: ClassVar[Collection[str] | None] = ("classification", "regression")
    aliases: ClassVar[Collection[str]] = ("tensorflow", "tf", "tf.keras")
    library: ClassVar[Library] = Library(("keras",), ("keras:Model",), hub_name="keras")
    capabilities: ClassVar[Capabilities] = Capabilities(weights=True, trains_objects=True)
    advice: ClassVar[Advice] = Advice(spaces=_SPACES)
    unsaved_hint: ClassVar[str] = "keep what changes in variables (keras.Variable, add_weight)"

    @staticmethod
    def other_names() -> Mapping[str, tuple[str, str | None]]:
        """Return the class names, and the usual short forms."""
        return OTHER_NAMES

    @staticmethod
    def defaults(model: str) -> Mapping[str, Any]:
        """Return config defaults: a user's model keeps its compiled optimizer and learning rate.

        A saved model also gets unstandardized data, since it was trained on the features as they were.
        """
        if model == "keras":
            return {"training.optimizer.type": COMPILED, "data.standardize": False}
        return {"training.optimizer.type": COMPILED} if ":" in model else {}

    @staticmethod
    def feature_form(config: RunConfig, model: Any = None) -> FeatureForm:
        """Return float32; see `network_form`."""
        kind = config.model.type
        is_built_in = model is None and kind in MODELS and kind != "keras"
        loss = config.training.loss
        is_custom = ":" in loss or (loss == "auto" and not is_built_in)  # what a model was compiled with
        return network_form(config, shifts_outputs=is_built_in, custom_loss=is_custom)

    @staticmethod
    def training_keys(model: str, params: Mapping[str, Any]) -> Collection[str]:  # noqa: ARG004 - the same for all
        """Return all keys of `training` but those that torch alone has."""
        return TrainingConfig.model_fields.keys() - _TORCH_ALONE

    @staticmethod
    def reset() -> None:
        """Undo what code of the user's may have set in Keras for the whole process."""
        from trainwright.frameworks.keras.backend import reset_settings

        reset_settings()

    @staticmethod
    def plan(config: RunConfig, rows: int, model: Any = None) -> Plan:
        """Plan minibatch steps, with the compiled learning rate if the config leaves it open.

        Raises:
            DataError: `training.batch_size` is larger than the number of training rows.
            ModelError: The compiled learning rate is a schedule, or the .keras file cannot be read.
        """
        from trainwright.frameworks.keras import optim

        plan, rate = minibatch_plan(config, rows), None
        if not optim.uses_compiled_rate(config):
            return plan
        if (compiled := getattr(model, "optimizer", None)) is not None:
            rate = optim.rate_of(compiled)
        elif model is None and config.model.type == "keras":
            rate = optim.rate_in(Path(config.model.params["file"]))
        return plan if rate is None else plan._replace(learning_rate=rate)

    @staticmethod
    def determinism(config: RunConfig) -> Determinism:
        """Return `bitwise` on the CPU and on a GPU with enforced deterministic kernels, otherwise `order`."""
        from trainwright.frameworks.keras import backend

        name, on_gpu = backend.may_use_gpu(config)
        if on_gpu and (name == "jax" or config.training.determinism == "best"):
            hint = "" if name == "jax" else "; training.determinism: bitwise refuses those that do not"
            return Determinism(
                "order", f"Keras ({name}) on CUDA: not every operation has a deterministic kernel{hint}"
            )
        return Determinism(
            "bitwise",
            f"Keras ({name}): deterministic kernels, a pinned number of threads, random streams by step",
        )

    @staticmethod
    def pin(config: RunConfig, threads: int) -> None:
        """Set the backend's number of threads, the determinism of its kernels, and TensorFlow's seed.

        Raises:
            MissingExtraError: Keras or the backend is not installed.
            ModelError: This process already uses another backend or number of threads, or the device does not
                exist.
        """
        from trainwright.frameworks.keras import backend

        backend.pin(config, threads)

    @staticmethod
    def copied(model: Any) -> Any:
        """Return a copy of a model with the same weights."""
        from trainwright.frameworks.keras import building

        return building.copied(require("keras", "keras"), model)

    @classmethod
    def fill(cls, inputs: ModelInputs, folder: Path) -> None:
        """Load weights into a model; its dtype policies stay as they are."""
        from trainwright.frameworks.keras import building

        kept = building.policies(inputs.model)
        cls.load(inputs, folder)
        building.set_policies(kept)

    @staticmethod
    def learner(inputs: LearnerInputs) -> Learner:
        """Build the model, its loss and its optimizer.

        Raises:
            MissingExtraError: Keras or the backend is not installed.
            ModelError: The model cannot be built, or does not fit the data.
        """
        require("safetensors", "keras")
        from trainwright.frameworks.keras.learner import KerasLearner

        return KerasLearner(inputs)

    @staticmethod
    def load(inputs: ModelInputs, folder: Path) -> Model:
        """Return the model that a snapshot wrote.

        Layers are built with the constants that they drew in the training, except from TensorFlow's own
        generator: it belongs to the process, and only `pin` seeds it.

        Raises:
            MissingExtraError: Keras or the backend is not installed.
            ModelError: The model cannot be built, or the weights do not fit it.
        """
        require("safetensors", "keras")
        from trainwright.frameworks.keras.model import LoadedModel

        return LoadedModel(inputs, folder)
