"""The arguments of an attempt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainwright.config import Resolved
from trainwright.engine.outside import VerdictFunction
from trainwright.engine.rules import TrainingShare
from trainwright.records.manifest import Parent
from trainwright.records.run_dir import RunDir
from trainwright.runs.objects import Objects
from trainwright.world import ALONE, World


@dataclass(frozen=True)
class Request:
    """The arguments of an attempt.

    Attributes:
        resolved: The config.
        run: The run directory.
        objects: What was given in Python.
        parent: The run that this one repeats, or the study that it belongs to.
        placement: Values that replace those of the config, by dotted key (threads, device).
        allow_change: Accept changed inputs, and record them.
        verdict: Judges each evaluation.
        until: The share of the training after which the run pauses; None: it trains to the end.
        alike: Another run of the same study, whose data and code a new run must have.
        keep: Whether the run existed before the caller: it stays if its first attempt fails at once.
        world: The processes of the attempt, if they have found each other.
    """

    resolved: Resolved
    run: RunDir
    objects: Objects = field(default_factory=Objects)
    parent: Parent | None = None
    placement: Mapping[str, Any] = field(default_factory=dict)
    allow_change: bool = False
    verdict: VerdictFunction | None = None
    until: TrainingShare | None = None
    alike: RunDir | None = None
    keep: bool = False
    world: World = ALONE
