"""The names of the ways to hold weights in fewer bits."""

from __future__ import annotations

from typing import Literal, get_args

Scheme = Literal["int8-dynamic", "int8-static", "int8-weight-only", "int4-weight-only", "fp16", "bf16", "fp8"]
SCHEMES: tuple[Scheme, ...] = get_args(Scheme)
