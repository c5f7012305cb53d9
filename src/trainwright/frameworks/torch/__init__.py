"""The PyTorch framework."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel

from trainwright.config.schedules import CustomSchedule
from trainwright.config.schema import RunConfig, TrainingConfig
from trainwright.config.spellings import Spellings
from trainwright.frameworks.base import (
    Advice,
    Capabilities,
    Compressed,
    Framework,
    Learner,
    LearnerInputs,
    Library,
    Model,
    ModelInputs,
    Plan,
    Processes,
)
from trainwright.frameworks.support.inputs import network_form
from trainwright.frameworks.support.network_spellings import NETWORKS
from trainwright.frameworks.support.optimizers import SPELLINGS
from trainwright.frameworks.support.plans import minibatch_plan
from trainwright.frameworks.torch import work
from trainwright.frameworks.torch.advice import ADVICE
from trainwright.frameworks.torch.device import device_named, require_libraries
from trainwright.frameworks.torch.params import (
    LOSSES,
    MODELS,
    OPTIMIZERS,
    TOKEN_MODELS,
)
from trainwright.types import DataInfo, Determinism, FeatureForm

if TYPE_CHECKING:
    from trainwright.datasets.base import Split
    from trainwright.records.compression import Recipe

# Other names of the models, with the task that a name implies.
OTHER_NAMES: Mapping[str, tuple[str, str | None]] = {
    "nn": ("mlp", None),
    "dnn": ("mlp", None),
    "neural_net": ("mlp", None),
    "neural_network": ("mlp", None),
    "feedforward": ("mlp", None),
    "nn_torch": ("mlp", None),
    "multilayer_perceptron": ("mlp", None),
    "ft_transformer": ("transformer", None),
    "nanogpt": ("gpt", None),
}


class TorchFramework(Framework):
    """Train a `torch.nn.Module` on one device."""

    models: ClassVar[Mapping[str, type[BaseModel]]] = MODELS
    optimizers: ClassVar[Mapping[str, type[BaseModel]]] = OPTIMIZERS
    spellings: ClassVar[Spellings] = NETWORKS
    optimizer_spellings: ClassVar[Spellings] = SPELLINGS
    losses: ClassVar[Sequence[str]] = LOSSES
    aliases: ClassVar[Collection[str]] = ("pytorch",)
    library: ClassVar[Library] = Library(
        ("torch",), ("torch.nn:Module",), ("torch.optim:Optimizer",), hub_name="pytorch"
    )
    capabilities: ClassVar[Capabilities] = Capabilities(
        named_inputs=True,
        token_models=TOKEN_MODELS,
        weights=True,
        workers=True,
        accumulators=True,
        chooses_weights=True,
        trains_objects=True,
        distillation=dict.fromkeys(
            ("classification", "regression"), "trainwright.frameworks.torch.losses.distillation:Distillation"
        ),
    )
    advice: ClassVar[Advice] = ADVICE
    unsaved_hint: ClassVar[str] = (
        "keep tensors with register_buffer, and give the rest back from get_extra_state and set_extra_state"
    )

    @staticmethod
    def other_names() -> Mapping[str, tuple[str, str | None]]:
        """Return the class names, and the usual short forms."""
        return OTHER_NAMES

    @staticmethod
    def feature_form(config: RunConfig, model: Any = None) -> FeatureForm:
        """Return float32; see `network_form`."""
        is_own = model is not None or ":" in config.model.type
        return network_form(config, shifts_outputs=not is_own, custom_loss=":" in config.training.loss)

    @staticmethod
    def training_keys(model: str, params: Mapping[str, Any]) -> Collection[str]:  # noqa: ARG004 - the same for all
        """Return all keys of `training`."""
        return TrainingConfig.model_fields

    @staticmethod
    def reset() -> None:
        """Undo what code of the user's may have set in torch for the whole process."""
        from trainwright.frameworks.torch.process import reset_settings

        reset_settings()

    @staticmethod
    def plan(config: RunConfig, rows: int, model: Any = None) -> Plan:  # noqa: ARG004 - the same for all models
        """Return the plan of a framework that trains on minibatches."""
        plan, schedule = minibatch_plan(config, rows), config.training.scheduler
        if not isinstance(schedule, CustomSchedule):
            return plan
        require_libraries()
        from trainwright.frameworks.torch.optim.schedule import torch_schedule

        return plan._replace(custom_schedule=torch_schedule(schedule))

    @staticmethod
    def step_work(config: RunConfig, info: DataInfo, plan: Plan, model: Any = None) -> float | None:
        """Return the multiplications of a step on the CPU; None for modules of unknown structure."""
        if config.training.device != "cpu" and device_named(config.training.device).type != "cpu":
            return None
        by_sample = work.of_module(model) if model is not None else work.of_config(config, info)
        return None if by_sample is None else work.PASSES * by_sample * plan.batch_size

    @staticmethod
    def determinism(config: RunConfig) -> Determinism:
        """Return `bitwise`, unless a CUDA operation may lack a deterministic kernel, or code is compiled."""
        if config.training.compile:
            reason = "torch.compile may make other kernels, which add in another order, in another process"
            return Determinism("order", reason)
        if not config.distributed.exact:
            return Determinism(
                "order", "distributed.exact is false: processes add up in an order of the backend's"
            )
        if config.training.determinism == "best" and device_named(config.training.device).type == "cuda":
            reason = "on CUDA, an operation without a deterministic kernel only warns; "
            return Determinism("order", reason + "training.determinism: bitwise refuses it")
        return Determinism(
            "bitwise", "deterministic algorithms, a pinned number of threads, random streams by step"
        )

    @staticmethod
    def device_name(config: RunConfig) -> str:
        """Return `cpu`, without importing torch if the config says so, or the model of the GPU."""
        name = config.training.device
        if name == "cpu":
            return name
        device = device_named(name)
        from trainwright.frameworks.torch.process import device_model

        return device_model(device)

    @staticmethod
    def pin(config: RunConfig, threads: int) -> None:
        """Set the number of threads and the determinism of algorithms."""
        require_libraries()
        from trainwright.frameworks.torch import process

        process.pin(config, threads)

    @staticmethod
    def processes() -> Processes:
        """Return torch's elastic agent and process groups."""
        from trainwright.frameworks.torch.parallel.processes import TorchProcesses

        return TorchProcesses()

    @staticmethod
    def copied(model: Any) -> Any:
        """Return a copy of a module, with the hooks of its parameters."""
        from trainwright.frameworks.torch.state import passed

        return passed.copied(model)

    @staticmethod
    def check_sendable(model: Any) -> None:
        """Refuse a module whose parameters have hooks."""
        from trainwright.frameworks.torch.state import passed

        passed.check_sendable(model)

    @classmethod
    def fill(cls, inputs: ModelInputs, folder: Path) -> None:
        """Load weights into a module; its device, flags and modes stay as they are."""
        from trainwright.frameworks.torch.state import passed

        passed.fill(inputs.model, folder)

    @staticmethod
    def learner(inputs: LearnerInputs) -> Learner:
        """Build the module and its optimizer."""
        require_libraries()
        from trainwright.frameworks.torch.learner import TorchLearner
        from trainwright.frameworks.torch.state.passed import PassedModule, copied_to_divide

        if inputs.model is None:
            return TorchLearner(inputs)
        passed, distributed = PassedModule(inputs.model), inputs.config.distributed
        if inputs.world.size > 1 and (
            distributed.strategy != "ddp" or distributed.tensor * distributed.pipeline > 1
        ):
            inputs = replace(inputs, model=copied_to_divide(inputs.model))
        try:
            return TorchLearner(inputs, passed)
        except BaseException:
            passed.release()
            raise

    @staticmethod
    def compress(inputs: ModelInputs, folder: Path, recipe: Recipe, rows: Split, target: Path) -> Compressed:
        """Compress layers that the module calls; see `compression.layers`."""
        require_libraries()
        from trainwright.frameworks.torch.compression.compressor import compress

        return compress(inputs, folder, recipe, rows, target)

    @staticmethod
    def load(inputs: ModelInputs, folder: Path) -> Model:
        """Return a model that owns its weights, or the part of them of this process, in evaluation mode."""
        require_libraries()
        if inputs.world.size > 1:
            from trainwright.frameworks.torch.divided_model import DividedModel

            return DividedModel(inputs, folder)
        from trainwright.frameworks.torch.model import LoadedModel

        return LoadedModel(inputs, folder)
