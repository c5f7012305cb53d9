"""Estimate what a run of a config would need, without making it."""

from __future__ import annotations

from collections.abc import Sequence

from trainwright.config.schema import RunConfig
from trainwright.errors import InputError
from trainwright.frameworks.base import LearnerInputs
from trainwright.order import SampleOrder
from trainwright.records.mesh_estimate import Machines, MeshPlan
from trainwright.runs.data.checks import check_batch_size, check_reading
from trainwright.runs.data.learner_splits import learner_splits
from trainwright.runs.data.sampling import epoch_samples
from trainwright.runs.frameworks import framework_for
from trainwright.runs.wiring import load_data


def estimated(
    config: RunConfig, machines: Machines, *, is_free: bool, refusals: Sequence[str] = ()
) -> MeshPlan:
    """Return the estimates of a config on its mesh and on others; see `Processes.plan`.

    Raises:
        InputError: The data cannot be read, or the framework trains in one process.
    """
    bundle = load_data(config)
    framework = framework_for(config, bundle.info, None)
    processes = framework.processes()
    if processes is None:
        raise InputError(
            f"model.type: {config.model.type} trains in one process, so that there is no mesh to "
            "plan; models of torch train in several"
        )
    check_reading(config, bundle, framework)
    check_batch_size(config, bundle, framework)
    samples = epoch_samples(config, len(bundle.splits["train"]))
    plan = framework.plan(config, samples)
    order = SampleOrder(samples, plan.batch_size, config.experiment.seed)
    splits = learner_splits(config, bundle, framework)
    inputs = LearnerInputs(config, bundle.info, config.model.params, 1, splits, order)
    return processes.plan(inputs, machines, is_free=is_free, refusals=refusals)
