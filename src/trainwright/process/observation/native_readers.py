"""Functions of libraries that read files by native code, which raises no audit event.

Each is wrapped where its module is imported, so that the files it is given are noted; while nothing is
observed, a wrapper only calls what it wraps. Readers that are not in the table are not seen.
"""

from __future__ import annotations

import functools
import glob
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, Protocol


class Note(Protocol):
    """A function that is called with the path of each file, two calls below the code that reads."""

    def __call__(self, path: str, *, writes: bool) -> None:
        """Note a file that is about to be read, or written."""


_POLARS = ("csv", "parquet", "ndjson", "ipc", "delta")
# By module: functions, or methods of classes, and the parameter that names the file.
_READERS: Mapping[str, Mapping[str, str]] = {
    "catboost.core": {"Pool.__init__": "data", "CatBoost.load_model": "fname"},
    "cv2": {"imread": "filename", "imreadmulti": "filename"},
    "onnxruntime.capi.onnxruntime_inference_collection": {"InferenceSession.__init__": "path_or_bytes"},
    "torch.jit": {"load": "f"},
    "faiss": {"read_index": "f"},
    "h5py._hl.files": {"File.__init__": "name"},
    "lightgbm.basic": {"Dataset.__init__": "data", "Booster.__init__": "model_file"},
    "polars": {
        **{f"{verb}_{kind}": "source" for verb in ("read", "scan") for kind in _POLARS},
        **dict.fromkeys(("read_json", "read_excel", "read_avro", "read_csv_batched"), "source"),
    },
    "pyarrow": {"memory_map": "path", "OSFile.__new__": "path"},
    "pyarrow.csv": {"read_csv": "input_file", "open_csv": "input_file"},
    "pyarrow.dataset": {"dataset": "source"},
    "pyarrow.feather": {"read_table": "source", "read_feather": "source"},
    "pyarrow.fs": {
        "LocalFileSystem.open_input_file": "path",
        "LocalFileSystem.open_input_stream": "path",
    },
    "pyarrow.json": {"read_json": "input_file"},
    "pyarrow.parquet.core": {
        "read_table": "source",
        "ParquetFile.__init__": "source",
        "ParquetDataset.__init__": "path_or_paths",
    },
    "pyarrow.parquet": {"read_table": "source"},  # its own name for it, where it is imported already
    "rasterio": {"open": "fp"},
    "safetensors": {"safe_open": "filename"},
    "safetensors.numpy": {"load_file": "filename"},
    "safetensors.torch": {"load_file": "filename", "load_model": "filename"},
    "sentencepiece": {
        "SentencePieceProcessor.Load": "model_file",
        "SentencePieceProcessor.Init": "model_file",
    },
    "tensorflow.python.data.ops.readers": {
        "TextLineDatasetV2.__init__": "filenames",
        "TFRecordDatasetV2.__init__": "filenames",
        "FixedLengthRecordDatasetV2.__init__": "filenames",
    },
    "tensorflow.python.lib.io.file_io": {"FileIO.__init__": "name"},
    "tensorflow.python.ops.io_ops": {"read_file": "filename"},
    "tokenizers": {"Tokenizer.from_file": "path"},
    "torchvision.io.image": {"read_file": "path"},
    "xgboost.core": {"DMatrix.__init__": "data", "Booster.load_model": "fname"},
}


class _Finder:
    """A finder of the modules in the table: their readers are wrapped once they are loaded."""

    def __init__(self, note: Note) -> None:
        self._note = note

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how a module of the table is imported; None for all others."""
        if name not in _READERS:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def load_and_wrap(module: ModuleType) -> None:
            load(module)
            _wrap(name, module, self._note)

        with suppress(TypeError):  # a loader that takes no attributes: its readers are not seen
            vars(spec.loader)["exec_module"] = load_and_wrap
        return spec


def wrap_readers(note: Note) -> None:
    """Wrap the readers of the modules that are imported, and of those that will be.

    Args:
        note: See `Note`.
    """
    sys.meta_path.insert(0, _Finder(note))
    for name in _READERS:
        if (module := sys.modules.get(name)) is not None:
            _wrap(name, module, note)


def _wrap(name: str, module: ModuleType, note: Note) -> None:
    for words, parameter in _READERS[name].items():
        owner, attribute = _owner_of(module, words)
        function = getattr(owner, attribute, None)
        if function is None or hasattr(function, "wrapped_reader"):
            continue
        is_static = isinstance(owner, type) and isinstance(vars(owner).get(attribute), staticmethod)
        wrapped: Any = _noting(
            function, parameter, note, first=int(isinstance(owner, type) and not is_static)
        )
        if is_static:
            wrapped = staticmethod(wrapped)
        try:
            setattr(owner, attribute, wrapped)
        except (AttributeError, TypeError):  # of a class that takes no attributes
            with suppress(TypeError):
                space = {attribute: wrapped, "__module__": owner.__module__, "__slots__": ()}
                setattr(module, owner.__name__, _Derived(owner.__name__, (owner,), space))


class _Derived(type):
    """The type of classes that stand for others, in native code: the instances of those are theirs, too."""

    def __instancecheck__(cls, instance: object) -> bool:
        """Return whether it is an instance of the class that this one stands for."""
        return isinstance(instance, cls.__base__ or cls)


def _owner_of(module: ModuleType, words: str) -> tuple[Any, str]:
    first, _, last = words.rpartition(".")
    return (getattr(module, first, None) if first else module), last


def _noting(function: Callable[..., Any], parameter: str, note: Note, first: int = 0) -> Callable[..., Any]:
    """Return a function that notes the files it is given, and then calls another one.

    Args:
        function: The function to call.
        parameter: Its parameter that names files.
        note: See `Note`.
        first: The position of that parameter if the function does not say which it has.
    """
    index, of_mode = _position(function, parameter, first), _position(function, "mode", -1)

    @functools.wraps(function)
    def reader(*arguments: Any, **named: Any) -> Any:
        given = named.get(parameter, arguments[index] if index < len(arguments) else None)
        mode = named.get("mode", arguments[of_mode] if -1 < of_mode < len(arguments) else "r")
        writes = isinstance(mode, str) and mode.startswith(("w", "x"))
        with suppress(OSError, ValueError):  # a text may be content: then it is no path
            for path in _paths(given):
                note(path, writes=writes)
        return function(*arguments, **named)

    reader.wrapped_reader = True  # type: ignore[attr-defined]
    return reader


def _position(function: Callable[..., Any], parameter: str, default: int) -> int:
    with suppress(ValueError, TypeError):
        names = list(inspect.signature(function).parameters)
        if parameter in names:
            return names.index(parameter)
    return default


def _paths(given: Any) -> Iterable[str]:
    """Yield the paths of files that are there among what a reader is given."""
    for one in given if isinstance(given, list | tuple) else [given]:
        if isinstance(one, str | os.PathLike):  # bytes are content
            path = os.fsdecode(one).removeprefix("file://").partition("?")[0]
            if os.path.isdir(path):  # noqa: PTH112
                found = os.walk(path)
                yield from (f"{folder}{os.sep}{name}" for folder, _, names in found for name in names)
            elif os.path.isfile(path):  # noqa: PTH113
                yield path
            elif "*" in path:
                yield from glob.iglob(path, recursive=True)  # noqa: PTH207
