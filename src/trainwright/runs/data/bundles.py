"""Data that are given in Python, in the form that the run's framework asks for."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trainwright.config import Resolved
from trainwright.datasets.base import PLAIN, LoadRequest
from trainwright.errors import InputError
from trainwright.process.global_random import preserved_global_random, seed_global_random
from trainwright.require import import_paths, open_process
from trainwright.runs.data.positive import with_positive_class
from trainwright.runs.frameworks import form_for
from trainwright.runs.objects import Objects

if TYPE_CHECKING:
    from trainwright.callbacks.base import Callback
    from trainwright.datasets.base import DataBundle
    from trainwright.inference.predictor import Predictor
    from trainwright.records.run_dir import RunDir

log = logging.getLogger("trainwright")


def make_objects(resolved: Resolved, model: Any, data: Any, callbacks: Sequence[Callback]) -> Objects:
    """Return what was given in Python, the data divided as the config says."""
    objects = Objects(model, make_bundle(resolved, data, model), callbacks)
    if objects.names:
        log.warning(
            "%s given as objects: only their author can reproduce this run", " and ".join(objects.names)
        )
    return objects


def make_bundle(resolved: Resolved, data: Any, model: Any = None) -> DataBundle | None:
    """Return data that were given in Python, divided as the config says; None without such data."""
    if data is None:
        return None
    from trainwright.datasets.samples.objects import from_objects

    config = resolved.config
    if any(import_paths(config.model.type)):
        open_process()  # before anything is imported for the config
    with preserved_global_random():
        seed_global_random(config.experiment.seed)  # a module of the user's may draw when it is imported
        form = form_for(config, model)
    return with_positive_class(from_objects(data, config.data, request=LoadRequest(form)), config)


def bundle_of_objects(
    run: RunDir, predictor: Predictor, data: Any, examples: int = PLAIN.examples
) -> DataBundle:
    """Return the data objects that the run was given, prepared as they were.

    Args:
        run: The run.
        predictor: Its model.
        data: The objects.
        examples: The number of first rows of each split that are kept as they were read.

    Raises:
        InputError: The data are not those that the run was given.
    """
    from trainwright.datasets.samples.objects import from_objects
    from trainwright.runs.data.identity import data_inputs

    request = LoadRequest(form_for(predictor.config, predictor.model_object), examples=examples)
    bundle = from_objects(data, predictor.config.data, request=request)
    bundle = with_positive_class(bundle, predictor.config)
    if data_inputs(bundle).hash != run.require_manifest().data.hash:
        raise InputError(
            f"the data are not those that run {run.id} was made with: pass what `train` was given"
        )
    return bundle
