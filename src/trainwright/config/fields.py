"""The base of all sections of a config: fields that are declared by what they change.

Each field is declared to change the *bits* of the result, only the *record* of it (logging, tracking, names),
or the *placement* (where the run is computed: device, threads; and how it reads). The computation is
identified by the bits alone. What of the placement may change bits belongs to the numeric environment, which
is compared attempt by attempt. A field that holds a section is not declared, unless the declaration holds
for all that is in it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

# File systems take 255 bytes in a name; what is added to it, as for a temporary file, needs some of them.
PATH_SAFE = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$"
DEVICE = r"^(auto|cpu|cuda(:\d+)?)$"
ENDPOINT = r"^\S+:\d{1,5}$"
RANGE = r"^[1-9]\d{0,5}\.\.[1-9]\d{0,5}$"
COMPARISON = r"^\s*(>=|<=|==|>|<)\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$"
PATTERNS = {  # in words, for messages
    PATH_SAFE: "a name of at most 200 letters, digits, '.', '_' and '-' that begins with a letter or a digit",
    DEVICE: "auto, cpu, cuda or cuda:NUMBER",
    ENDPOINT: "HOST:PORT",
    RANGE: "a range such as 1..4",
    COMPARISON: "a comparison such as '>= 0.5'",
}
AutoMode = Literal["auto", "min", "max"]
MODE = "whether lower or higher is better; auto: by the metric"
Fraction = Annotated[float, Field(ge=0, lt=1)]


Affects = Literal["bits", "record", "placement"]


def bits(default: Any = PydanticUndefined, **constraints: Any) -> Any:
    """Return a field that changes the bits of the result: another value is another computation."""
    return Field(default, json_schema_extra={"affects": "bits"}, **constraints)


def record(default: Any = PydanticUndefined, **constraints: Any) -> Any:
    """Return a field that changes only what is recorded of a run, never its bits."""
    return Field(default, json_schema_extra={"affects": "record"}, **constraints)


def placement(default: Any = PydanticUndefined, **constraints: Any) -> Any:
    """Return a field that says where a run is computed, or how it reads; two attempts may differ in it."""
    return Field(default, json_schema_extra={"affects": "placement"}, **constraints)


def affects(field: FieldInfo) -> Affects | None:
    """Return what a field is declared to change; None if it holds a section whose fields are declared."""
    extra = field.json_schema_extra
    return extra.get("affects") if isinstance(extra, dict) else None  # type: ignore[return-value]


class Section(BaseModel):
    """A part of the config: strict, frozen, and without unknown keys."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class TypedSection(Section):
    """A section whose `type` names an adapter; its options are in `params`, or inline beside `type`."""

    type: str = bits()
    params: dict[str, Any] = bits(
        default_factory=dict, description="the options of this type; they may also be written inline"
    )
