"""Choose the format of an export by its name, or by the path that is to be made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from trainwright.config.words import nearest
from trainwright.errors import InputError
from trainwright.exporters.base import Exporter
from trainwright.plugins import adapter, adapters, names
from trainwright.records.run_dir import RunDir

_SHOWN = 3  # formats that take the place of another


class _Other(NamedTuple):
    """A format of other tools: what to say of it, and the formats of ours that serve instead."""

    said: str
    forms: Sequence[str]


_PICKLE = "opening a pickle executes the code in it, so that none is written"
_OTHERS: Mapping[str, _Other] = {  # by suffixes and names
    word: other
    for words, other in {
        "pt pth bin ckpt torch pytorch": _Other(_PICKLE, ("safetensors", "pt2", "torchscript")),
        "pkl pickle joblib": _Other(
            _PICKLE, ("sklearn", "skops", "native", "library", "safetensors", "pt2", "mlflow")
        ),
        "engine plan trt tensorrt": _Other(
            "TensorRT builds its files from ONNX, on the GPU that is to run them", ("onnx",)
        ),
        "mlmodel mlpackage coreml": _Other(
            "there is no format for Core ML; coremltools converts", ("torchscript", "savedmodel", "library")
        ),
        "gguf ggml llama.cpp": _Other(
            "llama.cpp makes its files from folders of transformers", ("huggingface",)
        ),
        "openvino": _Other("OpenVINO opens ONNX", ("onnx",)),
        "pte ptl": _Other("such a file is part of a folder", ("executorch",)),
        "tflite tensorflow-lite": _Other("such a file is part of a folder", ("litert",)),
        "pb tensorflow tf": _Other("a model of TensorFlow is a folder", ("savedmodel",)),
        "h5 hdf5": _Other("it is an old format of Keras", ("library", "keras")),
        "pt2": _Other("such a file is part of a folder", ("pt2",)),
    }.items()
    for word in words.split()
}


def formats(framework: str | None = None) -> dict[str, type[Exporter]]:
    """Return the exporters that take the models of a framework, or all, by name."""
    return {name: cls for name, cls in adapters("exporter") if framework is None or cls.takes(framework)}


def framework_of_run(run: RunDir) -> str | None:
    """Return the name of a run's framework; None: it is none of ours."""
    manifest = run.manifest()
    known = () if manifest is None else manifest.semantics
    return next((name for name in names("framework") if name in known), None)


def choose(path: Path, form: str | None, framework: str | None) -> str:
    """Return the name of the exporter that is asked for.

    Args:
        path: What is to be made.
        form: The name of one, or the suffix of its files without the dot; None: by the path.
        framework: That of the model; None: it is not known.

    Raises:
        InputError: There is none that takes models of the framework, or it writes a folder where a file is
            asked for.
    """
    known = formats(framework)
    asked = path.suffix if form is None else f".{form.removeprefix('.')}"
    by_suffix = next((name for name, cls in known.items() if asked in cls.suffixes(framework)), None)
    if form is not None and form in names("exporter"):
        chosen = form
    elif by_suffix is not None:
        chosen = by_suffix
    elif (other := _OTHERS.get(asked.removeprefix(".").lower())) is not None:
        raise InputError(_instead(f"--format {form}" if form else str(path), other, framework))
    elif form is not None:
        raise InputError(_unknown(form, [*known]))
    elif not path.suffix:
        chosen = next((name for name, cls in known.items() if cls.is_default), "")
        if not chosen:
            raise InputError(f"{path}: give --format, one of {', '.join(known)}")
    else:
        others = [name for name, cls in adapters("exporter") if path.suffix in cls.suffixes(None)]
        if not others:
            endings = sorted({ending for cls in known.values() for ending in cls.suffixes(framework)})
            raise InputError(
                f"{path}: its suffix is not one of this model's formats; use {' or '.join(endings)}, or give "
                "--format"
            )
        chosen = others[0]
    cls: type[Exporter] = adapter("exporter", chosen)
    if framework is not None:
        cls.check_framework(chosen, framework)
    _check_suffix(path, chosen, cls)
    return chosen


def _instead(asked: str, other: _Other, framework: str | None) -> str:
    """Return the message about a format of other tools."""
    known = formats(framework)
    able = [name for name in other.forms if name in known][:_SHOWN]
    if not able:
        first = other.forms[0]
        return (
            f"{asked}: {other.said}; --format {first} takes models of "
            f"{', '.join(formats()[first].frameworks)}, and one of {framework} can be exported with --format "
            f"{' or '.join(known)}"
        )
    lines = [f"  --format {name}: {known[name].summary}" for name in able]
    return "\n".join([f"{asked}: {other.said}; for this model there is", *lines])


def _unknown(form: str, known: Sequence[str]) -> str:
    return (
        f"there is no format {form!r} for this model{nearest(form, known)}\nthere are: {', '.join(known)}; "
        "`trainwright export --help` says what they are"
    )


def _check_suffix(path: Path, form: str, cls: type[Exporter]) -> None:
    """Refuse a path like that of a file for a format that is a folder, as people would take it for one."""
    files = {ending for _, other in adapters("exporter") for ending in other.suffixes(None)}
    if not cls.suffix and path.suffix in files:
        raise InputError(
            f"{path}: --format {form} writes a folder: name it without {path.suffix}; leave --format out for "
            "the file alone"
        )


def check_target(path: Path, run: RunDir, form: str, *, is_folder: bool) -> None:
    """Check that an artifact can take a path: it is of the same kind as what is there, and in no run.

    Args:
        path: The path.
        run: The run that is exported.
        form: The name of the format.
        is_folder: Whether a folder is to be made there.

    Raises:
        InputError: It cannot.
    """
    target, own = path.resolve(), run.path.resolve()
    runs = [own] if own.is_relative_to(target) else [one for one in (target, *target.parents) if _is_run(one)]
    if runs:
        raise InputError(
            f"{path} would change the directory of a run, {runs[0]}: choose a path outside of it"
        )
    if is_folder and path.is_file():
        raise InputError(f"{path} is a file, and --format {form} writes a folder: give another path")
    if not is_folder and path.is_dir():
        raise InputError(f"{path} is a folder, and --format {form} writes a file: give another path")


def _is_run(folder: Path) -> bool:
    return (folder / "config.yaml").is_file() and (folder / "attempts").is_dir()
