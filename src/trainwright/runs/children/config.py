"""The config of a run that begins with the state of another one, and what differs from that one's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainwright.config import Overrides, Resolved
from trainwright.config.overrides import keys_of, with_settings
from trainwright.config.schema import PLACEMENT
from trainwright.records.run_dir import RunDir
from trainwright.runs.run_config import read_config


def child_config(parent: RunDir, overrides: Overrides) -> Resolved:
    """Return the config of a parent with overrides; a new length replaces the other way to give one.

    Raises:
        ConfigError: An override is wrong.
    """
    keys = keys_of(overrides)
    pair = ("training.epochs", "training.max_steps")
    unset = {other for key, other in (pair, pair[::-1]) if key in keys and other not in keys}
    return read_config(parent, with_settings(overrides, dict.fromkeys(unset)))


def changed_settings(own: Resolved, resolved: Resolved) -> dict[str, tuple[Any, Any]]:
    """Return the settings that differ, both values by dotted key; placement is left out."""
    before, now = own.flat(), resolved.flat()
    return {key: (before.get(key), now.get(key)) for key in differing(before, now) if key not in PLACEMENT}


def changed_computation(own: Resolved, resolved: Resolved) -> list[str]:
    """Return the dotted keys of the settings that differ and change bits."""
    return differing(own.computation(), resolved.computation())


def differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the keys whose values differ; an empty section equals a missing one."""
    before, now = ({key: value for key, value in one.items() if value != {}} for one in (before, now))
    return [key for key in dict.fromkeys([*before, *now]) if before.get(key) != now.get(key)]


def child_placement(own: Resolved, resolved: Resolved, parent: RunDir) -> dict[str, Any]:
    """Return the placement of a child: that of its parent, with what its own config changes."""
    now = resolved.flat()
    given = {key: now[key] for key in PLACEMENT if resolved.sources.get(key) != own.sources.get(key)}
    return parent.require_manifest().placement | given


def child_settings(parent: RunDir, resolved: Resolved) -> list[str] | None:
    """Return the keys that the user set for the parent, or sets now; the config of the parent has all."""
    created, config = parent.creation(), str(parent.config_file)
    if created is None or created.settings is None:
        return None
    known = {*created.settings, *(key for key in resolved.settings if resolved.sources[key].file != config)}
    return [key for key in resolved.sources if key in known]
