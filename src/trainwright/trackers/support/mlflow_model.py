"""Write a run's model as MLflow keeps models: a folder with `MLmodel`, which `mlflow.pyfunc` loads.

    MLmodel                     the flavor, the signature, what each column holds
    requirements.txt            what must be installed to load it; also as python_env.yaml and conda.yaml
    wheels/                     the wheel of Trainwright, which is on no package index
    input_example.json          a row that the model takes; synthetic, as no row of the data leaves the run
    run/                        the portable part of the run
    model.onnx                  the model for the flavor `onnx`, if it was asked for

MLflow itself is not imported: the files are plain, and its import takes seconds.
"""

from __future__ import annotations

import base64
import hashlib
import json
import platform
import re
import zipfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trainwright import plugins
from trainwright.config.emit import emit
from trainwright.datasets.tables.encoders.base import Encoder
from trainwright.datasets.tables.preparation import AnyPreparation, TabularPreparation, from_json
from trainwright.datasets.tables.raw import RawPreparation
from trainwright.datasets.tables.typed import ColumnKind
from trainwright.datasets.texts.preparation import TextPreparation
from trainwright.errors import CheckpointError, DataError, InputError
from trainwright.records.data import DataDescription, understanding
from trainwright.records.manifest import Manifest
from trainwright.records.run_dir import RunDir
from trainwright.redact import printable
from trainwright.require import extras, import_paths, installed_version
from trainwright.safe_files import read_regular
from trainwright.types import DataInfo
from trainwright.version import VERSION

LOADER = "trainwright.integrations.mlflow"
DATA = "run"  # the folder of the portable run
ONNX = "model.onnx"
WHEELS = "wheels"  # where MLflow, too, puts those that it adds to a model
_ALWAYS = ("numpy", "pandas")  # predictions are data frames
_VERSION = re.compile(r"[\w.!+-]+")
_TYPES = {"b": "boolean", "i": "long", "u": "long", "f": "double"}

Json = dict[str, Any]


class Logged(NamedTuple):
    """A model that is logged to MLflow: its ids there, and the run that made it."""

    model_id: str | None = None
    run_id: str | None = None


def write_model(
    folder: Path,
    logged: Logged = Logged(),  # noqa: B008 - immutable
    metadata: Mapping[str, str] | None = None,
    *,
    onnx: bool = False,
) -> Path:
    """Turn a folder that holds a portable run in `run` into an MLflow model, and return it.

    Args:
        folder: The folder.
        logged: The ids in MLflow, if the model is logged there.
        metadata: What else to write into the metadata of `MLmodel`.
        onnx: The folder holds `model.onnx`, which `mlflow.onnx` is to load.

    Raises:
        InputError: The model's predictions need targets, so that rows alone have none; or they are masks.
    """
    run = RunDir(folder / DATA)
    manifest = run.require_manifest()
    description = DataDescription.load(run.path / DataDescription.FILE)
    if description is None:
        raise InputError(f"run {manifest.run_id} does not say how its data were prepared")
    with understanding(run.path / DataDescription.FILE):
        info = DataInfo.from_json(description.info)
        preparation = from_json(description.preparation) if description.preparation else None
    if plugins.task_for(info).gives_masks:
        raise InputError(f"the predictions of {info.task} are masks, which a table cannot hold")
    if plugins.task_for(info).sums:
        raise InputError(f"the predictions of {info.task} need targets, so that rows alone cannot be served")
    example = _example(preparation) if isinstance(preparation, TabularPreparation) else None
    document = {
        **_identity(logged),
        "flavors": _flavors(manifest, info) | (_onnx_flavor() if onnx else {}),
        "signature": {
            "inputs": json.dumps(_inputs(info, preparation)),
            "outputs": json.dumps(_outputs(info)),
            "params": None,
        },
        "metadata": ({"columns": preparation.contents} if preparation else {}) | dict(metadata or {}),
    }
    if example is not None:
        document["saved_input_example_info"] = _write_example(folder, example)
    (folder / "MLmodel").write_text(emit(document), encoding="utf-8")
    requirements, missing = requirements_of(run, manifest), _missing(run)
    if onnx:
        requirements += [f"{name}=={installed_version(name)}" for name in ("onnx", "onnxruntime")]
    if (wheel := write_wheel(folder / WHEELS)) is not None:
        requirements.append(wheel.relative_to(folder).as_posix())
    else:
        missing.append(
            f"Trainwright {VERSION}, which was not installed as a package where the model was written"
        )
    _write_environments(folder, requirements, missing)
    return folder


def _identity(logged: Logged) -> Json:
    ids = {"run_id": logged.run_id, "model_id": logged.model_id, "model_uuid": logged.model_id}
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    version = {"mlflow_version": installed_version("mlflow")} if installed_version("mlflow") else {}
    return {key: value for key, value in ids.items() if value} | version | {"utc_time_created": now}


def _flavors(manifest: Manifest, info: DataInfo) -> Json:
    environment = {"conda": "conda.yaml", "virtualenv": "python_env.yaml"}
    pyfunc = {
        "loader_module": LOADER,
        "data": DATA,
        "env": environment,
        "python_version": platform.python_version(),
    }
    own = {"version": VERSION, "run_id": manifest.run_id, "task": info.task, "data": DATA}
    return {"python_function": pyfunc, "trainwright": own}


def _onnx_flavor() -> Json:
    """Return the flavor that `mlflow.onnx` reads, which serves on the CPU as the certificate was made."""
    about = {"onnx_version": installed_version("onnx"), "data": ONNX, "code": None}
    return {"onnx": {**about, "providers": ["CPUExecutionProvider"], "onnx_session_options": None}}


# --- signature


def _inputs(info: DataInfo, preparation: AnyPreparation | None) -> list[Json]:
    """Return the inputs of the signature."""
    if isinstance(preparation, TabularPreparation):
        return [
            {
                "type": _type_of(column, preparation.kinds.get(column.name)),
                "name": column.name,
                "required": not column.accepts_missing,
            }
            for column in preparation.columns
        ]
    if isinstance(preparation, RawPreparation):
        columns = zip(preparation.feature_names, preparation.dtypes, strict=True)
        return [{"type": _type_of_frame(dtype), "name": name, "required": True} for name, dtype in columns]
    if isinstance(preparation, TextPreparation):
        words = {"type": "array", "items": {"type": "string"}}
        kind = words if preparation.of_words else {"type": "string"}
        return [{**kind, "name": preparation.column, "required": True}]
    if preparation is not None:  # the content of an image file; JSON has it as base64
        return [{"type": "binary", "name": name, "required": True} for name in preparation.column_names]
    tensors = [
        {"type": "tensor", "tensor-spec": {"dtype": spec.dtype, "shape": [-1, *spec.shape]}, "name": name}
        for name, spec in info.inputs.items()
    ]
    return tensors if len(tensors) > 1 else [{k: v for k, v in tensors[0].items() if k != "name"}]


def _type_of(column: Encoder, kind: ColumnKind | None) -> str:
    """Return MLflow's type of the cells of a column.

    Text that the preparation reads as numbers, yes and no, or times in a format of their own stays text:
    MLflow would read 1,5 and 03/04/2026 otherwise, or not at all.
    """
    if column.reads == "text" or (kind is not None and kind.given == "text"):
        return "string"
    if column.reads == "time":
        return "datetime"
    return "boolean" if kind is not None and kind.kind == "boolean" else "double"


def _type_of_frame(dtype: str) -> str:
    """Return MLflow's type of a column of a data frame."""
    kinds = {"int": "long", "uint": "long", "float": "double", "bool": "boolean", "datetime": "datetime"}
    return next((kind for name, kind in kinds.items() if dtype.lower().startswith(name)), "string")


def _outputs(info: DataInfo) -> list[Json]:
    """Return the columns of the predictions, with MLflow's names of their types."""
    shape = (1, info.outputs) if info.outputs > 1 else (1,)
    columns = plugins.task_for(info).columns(np.zeros(shape, dtype=np.float32))
    return [
        {"type": _TYPES.get(np.asarray(values).dtype.kind, "string"), "name": name, "required": True}
        for name, values in columns.items()
    ]


# --- input example


def _example(preparation: TabularPreparation) -> Json | None:
    """Return an artificial row, by column, that the preparation accepts; None if none can be made."""
    row = {column.name: column.example for column in preparation.columns}
    try:
        preparation.features([row])
    except DataError:
        return None
    return row


def _write_example(folder: Path, row: Mapping[str, Any]) -> Json:
    split = {"columns": list(row), "data": [list(row.values())]}
    (folder / "input_example.json").write_text(json.dumps(split), encoding="utf-8")
    (folder / "serving_input_example.json").write_text(
        json.dumps({"dataframe_split": split}, indent=2), encoding="utf-8"
    )
    return {
        "artifact_path": "input_example.json",
        "pandas_orient": "split",
        "serving_input_path": "serving_input_example.json",
        "type": "dataframe",
    }


# --- requirements


def requirements_of(run: RunDir, manifest: Manifest) -> list[str]:
    """Return what of the package index must be installed to predict with a model, with exact versions.

    These are MLflow and the libraries of the run's framework; no others.

    Raises:
        CheckpointError: The manifest has something else in the place of a version.
    """
    framework = _framework(_config(run))
    environment = manifest.environment
    versions = {_normal(name): version for name, version in environment.packages.items()}
    used = {_normal(name) for name in environment.imported}
    ours = plugins.BUILT_IN["framework"]
    if framework is not None and framework in ours:
        wanted = _libraries([ours[framework].extra or ""])
    else:
        wanted = _libraries([entry.extra or "" for entry in ours.values()]) & used
    names = [name for name in sorted({*wanted, *_ALWAYS}) if name in versions]
    for name in names:  # whoever wrote the manifest must not say what else pip installs, or from where
        if not _VERSION.fullmatch(versions[name]):
            raise CheckpointError(
                f"{run.path / Manifest.FILE}: {versions[name]!r} is not a version of {name}: it is damaged"
            )
    server = [f"mlflow=={version}" for version in [installed_version("mlflow")] if version]
    # A local version, as of `2.13.0+cpu`, is on no index.
    pinned = [f"{name}=={versions[name].partition('+')[0]}" for name in names]
    return [*server, *pinned]


def _missing(run: RunDir) -> list[str]:
    """Return what the model needs that pip cannot install from its folder, in words."""
    config = _config(run)
    named = sorted({path.partition(":")[0] for path in import_paths(config)})
    framework = _framework(config)
    registered = [one for one in plugins.installed() if one.kind == "framework" and one.name == framework]
    return [
        *(
            f"your module {module}, which run/config.yaml names: its folder must be on PYTHONPATH"
            for module in named
        ),
        *(f"{one.package}, whose framework {one.name!r} the model is of" for one in registered),
    ]


def _config(run: RunDir) -> dict[str, Any]:
    """Return the config of a run as it is stored: variables stay unexpanded, as this is written into files.

    Raises:
        CheckpointError: It is damaged.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    file = run.checked_config_file()
    try:
        config = YAML(typ="safe", pure=True).load(read_regular(file))
    except (OSError, ValueError, RecursionError, YAMLError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error
    if not isinstance(config, dict) or not isinstance(config.get("model"), dict):
        raise CheckpointError(f"{file} is damaged: it has no section `model`")
    return config


def _framework(config: Mapping[str, Any]) -> str | None:
    """Return the name of the model's framework; None if it is the user's own class of an unknown one."""
    model = config["model"]
    framework: str | None = model.get("framework") or plugins.framework_of(str(model.get("type")))
    return framework


def _libraries(names: Sequence[str]) -> set[str]:
    """Return the distributions that extras of ours bring, and those of the smaller ones for processors."""
    found = extras()
    wanted = [text for name in names for suffix in ("", "-cpu") for text in found.get(f"{name}{suffix}", ())]
    return {_normal(re.split(r"[^\w.-]", text)[0]) for text in wanted}


def _write_environments(folder: Path, requirements: Sequence[str], missing: Sequence[str]) -> None:
    """Write what must be installed; paths in it are relative to the folder, in which pip and MLflow run."""
    python = platform.python_version()
    notes = [f"# not installed by this file, but needed: {printable(one)}" for one in missing]
    lines = ["# run in this folder: pip install -r requirements.txt", *notes, *requirements]
    (folder / "requirements.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    virtual = {"python": python, "build_dependencies": ["pip"], "dependencies": ["-r requirements.txt"]}
    (folder / "python_env.yaml").write_text(emit(virtual), encoding="utf-8")
    conda = {
        "name": "mlflow-env",
        "channels": ["conda-forge"],
        "dependencies": [f"python={python}", "pip", {"pip": list(requirements)}],
    }
    (folder / "conda.yaml").write_text(emit(conda), encoding="utf-8")


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


_TAG = "py3-none-any"  # no part of Trainwright is compiled
_WHEEL = f"Wheel-Version: 1.0\nGenerator: trainwright\nRoot-Is-Purelib: true\nTag: {_TAG}\n"
_COPIED = ("METADATA", "entry_points.txt", "licenses/LICENSE")
_TIME = (1980, 1, 1, 0, 0, 0)  # the same files give the same bytes


def write_wheel(folder: Path) -> Path | None:
    """Write the wheel of the running Trainwright into a folder, and return its path.

    The files are those that this process imports from, whether they were installed from a wheel or are a
    clone's; the metadata are those of the installation.

    Returns:
        None if Trainwright is not installed as a package, or not imported from a folder.
    """
    package = Path(__file__).parents[2]
    try:
        installed = metadata.distribution("trainwright")
    except metadata.PackageNotFoundError:
        return None
    if not package.is_dir() or installed.read_text("METADATA") is None:
        return None
    name = f"trainwright-{installed.version}"
    contents = {
        f"trainwright/{path.relative_to(package).as_posix()}": path.read_bytes()
        for path in sorted(package.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    copied = {one: text for one in _COPIED if (text := installed.read_text(one)) is not None}
    for one, text in {**copied, "WHEEL": _WHEEL}.items():
        contents[f"{name}.dist-info/{one}"] = text.encode()
    record = f"{name}.dist-info/RECORD"
    lines = [f"{one},{_hash(content)},{len(content)}\n" for one, content in contents.items()]
    contents[record] = "".join([*lines, f"{record},,\n"]).encode()
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-{_TAG}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for one, content in contents.items():
            entry = zipfile.ZipInfo(one, _TIME)
            entry.external_attr = 0o644 << 16
            wheel.writestr(entry, content, zipfile.ZIP_DEFLATED)
    return path


def _hash(content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
    return f"sha256={digest.decode().rstrip('=')}"
