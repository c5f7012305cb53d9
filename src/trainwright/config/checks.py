"""Check what must hold between keys, and fill in the defaults that depend on other keys.

The checks run on nodes, not on the validated config, so that these problems are reported together with all
others.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import PurePath

from trainwright.config.fields import RANGE
from trainwright.config.file_types import FILE_TYPES, ending_of, file_type
from trainwright.config.metrics import METRIC_KEYS, custom_name
from trainwright.config.schema import TrainingConfig, bounds, power_of_two
from trainwright.config.splits import DEFAULT_TEST_SHARE, SplitConfig
from trainwright.config.synonyms import OTHER_FILES
from trainwright.config.tree import DEFAULT, Node, Problems, Source, find, find_value, mapping, put
from trainwright.config.versions import SYSTEMS
from trainwright.world import gpus, ranks_of_environment

# Types that read files with the ending of another type, too: lines of text, and tables in text.
_BOTH = {("text", "jsonl"), ("text", "excel"), ("csv", "text")}
IMPORT_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
DEFAULT_EPOCHS = 10
OBJECTS = "python:objects"  # `data.type` of data that are Python objects, if the config names no source


def fill_defaults(root: Node, stem: str, *, length: bool, objects: bool) -> None:
    """Fill in the defaults that a schema cannot express.

    Args:
        root: The config.
        stem: The name of the config's file.
        length: Also fill in how long to train. Otherwise the framework's own default comes first.
        objects: The data are given in Python, so a `data` section need not name a source.
    """
    if find(root, "experiment.name") is None:
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("._-") or "run"
        put(root, "experiment.name", Node(name, Source("default (name of the file)")))
    if (
        length
        and find_value(root, "training.epochs") is None
        and find_value(root, "training.max_steps") is None
    ):
        put(root, "training.epochs", Node(DEFAULT_EPOCHS, Source("default")))
    _fill_processes(root)
    scheduler = find(root, "training.scheduler")
    if isinstance(scheduler and scheduler.value, dict):
        mapping(scheduler).setdefault("type", Node("constant", Source("default")))
    data = find_value(root, "data")
    if data is None and objects:
        put(root, "data.type", Node(OBJECTS, Source("default (of data given as objects)")))
    elif data is not None and not _text(data, "type"):
        key, kind = _type_by_path(data)
        if kind is not None:
            mapping(data)["type"] = Node(
                kind, Source(f"default (ending of data.{key})"), mapping(data)[key].source
            )
        elif objects and not (_text(data, "path") or _text(data, "train_path")):
            mapping(data)["type"] = Node(OBJECTS, Source("default (of data given as objects)"))
    data, model = find_value(root, "data"), find_value(root, "model")
    if (
        data is not None
        and model is not None
        and (objects or ":" in (_text(data, "type") or ""))
        and ":" in (_text(model, "type") or "")
        and find(root, "data.standardize") is None
    ):
        source = Source("default (of data that are given to a model of one's own)")
        put(root, "data.standardize", Node(False, source))


def _fill_processes(root: Node) -> None:
    """Fill in the number of processes, and the virtual mesh, where they are left to us."""
    nproc = find(root, "distributed.nproc")
    launched, enabled = ranks_of_environment(), find_value(root, "distributed.enabled")
    is_auto = enabled is not None and enabled.value is True if nproc is None else nproc.value == "auto"
    if launched is not None:
        nproc = Node(launched[1], Source("the launcher of this process"))
        put(root, "distributed.nproc", nproc)
        put(root, "distributed.nnodes", Node(1, nproc.source))  # they are counted in `nproc`
    elif is_auto:
        nproc = Node(gpus(), DEFAULT if nproc is None else nproc.source)
        put(root, "distributed.nproc", nproc)
    virtual = find(root, "distributed.virtual")
    source = DEFAULT if virtual is None else virtual.source
    if virtual is not None and virtual.value == "auto":
        virtual.value = {}
    most, nnodes = _processes(nproc) or (1, 1), _number(root, "distributed.nnodes") or 1
    model = _model_axes(root)
    samples = max(1, int(most[1] * nnodes) // math.prod(model.values()))
    for axis, size in {"data": power_of_two(samples), **model}.items():
        given = find(root, f"distributed.virtual.{axis}")
        if given is None or given.value == "auto":
            put(root, f"distributed.virtual.{axis}", Node(size, source if given is None else given.source))


def _model_axes(root: Node) -> dict[str, int]:
    """Return the sizes of the mesh along the axes that divide the model; 1 for a wrong one."""
    return {axis: max(1, int(_number(root, f"distributed.{axis}") or 1)) for axis in ("tensor", "pipeline")}


def _processes(nproc: Node | None) -> tuple[int, int] | None:
    """Return the smallest and the greatest number of processes; None if it is not given, or wrong."""
    value = nproc.value if nproc is not None else None
    if isinstance(value, bool) or not re.fullmatch(rf"[1-9]\d*|{RANGE[1:-1]}", str(value)):
        return None
    return bounds(str(value))


def check(root: Node, problems: Problems) -> None:
    """Report keys that contradict each other."""
    for path, one in _CHECKS:
        if (node := find_value(root, path)) is not None:
            one(root, path, node, problems)


def check_import_path(node: Node | None, path: str, problems: Problems) -> None:
    """Report a text with a colon that is not an import path."""
    if (
        node is not None
        and isinstance(node.value, str)
        and ":" in node.value
        and not IMPORT_PATH.fullmatch(node.value)
    ):
        file, _, name = node.value.rpartition(":")
        mend = (
            f"; write {PurePath(file).stem}:{name}, and start it where the file is"
            if file.endswith(".py")
            else ""
        )
        given = node.template or repr(node.value)
        problems.report(f"expected package.module:Name, got {given}{mend}", path, node.source)


def _number(root: Node, path: str) -> float | None:
    node = find_value(root, path)
    return (
        node.value
        if node is not None and isinstance(node.value, int | float) and not isinstance(node.value, bool)
        else None
    )


def _text(node: Node, key: str) -> str | None:
    child = mapping(node).get(key)
    return child.value if child is not None and isinstance(child.value, str) and child.value else None


def _type_by_path(data: Node) -> tuple[str, str | None]:
    key = next((name for name in ("path", "train_path") if _text(data, name)), "path")
    path = _text(data, key)
    return key, file_type(path) if path else None  # not that of the files in the current folder


def _check_length(root: Node, path: str, node: Node, problems: Problems) -> None:
    if find_value(root, "training.epochs") is not None:
        message = (
            "both epochs and max_steps are given; keep one (null unsets one that comes from another file)"
        )
        problems.report(message, path, node.key_source)


def _batch_size(root: Node) -> float:
    given = _number(root, "training.batch_size")
    default: int = TrainingConfig.model_fields["batch_size"].default
    return default if given is None else given


def _check_microbatch(root: Node, path: str, node: Node, problems: Problems) -> None:
    micro, batch = _number(root, path), _batch_size(root)
    if micro is not None and micro > batch > 0:
        message = (
            f"{micro} is more than the batch_size of {batch}; a microbatch is a part of the batch: give at "
            f"most {batch}"
        )
        problems.report(message, path, node.source)


def _check_virtual_ranks(root: Node, path: str, node: Node, problems: Problems) -> None:
    ranks, batch = _number(root, path), _batch_size(root)
    if ranks is not None and ranks > batch > 0:
        message = (
            f"{ranks} is more than the batch_size of {batch}; each virtual rank takes a part of the batch: "
            f"give at most {batch}"
        )
        problems.report(message, path, node.source)


def _check_processes(root: Node, path: str, node: Node, problems: Problems) -> None:
    ranks, model = _number(root, "distributed.virtual.data"), math.prod(_model_axes(root).values())
    nproc, nnodes = _processes(node), int(_number(root, "distributed.nnodes") or 1)
    shard = int(_number(root, "distributed.shard") or 1)
    if not nproc or not ranks or nproc[0] > nproc[1] or ranks % shard:
        return  # which is reported elsewhere
    if nnodes * nproc[1] == 1:
        return  # a single process has no axes
    allowed = [
        count // nnodes
        for power in range(int(ranks).bit_length())
        if (count := model * 2**power) % nnodes == 0 and 2**power % shard == 0
    ]
    if any(nproc[0] <= count <= nproc[1] for count in allowed):
        return
    given = f"{node.value} on each of {nnodes} nodes" if nnodes > 1 else node.value
    what = "does not divide" if nproc[0] == nproc[1] else "holds no divisor of"
    message = f"{given} {what} the {ranks} virtual ranks of the batch"
    if model > 1:
        sizes = " x ".join(f"{axis} {size}" for axis, size in _model_axes(root).items() if size > 1)
        message = f"{given} processes are not {sizes} x a divisor of virtual.data, which is {ranks}"
    elif shard > 1:
        message = f"{given} does not lie between shard ({shard}) and the {ranks} virtual ranks of the batch"
    numbers = ", ".join(map(str, allowed if model == 1 or nnodes > 1 else [1, *allowed]))
    axes = "; or give distributed.tensor or distributed.pipeline, too" if model > 1 else ""
    problems.report(f"{message}; allowed: {numbers}{axes}", path, node.source)


def _check_axis(root: Node, path: str, node: Node, problems: Problems) -> None:
    """Check that the size of an axis of the processes divides that of the virtual mesh."""
    axis = path.rpartition(".")[2]
    whole = f"distributed.virtual.{'data' if axis == 'shard' else axis}"
    size, virtual = _number(root, path), _number(root, whole)
    if not size or not virtual or size < 1 or virtual % size == 0:
        return
    allowed = ", ".join(str(one) for one in range(1, int(virtual) + 1) if virtual % one == 0)
    message = f"{size} does not divide {whole.removeprefix('distributed.')}, which is {virtual}; "
    problems.report(message + f"allowed: {allowed}", path, node.source)


def _check_shard(root: Node, path: str, node: Node, problems: Problems) -> None:
    strategy, size = find_value(root, "distributed.strategy"), _number(root, path)
    name = "ddp" if strategy is None else strategy.value
    if name == "ddp" and size is not None and size > 1:
        message = "is of strategies that share parameters out; set distributed.strategy: hsdp, or fsdp"
        problems.report(message, path, node.key_source)
        return
    _check_axis(root, path, node, problems)


def _check_wrap(root: Node, path: str, node: Node, problems: Problems) -> None:
    strategy = find_value(root, "distributed.strategy")
    if node.value and (strategy is None or strategy.value == "ddp"):
        message = "is of strategies that gather modules; set distributed.strategy: fsdp, or hsdp"
        problems.report(message, path, node.key_source)


def _check_sizes(root: Node, path: str, node: Node, problems: Problems) -> None:
    _check_wrap(root, path, node, problems)
    if node.value is not None and (wrap := find_value(root, "distributed.wrap")) is not None and wrap.value:
        message = "distributed.wrap names the modules that are gathered; keep one of the two"
        problems.report(message, path, node.key_source)


def _check_nodes(root: Node, path: str, node: Node, problems: Problems) -> None:
    nproc = find_value(root, "distributed.nproc")
    if (_number(root, path) or 1) <= 1:
        return
    if find_value(root, "distributed.rdzv_endpoint") is None:
        message = "several nodes also need rdzv_endpoint: HOST:PORT, a free port of one of them"
        problems.report(message, path, node.key_source)
    if nproc is not None and ".." in str(nproc.value):
        message = f"the range {nproc.value} is for one node; with several, give the number for each of them"
        problems.report(message, "distributed.nproc", nproc.source)


def _check_warmup(root: Node, path: str, node: Node, problems: Problems) -> None:
    warmup, steps = _number(root, path), _number(root, "training.max_steps")
    if warmup is not None and steps is not None and warmup > steps:
        message = (
            f"{warmup} steps of warm-up do not fit into max_steps: {steps}; shorten the warm-up, or train "
            "longer"
        )
        problems.report(message, path, node.source)


def _check_clipping(root: Node, path: str, node: Node, problems: Problems) -> None:
    if find_value(root, "training.max_grad_norm") is not None:
        problems.report("both max_grad_norm and max_grad_value are given; keep one", path, node.key_source)


def _check_compiling(root: Node, path: str, node: Node, problems: Problems) -> None:
    compiles = find_value(root, "training.compile")
    if compiles is not None and compiles.value is True and node.value:
        message = (
            "cannot be combined with training.compile, which decides by itself what is computed again; keep "
            "one"
        )
        problems.report(message, path, node.key_source)


def _check_slices(root: Node, path: str, node: Node, problems: Problems) -> None:
    compiles = find_value(root, "training.compile")
    if compiles is not None and compiles.value is True and isinstance(node.value, int) and node.value > 1:
        message = "cannot compile layers that are computed in slices (training.compile); keep one"
        problems.report(message, path, node.key_source)


def _check_interval(root: Node, path: str, node: Node, problems: Problems) -> None:
    every = find_value(root, "checkpoint.every_n_minutes")
    if every is None or every.value != "auto":
        message = "is only used with checkpoint.every_n_minutes: auto; set that, or leave this out"
        problems.report(message, path, node.key_source)


def _check_cadence(root: Node, path: str, node: Node, problems: Problems) -> None:
    if find_value(root, "evaluation.every_n_steps") is not None:
        problems.report("both every_n_steps and every_n_epochs are given; keep one", path, node.key_source)


def _check_positive(root: Node, path: str, node: Node, problems: Problems) -> None:
    task, target = find_value(root, "data.task"), find_value(root, "data.target")
    if task is not None and task.value not in ("auto", "classification"):
        what = f"data.task is {task.value}"
    elif target is not None and isinstance(target.value, list) and len(target.value) > 1:
        what = f"data.target names {len(target.value)} columns"
    else:
        return
    problems.report(f"is for one target of two classes, but {what}; leave it out", path, node.key_source)


def _check_source(root: Node, path: str, data: Node, problems: Problems) -> None:  # noqa: ARG001 - a check
    if not isinstance(data.value, dict):
        return
    kind, file = _text(data, "type"), _text(data, "path") or _text(data, "train_path")
    unset = any(node.template is not None and node.text is None for node in mapping(data).values())
    if unset:
        return  # an unset variable has been reported already
    if not mapping(data).keys().isdisjoint(SYSTEMS) and kind is not None:
        return
    if kind is None and file is None:
        problems.report(
            "names no source; give type (digits, wine ...), path or train_path", path, data.key_source
        )
    elif kind is None:
        endings = ", ".join(FILE_TYPES)
        node = mapping(data)["path" if _text(data, "path") else "train_path"]
        hint = OTHER_FILES.get(ending_of(str(node.value)), "set data.type")
        problems.report(
            f"the file name's ending is unknown (known: {endings}); {hint}", "data.path", node.source
        )
    elif kind in FILE_TYPES.values() and file is None:
        problems.report(f"type {kind} needs path, or train_path", path, data.key_source)
    elif kind in FILE_TYPES.values() and (by_path := FILE_TYPES.get(ending_of(file or ""))) not in {
        None,
        kind,
    }:
        key = _type_by_path(data)[0]
        if (kind, by_path) in _BOTH:
            return
        problems.report(
            f"has the ending of {by_path}, but data.type is {kind}; make them agree",
            f"data.{key}",
            mapping(data)[key].source,
        )


def _check_one_path(root: Node, path: str, node: Node, problems: Problems) -> None:
    if find_value(root, "data.path") is not None:
        problems.report("both path and train_path are given; keep one", path, node.key_source)


def _check_other_path(root: Node, path: str, node: Node, problems: Problems) -> None:
    if find_value(root, "data.train_path") is None:
        where = "; rename path to train_path" if find_value(root, "data.path") is not None else ""
        problems.report(f"also needs train_path{where}", path, node.key_source)


def _check_split(root: Node, path: str, split: Node, problems: Problems) -> None:
    val, test = _number(root, f"{path}.val"), _number(root, f"{path}.test")
    one_source = find_value(root, "data.train_path") is None
    shares = [
        SplitConfig().val if val is None else val,
        (DEFAULT_TEST_SHARE if one_source else 0.0) if test is None else test,
    ]
    if all(0 <= share < 1 for share in shares) and sum(shares) >= 1:
        message = (
            f"val {shares[0]:g} and test {shares[1]:g} leave nothing to train on; their sum must be below 1"
        )
        problems.report(message, path, split.key_source)


def _check_metric(root: Node, path: str, node: Node, problems: Problems) -> None:  # noqa: ARG001 - a check
    if not isinstance(node.value, str) or node.value.startswith("val_"):
        return
    if ":" in node.value:
        name = custom_name(node.value)
        reason = f"list {node.value} in evaluation.metrics, and write val_{name} here"
    elif node.value == "train_loss":
        reason = "train_loss is a mean over the steps since the last log, not an evaluation; use val_loss"
    elif node.value.startswith("test_"):
        reason = f"the test split must not decide anything; use val_{node.value.removeprefix('test_')}"
    else:
        reason = (
            f"expected val_loss or val_METRIC, got {node.value!r}; `trainwright config names metric` "
            "lists them"
        )
    problems.report(reason, path, node.source)


def _check_import_path(root: Node, path: str, node: Node, problems: Problems) -> None:  # noqa: ARG001 - a check
    check_import_path(node, path, problems)


# Each is called for a key that is given.
_CHECKS: tuple[tuple[str, Callable[[Node, str, Node, Problems], None]], ...] = (
    ("training.max_steps", _check_length),
    ("training.microbatch_size", _check_microbatch),
    ("distributed.virtual.data", _check_virtual_ranks),
    ("distributed.nproc", _check_processes),
    ("distributed.nnodes", _check_nodes),
    ("distributed.shard", _check_shard),
    ("distributed.tensor", _check_axis),
    ("distributed.pipeline", _check_axis),
    ("distributed.wrap", _check_wrap),
    ("distributed.min_num_params", _check_sizes),
    ("training.scheduler.warmup_steps", _check_warmup),
    ("training.max_grad_value", _check_clipping),
    ("training.activation_checkpointing", _check_compiling),
    ("distributed.tensor", _check_slices),
    ("distributed.virtual.tensor", _check_slices),
    ("checkpoint.mtbf_hours", _check_interval),
    ("evaluation.every_n_epochs", _check_cadence),
    ("evaluation.positive", _check_positive),
    ("data", _check_source),
    ("data.train_path", _check_one_path),
    ("data.val_path", _check_other_path),
    ("data.test_path", _check_other_path),
    ("data.split", _check_split),
    *((path, _check_metric) for path in METRIC_KEYS),
    *(
        (path, _check_import_path)
        for path in (
            "model.type",
            "data.type",
            "data.features_from",
            "training.scheduler.function",
            "training.optimizer.type",
        )
    ),
)
