"""The options of models of transformers, which need no library to be read."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from trainwright.config.fields import Section
from trainwright.frameworks.support.optimizers import Share


class LoraParams(Section):
    """LoRA (Hu et al., 2022): low-rank adapters are trained, and the weights are frozen."""

    r: int = Field(8, gt=0, description="the rank of the adapters")
    alpha: float = Field(16.0, gt=0, description="adapters are scaled by alpha / r")
    dropout: Share = Field(0.0, description="before each adapter")
    target_modules: list[str] | str | None = Field(
        None,
        description="the linear layers that get adapters: ends of their names, a regular expression, or "
        "all-linear; default: what peft has for this architecture",
    )
    modules_to_save: list[str] = Field(
        default_factory=list,
        description="layers that are trained as a whole, too; the head of a classifier always is",
    )
    bias: Literal["none", "all", "lora_only"] = Field("none", description="which biases are trained, too")


class HuggingFaceParams(Section):
    """A model of transformers: trained weights (`path`), or an architecture with random ones (`config`)."""

    path: str | None = Field(
        None,
        min_length=1,
        description="a folder of save_pretrained (config.json and safetensors), or the id of a model of the "
        "hub; its weights are the initial ones",
    )
    revision: str | None = Field(
        None,
        min_length=1,
        description="of a model of the hub: a commit, branch or tag; the commit is recorded; default: main",
    )
    config: dict[str, Any] = Field(
        default_factory=dict,
        description="options of the architecture, under the names of its config.json; without a path, "
        "model_type (bert, llama ...) is one of them; with a path, those that are to differ",
    )
    attn_implementation: Literal["sdpa", "eager"] | None = Field(
        None, description="how attention is computed; default: sdpa, where the model has it"
    )
    lora: LoraParams | None = Field(
        None,
        description="train low-rank adapters (peft) instead of all weights: r, alpha, dropout, "
        "target_modules, modules_to_save, bias (docs/huggingface.md)",
    )
    trust_remote_code: bool = Field(
        False, description="must be false: code that comes with weights is never executed"
    )

    @field_validator("trust_remote_code")
    @classmethod
    def _check_code(cls, value: bool) -> bool:
        if value:
            raise ValueError(
                "code that comes with weights is never executed, as it could do anything; read it, make it a "
                "module of yours, and write model.type: my_module:build"
            )
        return value

    @model_validator(mode="after")
    def _check_source(self) -> HuggingFaceParams:
        if self.path is None and "model_type" not in self.config:
            raise ValueError(
                "neither path nor config.model_type given: write path: FOLDER (of save_pretrained) for "
                "trained weights, or config: {model_type: llama, hidden_size: 64 ...} for random ones"
            )
        if self.revision is not None and self.path is None:
            raise ValueError(
                "revision given without path: it is that of a model of the hub; name the model "
                "in path, or leave revision out"
            )
        return self
