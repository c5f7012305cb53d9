"""The parts of torch that a process imports."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def skip_compiler_import(function: Callable[..., Any]) -> None:
    """Keep a function of torch's that is not to be compiled from importing `torch._dynamo` to say so.

    That takes longer than importing torch. The function looks for a mark that the compiler leaves when it is
    first called; we set the mark ourselves, and take it back once the compiler is there. A version of torch
    that keeps it elsewhere imports the compiler: only the start-up is slower.

    Args:
        function: What `torch._disable_dynamo` returned.
    """
    if not hasattr(function, "__wrapped__"):
        return
    wrapped: Any = function.__wrapped__
    is_ours = getattr(wrapped, "__dynamo_disable", None) is wrapped
    if "torch._dynamo" not in sys.modules:
        wrapped.__dynamo_disable = wrapped
    elif is_ours:
        del wrapped.__dynamo_disable
