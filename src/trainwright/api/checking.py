"""Compare data with what a config expects of them, without training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trainwright.config import Config, Overrides, Resolved
from trainwright.config import load as load_resolved
from trainwright.datasets.base import LoadRequest, Outcome
from trainwright.errors import InputError
from trainwright.records.listing import runs_folder
from trainwright.runs.catalog import Catalog


class _Examined(Exception):  # noqa: N818
    """The rows have been examined, so that they need not be prepared."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self.outcomes = outcomes


def check_data(
    config: Config, overrides: Overrides = (), *, data: Any = None, runs_dir: Path | str | None = None
) -> dict[str, Any]:
    """Read the data that a config names, and compare them with its section `data.expect`.

    Args:
        config: The config.
        overrides: Values in place of the config's.
        data: The data, if they are given in Python.
        runs_dir: The folder of the runs, which keeps versions of data; default `TRAINWRIGHT_RUNS`, or `runs`.

    Returns:
        `met`: whether all is as expected; and `expectations`, each with `key`, `expected`, `met`, `found`,
        `said` (in words), `rows` (how many are wrong) and `examples` (the first of these).

    Raises:
        ConfigError: The config has problems.
        InputError: It expects nothing, or the data cannot be read.
    """
    resolved = load_resolved(config, overrides, Catalog(runs_folder(runs_dir)), objects=data is not None)
    if resolved.config.data is None or resolved.config.data.expect is None:
        raise InputError('the config expects nothing of the data; write data.expect: {rows: ">= 1000"}')
    found = _outcomes(resolved, data)
    return {"met": all(one.met for one in found), "expectations": [asdict(one) for one in found]}


def _outcomes(resolved: Resolved, data: Any) -> Sequence[Outcome]:
    from trainwright.datasets.samples.objects import from_objects
    from trainwright.process.global_random import preserved_global_random, seed_global_random
    from trainwright.require import import_paths, open_process
    from trainwright.runs.data.checks import check_expectations
    from trainwright.runs.wiring import load_data

    def examine(outcomes: Sequence[Outcome]) -> None:
        raise _Examined(outcomes)

    config = resolved.config
    if any(import_paths(resolved.nested)):
        open_process()  # before anything is imported for the config
    try:
        with preserved_global_random():
            seed_global_random(config.experiment.seed)  # a function of the user's may draw
            bundle = (
                load_data(config, examine=examine)
                if data is None
                else from_objects(data, config.data, request=LoadRequest(examine=examine))
            )
    except _Examined as examined:
        return examined.outcomes
    check_expectations(config, bundle)
    raise AssertionError("the rows were not examined")
