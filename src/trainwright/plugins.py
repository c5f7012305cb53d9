"""Find adapters by kind and name: a table for ours, entry points for others; all are imported late.

Another package registers an adapter under an entry-point group, with the name that configs use and the class:

    [project.entry-points."trainwright.trackers"]
    mine = "my_package.tracker:MineTracker"

Our adapters win over others of the same name. A plugin that cannot be imported, or that lacks what its
contract needs, is an error where it is asked for, is named by `trainwright doctor`, and is skipped everywhere
else.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from trainwright.errors import InputError, MissingExtraError, ModelError
from trainwright.require import install_hint, open_process

if TYPE_CHECKING:
    from trainwright.tasks.base import Task
    from trainwright.types import DataInfo

Kind = Literal[
    "framework",
    "strategy",
    "dataset",
    "task",
    "tracker",
    "store",
    "sampler",
    "tuner",
    "exporter",
    "server",
    "version",
]
KINDS: tuple[Kind, ...] = get_args(Kind)


class BuiltIn(NamedTuple):
    """One of our adapters: where its class is, and the extra that brings the library it needs.

    `serves` are names that select it in a config without naming the adapter itself: the short model names of
    a framework, the values of `data.type` of a dataset. None: there are too many for the table, and the class
    is asked. `others` are the other names of a framework's models, those of the library's classes among them.
    """

    target: str
    extra: str | None = None
    serves: Sequence[str] | None = ()
    others: Sequence[str] = ()


BUILT_IN: Mapping[Kind, Mapping[str, BuiltIn]] = {
    "framework": {
        "catboost": BuiltIn(
            "trainwright.frameworks.catboost:CatboostFramework",
            "catboost",
            ["catboost"],
            ["cat", "CatBoostClassifier", "CatBoostRegressor"],
        ),
        "keras": BuiltIn(
            "trainwright.frameworks.keras:KerasFramework",
            "keras",
            ["keras", "keras_mlp", "keras_cnn"],
            ["mlp", "cnn", "convnet"],
        ),
        "lightgbm": BuiltIn(
            "trainwright.frameworks.lightgbm:LightgbmFramework",
            "lightgbm",
            ["lightgbm"],
            [
                *("lgbm", "lgb", "LGBMClassifier", "LGBMRegressor"),
                *("LightGBMClassifier", "LightGBMRegressor"),
            ],
        ),
        "sklearn": BuiltIn("trainwright.frameworks.sklearn:SklearnFramework", "sklearn", None),
        "torch": BuiltIn(
            "trainwright.frameworks.torch:TorchFramework",
            "torch",
            [
                *("cnn", "gpt", "lstm", "mlp", "resnet", "resnet18", "resnet34", "resnet50"),
                *("text_transformer", "transformer", "unet"),
                "transformers:AutoModelForSequenceClassification",
                "transformers:AutoModelForCausalLM",
            ],
            [
                *("nn", "dnn", "neural_net", "neural_network", "feedforward", "nn_torch"),
                *("multilayer_perceptron", "ft_transformer", "nanogpt"),
            ],
        ),
        "xgboost": BuiltIn(
            "trainwright.frameworks.xgboost:XgboostFramework",
            "xgboost",
            ["xgboost"],
            ["xgb", "XGBClassifier", "XGBRegressor", "XGBoostClassifier", "XGBoostRegressor"],
        ),
    },
    "strategy": {
        "auto": BuiltIn("trainwright.frameworks.torch.parallel.automatic:Automatic"),
        "ddp": BuiltIn("trainwright.frameworks.torch.parallel.ddp:DataParallel"),
        "fsdp": BuiltIn("trainwright.frameworks.torch.parallel.fsdp:FullySharded"),
        "hsdp": BuiltIn("trainwright.frameworks.torch.parallel.fsdp:FullySharded"),
    },
    "dataset": {
        "csv": BuiltIn("trainwright.datasets.csv:CsvDataset", "tabular", ["csv"]),
        "excel": BuiltIn("trainwright.datasets.excel:ExcelDataset", "excel", ["excel"]),
        "function": BuiltIn("trainwright.datasets.function:FunctionDataset"),  # any `package.module:function`
        "huggingface": BuiltIn(
            "trainwright.datasets.huggingface:HuggingfaceDataset", "tabular", ["huggingface"]
        ),
        "image_folder": BuiltIn(
            "trainwright.datasets.image_folder:ImageFolderDataset", "image", ["image_folder"]
        ),
        "image_table": BuiltIn(
            "trainwright.datasets.image_table:ImageTableDataset", "image", ["image_table"]
        ),
        "jsonl": BuiltIn("trainwright.datasets.jsonl:JsonlDataset", None, ["jsonl"]),
        "npy": BuiltIn("trainwright.datasets.npy:NpyDataset", None, ["npy"]),
        "npz": BuiltIn("trainwright.datasets.npz:NpzDataset", None, ["npz"]),
        "parquet": BuiltIn("trainwright.datasets.parquet:ParquetDataset", "tabular", ["parquet"]),
        "requests": BuiltIn("trainwright.datasets.requests:RequestsDataset", "tabular", ["requests"]),
        "sklearn": BuiltIn(
            "trainwright.datasets.sklearn:SklearnDataset",
            "tabular",
            ["digits", "iris", "wine", "breast_cancer", "diabetes"],
        ),
        "text": BuiltIn("trainwright.datasets.text:TextDataset", None, ["text"]),
        "text_table": BuiltIn(
            "trainwright.datasets.text_table:TextTableDataset", None, ["text_table", "text_folder"]
        ),
        "tfrecord": BuiltIn("trainwright.datasets.tfrecord:TfrecordDataset", "tfrecord", ["tfrecord"]),
        "webdataset": BuiltIn("trainwright.datasets.webdataset:WebdatasetDataset", None, ["webdataset"]),
    },
    "task": {
        "classification": BuiltIn("trainwright.tasks.classification:ClassificationTask"),
        "custom_loss": BuiltIn("trainwright.tasks.custom_loss:CustomLossTask"),
        "language_modeling": BuiltIn("trainwright.tasks.language_modeling:LanguageModelingTask"),
        "multilabel": BuiltIn("trainwright.tasks.multilabel:MultilabelTask"),
        "regression": BuiltIn("trainwright.tasks.regression:RegressionTask"),
        "segmentation": BuiltIn("trainwright.tasks.segmentation:SegmentationTask"),
        "token_classification": BuiltIn("trainwright.tasks.token_classification:TokenClassificationTask"),
    },
    "tracker": {
        "mlflow": BuiltIn("trainwright.trackers.mlflow:MlflowTracker", "mlflow"),
        "tensorboard": BuiltIn("trainwright.trackers.tensorboard:TensorboardTracker", "tensorboard"),
    },
    "exporter": {
        "aoti": BuiltIn("trainwright.exporters.aoti:AotiExporter", "torch"),
        "executorch": BuiltIn("trainwright.exporters.executorch:ExecutorchExporter", "executorch"),
        "huggingface": BuiltIn("trainwright.exporters.huggingface:HuggingfaceExporter", "huggingface"),
        "keras": BuiltIn("trainwright.exporters.native:KerasExporter"),
        "library": BuiltIn("trainwright.exporters.native:LibraryExporter"),
        "litert": BuiltIn("trainwright.exporters.litert:LitertExporter", "litert"),
        "mar": BuiltIn("trainwright.exporters.mar:MarExporter", "torch"),
        "mlflow": BuiltIn("trainwright.exporters.mlflow:MlflowExporter"),
        "native": BuiltIn("trainwright.exporters.native:NativeExporter"),
        "onnx": BuiltIn("trainwright.exporters.onnx:OnnxExporter", "onnx"),
        "peft": BuiltIn("trainwright.exporters.huggingface:PeftExporter", "huggingface"),
        "pmml": BuiltIn("trainwright.exporters.pmml:PmmlExporter", "pmml"),
        "pt2": BuiltIn("trainwright.exporters.pt2:Pt2Exporter", "torch"),
        "safetensors": BuiltIn("trainwright.exporters.safetensors:SafetensorsExporter"),
        "safetensors-bf16": BuiltIn("trainwright.exporters.safetensors:Bfloat16Exporter"),
        "savedmodel": BuiltIn("trainwright.exporters.native:SavedmodelExporter"),
        "sklearn": BuiltIn("trainwright.exporters.native:SklearnExporter"),
        "skops": BuiltIn("trainwright.exporters.native:SkopsExporter"),
        "torchscript": BuiltIn("trainwright.exporters.torchscript:TorchscriptExporter", "torch"),
    },
    "server": {
        "bentoml": BuiltIn("trainwright.servers.bentoml:BentomlServer"),
        "mlserver": BuiltIn("trainwright.servers.mlserver:MlserverServer"),
        "torchserve": BuiltIn("trainwright.servers.torchserve:TorchserveServer"),
        "trainwright": BuiltIn("trainwright.servers.own:OwnServer"),
        "triton": BuiltIn("trainwright.servers.triton:TritonServer", "onnx"),
        "vllm": BuiltIn("trainwright.servers.vllm:VllmServer"),
    },
    "sampler": {
        "cmaes": BuiltIn("trainwright.samplers.optuna:CmaEsSampler", "tuning"),
        "gp": BuiltIn("trainwright.samplers.optuna:GpSampler", "tuning"),
        "grid": BuiltIn("trainwright.samplers.grid:GridSampler"),
        "nsga2": BuiltIn("trainwright.samplers.optuna:Nsga2Sampler", "tuning"),
        "qmc": BuiltIn("trainwright.samplers.qmc:QmcSampler", "tuning"),
        "random": BuiltIn("trainwright.samplers.random:RandomSampler"),
        "tpe": BuiltIn("trainwright.samplers.optuna:TpeSampler", "tuning"),
    },
    "tuner": {"ray": BuiltIn("trainwright.tuners.ray:RayTuner", "ray")},
    "store": {  # by the scheme of the URL
        "az": BuiltIn("trainwright.stores.az:AzStore", "az"),
        "file": BuiltIn("trainwright.stores.local:LocalStore"),
        "gs": BuiltIn("trainwright.stores.gs:GsStore", "gs"),
        "hdfs": BuiltIn("trainwright.stores.hdfs:HdfsStore", "hdfs"),
        "s3": BuiltIn("trainwright.stores.s3:S3Store", "s3"),
    },
    "version": {
        "dvc": BuiltIn("trainwright.versions.dvc:DvcVersion"),
        "embedded": BuiltIn("trainwright.versions.embedded:EmbeddedVersion"),
    },
}
_replaced: dict[tuple[Kind, str], Any] = {}

_TARGET = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True)
class Plugin:
    """An adapter of another package, as its entry point describes it; nothing of it is imported.

    `ignored` says why it is never used; it is empty for one that is.
    """

    kind: Kind
    name: str
    target: str
    package: str
    ignored: str = ""

    def __str__(self) -> str:
        entry = f"entry point {self.name} = {self.target} in {entry_point_group(self.kind)}"
        return f"{self.kind} {self.name!r} of {self.package} ({entry})"


def adapter(kind: Kind, name: str) -> Any:
    """Return the adapter class `name` of a kind.

    Raises:
        InputError: There is none, or it is a plugin that cannot be used.
    """
    if (cls := find(kind, name)) is None:
        raise InputError(f"no {kind} {name!r}; there are: {', '.join(names(kind))}")
    return cls


def find(kind: Kind, name: str) -> Any:
    """Return the adapter class `name` of a kind, or None if there is none.

    Raises:
        InputError: It is a plugin that cannot be used.
    """
    if (kind, name) in _replaced:
        return _replaced[kind, name]
    if name in BUILT_IN[kind]:
        return _built_in(kind, name)
    plugin = next((one for one in _usable(kind) if one.name == name), None)
    if plugin is None:
        return None
    cls, error = _load(plugin)
    if error is not None:
        raise InputError(f"{_refusal(plugin, error)}; repair or uninstall {plugin.package.split()[0]}")
    return cls


def replace_adapter(kind: Kind, name: str, make: Callable[..., Any] | None) -> None:
    """Use something else for an adapter in this process: for tests, which put a wrapper there.

    Args:
        kind: The kind.
        name: The name of the adapter.
        make: What is called with the arguments of its constructor; None: the adapter again.
    """
    if make is None:
        _replaced.pop((kind, name), None)
    else:
        _replaced[kind, name] = make


def names(kind: Kind) -> tuple[str, ...]:
    """Return the names of a kind's adapters, sorted; nothing is imported."""
    return tuple(sorted({*BUILT_IN[kind], *(plugin.name for plugin in _usable(kind))}))


def usable_names(kind: Kind) -> list[str]:
    """Return the names of a kind's adapters without the plugins that cannot be used, sorted."""
    return sorted([*BUILT_IN[kind], *(name for name, _ in _imported(kind, ()))])


def adapters(kind: Kind) -> Iterator[tuple[str, Any]]:
    """Yield the names and classes of a kind's adapters: ours, then those of plugins that can be used."""
    yield from _imported(kind, BUILT_IN[kind])


def _imported(kind: Kind, ours: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Yield these of our adapters, then the plugins; each is imported when it is reached."""
    for name in ours:
        yield name, _built_in(kind, name)
    for plugin in _usable(kind):
        if _load(plugin)[1] is None:
            yield plugin.name, _load(plugin)[0]


def framework_of(model_type: str) -> str | None:
    """Return the framework that has a model of this short name, or None."""
    table = BUILT_IN["framework"]
    for name, entry in table.items():
        if model_type in (entry.serves or ()):
            return name
    is_none = ":" in model_type or any(model_type in entry.others for entry in table.values())
    unlisted = () if is_none else [name for name, entry in table.items() if entry.serves is None]
    candidates = _imported("framework", unlisted)
    return next((name for name, cls in candidates if model_type in cls.models), None)


def frameworks_with(is_meant: Callable[[str], bool]) -> Iterator[tuple[str, Any]]:
    """Yield the frameworks that may have a model of one of the names that `is_meant` accepts.

    Those whose names the table has come first, then those that must be asked.
    """
    table = BUILT_IN["framework"]
    named = [
        name
        for name, entry in table.items()
        if entry.serves is not None and any(map(is_meant, (*entry.serves, *entry.others)))
    ]
    return _imported("framework", [*named, *(name for name, entry in table.items() if entry.serves is None)])


def framework_of_package(package: str) -> str | None:
    """Return the framework whose models are classes of a package; ours are called as the package is."""
    if package in BUILT_IN["framework"]:
        return package
    plugins = _imported("framework", ())
    return next((name for name, cls in plugins if package in cls.library.modules), None)


def framework_of_class(cls: type) -> str:
    """Return the framework of a model class, by the modules of its bases; no library is imported for it.

    Raises:
        ModelError: No framework claims any of them.
    """
    modules = {name: framework.library.modules for name, framework in adapters("framework")}
    for base in cls.__mro__:  # the nearest one decides: estimators of XGBoost are scikit-learn's, too
        for name, claimed in modules.items():
            if base.__module__.split(".")[0] in claimed:
                return name
    known = ", ".join(f"{name} ({', '.join(claimed)})" for name, claimed in modules.items())
    raise ModelError(
        "; ".join(
            [
                f"{cls.__module__}:{cls.__qualname__} belongs to no known framework",
                f"known frameworks: {known}",
                *broken("framework"),
            ]
        )
    )


def name_of_framework(framework: type) -> str:
    """Return the name of a framework, built in or from elsewhere, given its class."""
    named = (name for name, known in adapters("framework") if known is framework)
    return next(named, framework.__name__)


def task_of(name: str) -> type[Task]:
    """Return the task of a name.

    Raises:
        InputError: There is none, or it is a plugin that cannot be used.
    """
    cls: type[Task] = adapter("task", name)
    return cls


def task_for(info: DataInfo) -> Task:
    """Return the task that the data ask of a model.

    Raises:
        InputError: It is of a plugin that is not installed, or cannot be used.
    """
    return task_of(info.task)(info)


def dataset_of(data_type: str) -> Any:
    """Return the dataset adapter that serves a value of `data.type`.

    Raises:
        InputError: There is none, or it is a plugin that cannot be used.
    """
    if (cls := find_dataset(data_type)) is None:
        raise InputError(f"no dataset {data_type!r}; there are: {', '.join(dataset_names())}")
    return cls


def find_dataset(data_type: str) -> Any:
    """Return the dataset adapter that serves a value of `data.type`, or None if there is none.

    Raises:
        InputError: It is a plugin that cannot be used.
    """
    if ":" in data_type:
        return adapter("dataset", "function")
    for name, entry in BUILT_IN["dataset"].items():
        if data_type in (entry.serves or ()):
            return adapter("dataset", name)
    others = (cls for name, cls in adapters("dataset") if name not in BUILT_IN["dataset"])
    if (cls := next((cls for cls in others if data_type in cls.names), None)) is not None:
        return cls
    if any(plugin.name == data_type for plugin in _usable("dataset")):
        find("dataset", data_type)  # raises if it cannot be used; one that can be serves other names
    return None


def dataset_names() -> list[str]:
    """Return the values of `data.type` that some dataset adapter serves."""
    return list(dict.fromkeys(served for _, cls in adapters("dataset") for served in cls.names))


@cache
def installed() -> tuple[Plugin, ...]:
    """Return every plugin that an installed package registers, without importing any.

    Of two packages with a plugin of one name, the first by name counts: the order in which a folder lists its
    packages is another one on each file system.
    """
    listed: dict[tuple[Kind, str], Plugin] = {}
    ignored: list[Plugin] = []
    points = metadata.entry_points()
    for kind in KINDS:
        found = [
            Plugin(kind, point.name, point.value, _package_of(point))
            for point in points.select(group=entry_point_group(kind))
        ]
        for plugin in sorted(found, key=lambda plugin: plugin.package):
            if plugin.name in BUILT_IN[kind]:
                ignored.append(replace(plugin, ignored=f"trainwright has a {kind} of this name"))
            elif (first := listed.setdefault((kind, plugin.name), plugin)) is not plugin:
                ignored.append(replace(plugin, ignored=f"{first.package} has one of this name"))
    return (*listed.values(), *ignored)


def _package_of(point: metadata.EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown package"


def error_of(plugin: Plugin) -> str | None:
    """Import a plugin, and return in one line why it cannot be used; None if it can."""
    return _load(plugin)[1]


def broken(*kinds: Kind) -> list[str]:
    """Return one line for each plugin of these kinds (default: all) that cannot be used."""
    return [
        _refusal(plugin, error)
        for plugin in installed()
        if plugin.kind in (kinds or KINDS) and not plugin.ignored and (error := _load(plugin)[1]) is not None
    ]


def _refusal(plugin: Plugin, error: str) -> str:
    return f"{plugin} cannot be used: {error}"


def _usable(kind: Kind) -> list[Plugin]:
    return [plugin for plugin in installed() if plugin.kind == kind and not plugin.ignored]


def entry_point_group(kind: Kind) -> str:
    """Return the group under which packages register the adapters of a kind."""
    return "trainwright.strategies" if kind == "strategy" else f"trainwright.{kind}s"


def _contract_of(kind: Kind) -> str:
    """Return the module with the contract of a kind's adapters."""
    if kind == "strategy":  # one of training with torch, and nothing else
        return "trainwright.frameworks.torch.parallel.strategy"
    return f"trainwright.{kind}s.base"


@cache
def _built_in(kind: Kind, name: str) -> Any:
    module, _, cls = BUILT_IN[kind][name].target.partition(":")
    try:
        return getattr(importlib.import_module(module), cls)
    except ModuleNotFoundError as error:
        extra = BUILT_IN[kind][name].extra
        if extra is None or (error.name or "").startswith("trainwright"):
            raise
        raise MissingExtraError(
            f"{kind} {name} needs {error.name}, which is not installed: {install_hint(extra)}"
        ) from error


@cache
def _load(plugin: Plugin) -> tuple[Any, str | None]:
    """Return the class of a plugin and None, or None and why it cannot be used."""
    if not _TARGET.fullmatch(plugin.target):
        return None, "an entry point must be package.module:Class"
    if plugin.kind != "framework":  # a run uses one framework, though all may be asked for their models
        open_process()
    module, _, path = plugin.target.partition(":")
    try:
        cls: Any = importlib.import_module(module)
        for part in path.split("."):
            cls = getattr(cls, part)
        lacks = _lacks(plugin.kind, cls)
    except (Exception, SystemExit) as error:  # foreign code may raise anything
        text = " ".join(str(error).split())
        return None, f"{type(error).__name__}{': ' if text else ''}{text}"
    return (None, lacks) if lacks else (cls, None)


def _lacks(kind: Kind, cls: Any) -> str | None:
    """Return what a class lacks of its kind's contract, or None."""
    from pydantic import BaseModel  # late: `--help` answers without it

    module = _contract_of(kind)
    contract: Any = getattr(importlib.import_module(module), kind.capitalize())
    if not isinstance(cls, type):
        return f"it is of type {type(cls).__name__}, not a class"
    if kind in ("framework", "strategy", "task") and not issubclass(cls, contract):
        return f"it is not a subclass of {module}.{kind.capitalize()}"
    members = _members(contract)
    missing = [name for name in members if not hasattr(cls, name)] or sorted(
        getattr(cls, "__abstractmethods__", ())
    )
    if missing:
        return f"it lacks {', '.join(missing)}"
    attributes = {name: getattr(cls, name) for name in members}
    options = [attributes["Params"]] if "Params" in attributes else attributes.get("models", {}).values()
    if not all(isinstance(one, type) and issubclass(one, BaseModel) for one in options):
        return "its options are not pydantic models"
    listed = {
        "names": attributes.get("names"),
        "library.modules": getattr(attributes.get("library"), "modules", ()),
    }
    texts = [name for name, value in listed.items() if isinstance(value, str)]
    return f"{texts[0]} must be a sequence of names, not one text" if texts else None


def _members(contract: Any) -> list[str]:
    """Return what a class must have to keep a contract: all public members without a default."""
    stated = [name for name in inspect.get_annotations(contract) if not hasattr(contract, name)]
    if getattr(contract, "_is_protocol", False):
        stated += [name for name, value in vars(contract).items() if inspect.isfunction(value)]
    return sorted(name for name in stated if not name.startswith("_"))
