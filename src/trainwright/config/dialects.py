"""Translate older spellings, and those of other tools (`habits.py`). A note tells of each translation."""

from __future__ import annotations

import re
from collections.abc import Collection

from trainwright.config import habits
from trainwright.config.schema import TrainingConfig
from trainwright.config.tree import Node, Problems, find, find_value, put, take

# Key by key first, then whole sections; the order matters.
MOVES = (
    ("model.name", "model.type"),
    ("checkpointing.save_every_n_steps", "checkpoint.every_n_steps"),
    ("checkpointing.keep_n_checkpoints", "checkpoint.keep_last"),
    ("checkpointing", "checkpoint"),
    ("training.checkpoint", "checkpoint"),
    ("logging.log_every_n_steps", "logging.every_n_steps"),
    ("logging.eval_every_n_steps", "evaluation.every_n_steps"),
)
# Values of `distributed.strategy`, in lower case and without separators, as PyTorch, Lightning and Accelerate
# users write them.
DDP = ("ddp", "ddpspawn", "ddpnotebook", "ddpfork", "distributeddataparallel", "multigpu")
DP = ("dp", "dataparallel")


def translate(root: Node, problems: Problems, notes: list[str], own: Collection[str] | None = ()) -> None:
    """Rewrite one layer (a file, or the overrides) into today's spelling, in place.

    It is a problem if an older key and its modern one are both given.

    Args:
        root: The layer.
        problems: Where problems are reported.
        notes: Where translations are noted.
        own: The options of `data.type`; None: any key may be one.
    """
    kind = find_value(root, "model.type")
    for old, new in MOVES:
        if old == "model.name" and kind is not None and ":" in str(kind.value):
            continue  # an argument of the user's own class or function
        habits.move(root, old, new, problems, notes, "the older spelling of")
    habits.translate(root, problems, notes, own)
    _tracking_uri(root, problems, notes)
    _mixed_precision(root, problems, notes)
    _strategy(root, notes)
    for path in ("model", "model.type"):
        kind = find(root, path)
        if kind is not None and kind.value == "pytorch":
            kind.value = "mlp"
            notes.append(f"{kind.source}: {path}: pytorch is read as {path}: mlp")


def accumulate(root: Node, problems: Problems, notes: list[str]) -> None:
    """Translate `gradient_accumulation_steps` in the merged config.

    With n accumulation steps, a `batch_size` of b becomes a batch size of n*b and a microbatch size of b.
    """
    old = "training.gradient_accumulation_steps"
    steps = take(root, old)
    if steps is None:
        return
    if not isinstance(steps.value, int) or isinstance(steps.value, bool) or steps.value < 1:
        problems.report("expected a whole number above 0", old, steps.source)
        return
    if find_value(root, "training.microbatch_size") is not None:
        problems.report(
            "is the older spelling of training.microbatch_size, which is given too; keep one",
            old,
            steps.key_source,
        )
        return
    batch = find_value(root, "training.batch_size")
    micro = TrainingConfig.model_fields["batch_size"].default if batch is None else batch.value
    if not isinstance(micro, int) or isinstance(micro, bool):
        return  # validation reports it
    put(root, "training.batch_size", Node(micro * steps.value, steps.source, steps.key))
    put(root, "training.microbatch_size", Node(micro, (batch or steps).source, (batch or steps).key))
    total = micro * steps.value
    notes.append(
        f"{steps.key_source}: {old}: {steps.value} is read as training.batch_size: {total}, "
        f"microbatch_size: {micro}"
    )


def _tracking_uri(root: Node, problems: Problems, notes: list[str]) -> None:
    old = "experiment.tracking_uri"
    uri = take(root, old)
    if uri is None:
        return
    if find(root, "tracking") is not None:
        problems.report(
            "is the older spelling of tracking: [{type: mlflow, uri: ...}], which is given too; keep one",
            old,
            uri.key_source,
        )
        return
    item = Node({"type": Node("mlflow", uri.key_source, uri.key), "uri": uri}, uri.key_source)
    put(root, "tracking", Node([item], uri.key_source, uri.key))
    notes.append(f"{uri.key_source}: {old} is read as tracking: [{{type: mlflow, uri: ...}}]")


def _mixed_precision(root: Node, problems: Problems, notes: list[str]) -> None:
    old = "training.mixed_precision"
    mixed = take(root, old)
    if mixed is None:
        return
    if find(root, "training.precision") is not None:
        problems.report(
            "is the older spelling of training.precision, which is given too; keep one", old, mixed.key_source
        )
    elif not isinstance(mixed.value, bool):
        problems.report("expected true or false", old, mixed.source)
    else:
        precision = "mixed" if mixed.value else "fp32"
        meaning = " (fp16 on CUDA, bf16 on CPU)" if mixed.value else ""
        put(root, "training.precision", Node(precision, mixed.source, mixed.key))
        notes.append(
            f"{mixed.key_source}: {old}: {str(mixed.value).lower()} is read as "
            f"training.precision: {precision}{meaning}"
        )


def _strategy(root: Node, notes: list[str]) -> None:
    """Read the usual spellings of data parallel training as `ddp`."""
    path = "distributed.strategy"
    node = find(root, path)
    if node is None or not isinstance(node.value, str) or node.value == "ddp":
        return
    given, last = node.value, node.value.rpartition(".")[2].lower()
    name = re.sub(r"[^a-z0-9]", "", last.removesuffix("_find_unused_parameters_true"))
    if name in DP:
        notes.append(
            f"{node.source}: {path}: {given} is read as ddp, which trains the same model with one process "
            "for each GPU; write ddp, and set distributed.nproc to the number of processes"
        )
    elif name in DDP:
        notes.append(f"{node.source}: {path}: {given} is read as ddp")
    else:
        return  # the lookup reports it
    node.value = "ddp"
