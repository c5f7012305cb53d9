"""Check that data, framework and the settings of both fit, before anything is built of them."""

from __future__ import annotations

import logging

from trainwright.config.metrics import deciding_metrics, metric_path, of_head, undecided_modes
from trainwright.config.schema import DataConfig, RunConfig
from trainwright.datasets.base import DataBundle, KnownSplit, LabelSplit, SampleSplit
from trainwright.errors import DataError, InputError, LoaderBatchSizeError, ModelError
from trainwright.evaluation.metrics import accumulators, check_metric, mode_in
from trainwright.frameworks.base import Framework
from trainwright.plugins import task_for
from trainwright.tasks.support.heads import head_data

log = logging.getLogger("trainwright")


def check_metrics(config: RunConfig, bundle: DataBundle) -> None:
    """Check the metrics that the config names, and that those which decide something can be computed.

    Raises:
        InputError: A metric is not one of the task's, or there is no validation split to compute it on, or it
            is not known whether it is better when it is lower or higher.
    """
    for metric in config.evaluation.metrics or []:
        check_metric(metric, bundle.info.task)
    for name, one in config.training.heads.items():
        for metric in one.metrics or []:
            check_metric(metric, _task_of_head(config, name, bundle))
    undecided = undecided_modes(config)
    for key, metric in deciding_metrics(config).items():
        head = of_head(config, metric)
        task = bundle.info.task if head is None else _task_of_head(config, head[0], bundle)
        check_metric(metric_path(config, metric if head is None else head[1]), task)
        if key in undecided:
            try:
                mode_in(config, metric)
            except InputError as error:
                raise InputError(f"{key}: {error}") from error
        if "val" not in bundle.splits and key != "checkpoint.metric":
            raise InputError(f"{key}: {metric} needs a validation split; set data.split.val or data.val_path")


def _task_of_head(config: RunConfig, head: str, bundle: DataBundle) -> str:
    return head_data(head, config.training.heads[head], bundle.info).info.task


def check_accumulators(config: RunConfig, framework: type[Framework]) -> None:
    """Check that there is what metrics that add up by themselves count.

    Raises:
        InputError: The framework has no such outputs, or they are in another unit than the target; or a head,
            whose predictions are kept, names such a metric.
    """
    for head, options in config.training.heads.items():
        if found := accumulators(options.metrics or []):
            raise InputError(
                f"training.heads.{head}.metrics: {found[0].path} adds up by itself; list it in "
                "evaluation.metrics, with `update(self, outputs, batch)`, which gets the outputs of all heads"
            )
    if not (given := accumulators(config.evaluation.metrics or [])):
        return
    reason = None if framework.capabilities.accumulators else f"not those of {config.model.type}"
    if config.data is not None and config.data.target_transform is not None:
        reason = "not beside data.target_transform, as they are not in the unit of the target"
    if reason:
        raise InputError(
            f"evaluation.metrics: {given[0].path} adds up by itself, from the outputs of torch models, "
            f"{reason}; name a function of (targets, predictions)"
        )


def check_batch_size(config: RunConfig, bundle: DataBundle, framework: type[Framework]) -> None:
    """Compare the batch size with that of the user's data loaders, if the samples were given as such.

    Raises:
        LoaderBatchSizeError: They differ, and the config sets none.
    """
    training, size = config.training, bundle.batch_size
    if size in (None, training.batch_size):
        return
    if "batch_size" not in framework.training_keys(config.model.type, config.model.params):
        return
    if "batch_size" not in training.model_fields_set:
        raise LoaderBatchSizeError(
            f"the data loaders have a batch size of {size}, but the run one of {training.batch_size}, as the "
            f"config sets none; write training.batch_size: {size}",
            size,
        )
    log.warning(
        "training.batch_size: %d, as the config says; the data loaders have %d", training.batch_size, size
    )


def check_expectations(config: RunConfig, bundle: DataBundle) -> None:
    """Check that the rows could be compared with what the config expects of them.

    Raises:
        DataError: They are no tables or arrays in memory.
    """
    if config.data is not None and config.data.expect is not None and not bundle.expectations:
        raise DataError(
            f"data.expect is for tables and named arrays, but {config.data.type} gives samples that are read "
            "one by one; leave it out"
        )


def check_features(config: RunConfig, bundle: DataBundle) -> None:
    """Check that the feature steps that the config names had a table to work on.

    Raises:
        DataError: They had none.
    """
    name = None if config.data is None else config.data.features_from
    if config.data is not None and name is not None and getattr(bundle.preparation, "steps", None) is None:
        raise DataError(
            f"data.features_from is for the columns of tables, but {config.data.type} gives other samples; "
            "leave it out"
        )


def check_reading(config: RunConfig, bundle: DataBundle, framework: type[Framework]) -> None:
    """Check the settings that say how samples are read one by one; say so where they have no effect.

    Raises:
        DataError: The samples are in memory, so that there is nothing to collate.
        ModelError: The framework has no worker processes.
    """
    data = config.data
    if data is None:
        return
    _check_images(data, bundle, config, framework)
    if data.collate is None and data.on_corrupt == "error" and not data.workers:
        return
    is_read = any(isinstance(split, SampleSplit) for split in bundle.splits.values())
    if data.collate is not None and not is_read:
        raise DataError("data.collate is for map-style data sets, but these rows are in memory; leave it out")
    if data.on_corrupt != "error" and not is_read:
        raise DataError(
            "data.on_corrupt is for samples that are read one by one (images in files, map-style data sets, "
            "shards), but these rows are in memory; leave it out"
        )
    if data.workers and not is_read:
        log.warning("data.workers: %d has no effect, as the rows are in memory", data.workers)
    elif data.workers and not framework.capabilities.workers:
        raise ModelError(
            f"data.workers: {data.workers} given, but {config.model.type} reads its samples itself; leave it "
            "out, or use a model of torch"
        )


def _check_images(
    data: DataConfig, bundle: DataBundle, config: RunConfig, framework: type[Framework]
) -> None:
    """Check the settings of images.

    Raises:
        DataError: The data are no images in files.
        ModelError: The framework cannot draw random numbers for each image.
    """
    settings = {"transforms": data.transforms, "cache": data.cache != "none"}
    given = [key for key, is_given in settings.items() if is_given]
    if given and not any(isinstance(split, KnownSplit | LabelSplit) for split in bundle.splits.values()):
        for key in given:
            advice = "leave it out"
            if key == "transforms" and any(isinstance(one, SampleSplit) for one in bundle.splits.values()):
                advice = "change them in a function (webdataset: data.transform), or in __getitem__"
            raise DataError(
                f"data.{key} is for images in files (data.type: image_folder or image_table); {advice}"
            )
    if data.ignore_index is not None and not task_for(bundle.info).gives_masks:
        raise DataError("data.ignore_index is for masks (data.task: segmentation); leave it out")
    if not framework.capabilities.workers and (
        drawing := [one.type for one in data.transforms if one.is_random]
    ):
        raise ModelError(
            f"data.transforms: {drawing[0]} changes images at random in each epoch, which "
            f"{config.model.type} cannot have; leave it out, or use a model of torch"
        )
