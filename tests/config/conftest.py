"""Stand-ins for the installed adapters: one framework, two models, a few of everything else."""

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, model_validator

from trainwright.config.adapters import Meaning
from trainwright.config.schema import TrainingConfig


class Params(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class MlpParams(Params):
    hidden: list[Annotated[int, Field(gt=0)]] = Field(default=[128], description="units of each hidden layer")
    dropout: float = Field(default=0.0, ge=0, lt=1)
    activation: str | None = None

    @model_validator(mode="after")
    def _depth(self) -> "MlpParams":
        if len(self.hidden) > 5:
            raise ValueError("more than 5 hidden layers")
        return self


class TransformerParams(Params):
    hidden_size: int = 64
    num_layers: int = 2
    dropout: float = 0.0


class AdamParams(Params):
    betas: tuple[float, float] = (0.9, 0.999)


class SgdParams(Params):
    momentum: float = Field(default=0.0, ge=0)


class CsvParams(Params):
    delimiter: str = ","


class MlflowParams(Params):
    uri: str | None = None


class LakeParams(Params):
    table: str = Field(min_length=1, description="the table's name")


KNOWN: dict[str, dict[str, type[BaseModel] | None]] = {
    "framework": {"torch": None},
    "strategy": {"ddp": None},
    "model": {"mlp": MlpParams, "transformer": TransformerParams},
    "dataset": {"digits": Params, "wine": Params, "csv": CsvParams, "parquet": Params, "lake": LakeParams},
    "optimizer": {"adamw": AdamParams, "sgd": SgdParams},
    "loss": {"cross_entropy": None, "mse": None},
    "tracker": {"mlflow": MlflowParams, "tensorboard": Params},
    "task": {"classification": None, "regression": None},
    "metric": {"accuracy": None, "f1": None, "rmse": None},
}


class FakeAdapters:
    def names(self, kind: str, framework: str | None = None) -> Sequence[str]:
        return list(KNOWN[kind])

    def has(self, kind: str, name: str, framework: str | None = None) -> bool:
        return name in self.names(kind, framework)

    def broken(self, kind: str) -> Sequence[str]:
        return []

    def params(self, kind: str, name: str, framework: str | None = None) -> type[BaseModel] | None:
        return KNOWN[kind].get(name)

    def defaults(self, framework: str, model: str) -> dict[str, Any]:
        return {}

    def spellings(self, kind: str, name: str | None, framework: str | None = None) -> None:
        return None

    def training_keys(self, framework: str, model: str, params: Mapping[str, Any]) -> Collection[str]:
        return TrainingConfig.model_fields

    def has_processes(self, framework: str) -> bool:
        return True

    def sampler_meant(self, name: str) -> str | None:
        return None

    def framework_meant(self, name: str) -> str | None:
        return None

    def model_meant(self, name: str, framework: str | None = None) -> Meaning | None:
        return None

    def metric_meant(self, name: str) -> str | None:
        return None

    def framework_of(self, model_type: str) -> str | None:
        return "torch" if model_type in KNOWN["model"] else None


@pytest.fixture
def adapters() -> FakeAdapters:
    return FakeAdapters()
