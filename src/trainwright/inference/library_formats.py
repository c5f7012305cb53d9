"""Exports of a model in the formats of its own library, which need no Trainwright."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from trainwright.digest import WEIGHTS, digest
from trainwright.errors import CheckpointError, InputError
from trainwright.frameworks.base import Exports, Model
from trainwright.inference.whole_files import write_whole
from trainwright.records import whole_weights
from trainwright.storage.portable import weights_digest
from trainwright.types import DataInfo

log = logging.getLogger("trainwright")


def export_model(model: Model, info: DataInfo, path: Path, form: str) -> None:
    """Write a model; if its target was transformed or shifted, a file beside it says how to undo that.

    Args:
        model: The model.
        info: What its data are.
        path: The file or folder to make; one that is there is replaced when the new one is whole.
        form: One of the framework's formats.

    Raises:
        InputError: The path cannot be written.
    """
    write_whole(path, lambda made: model.export(made, form))
    if info.target_transform is not None or info.target_offset:
        _note_unit(info, path)


def export_weights(stored: Path, info: DataInfo, path: Path, most: int | None = None) -> None:
    """Write the weights of a checkpoint as safetensors, without making the model; see `export_model`.

    Args:
        stored: The folder of the checkpoint, whose files have been verified.
        info: What its data are.
        path: The file to write; with `most`, a folder, which gets files with an index.
        most: The bytes of tensors in a file.

    Raises:
        CheckpointError: The tensors are not those that the checkpoint's manifest names.
        InputError: The path cannot be written.
    """

    def write(made: Path) -> None:
        if most is None:
            records = [whole_weights.write_whole(stored, made)]
        else:
            made.mkdir()
            records = whole_weights.write_several(stored, made, most)
        tensors = [one._replace(name=f"{WEIGHTS}{one.name}") for file in records for one in file.tensors]
        if digest(tensors) != weights_digest(stored):
            raise CheckpointError(f"the weights in {stored} are not those that its manifest names")

    try:
        write_whole(path, write)
    except ValueError as error:
        raise CheckpointError(f"{stored}: {error}") from error
    if info.target_transform is not None or info.target_offset:
        _note_unit(info, path)


def _note_unit(info: DataInfo, path: Path) -> None:
    """Write the unit of an exported model's outputs, and how to convert them, beside it."""
    note = path.with_name(f"{path.name}.target.json")
    transform, offset, says = info.target_transform, info.target_offset, info.target
    if transform is not None:
        says = f"{transform['kind']} of {says}"
    if offset:
        says = f"{says} less {', '.join(map(repr, offset))}"
    text = json.dumps({"outputs": says, "target_offset": list(offset), "target_transform": transform})
    write_whole(note, lambda made: made.write_text(text, encoding="utf-8"))
    log.warning(
        "the exported model returns the %s, as it was trained; %s has what turns that into the original "
        "units, as predict does",
        says,
        note.name,
    )


def export_format(exports: Exports, run_id: str, path: Path, form: str | None) -> str:
    """Return the format in which `export` writes.

    It is the one asked for, else that of the path's suffix, else the default.

    Raises:
        InputError: The framework has no such format, or none is asked for and the path has a suffix of
            another kind.
    """
    forms = exports.formats
    if not forms or (form is not None and form not in forms):
        known = f"there are: {', '.join(forms)}" if forms else "its framework has none of its own"
        known += "; with the preparation of rows, mlflow, native or sklearn (docs/export.md)"
        raise InputError(f"run {run_id} cannot be exported{f' as {form!r}' if form else ''}: {known}")
    ending = path.suffix.removeprefix(".")
    suffixes = [one for one in forms if one.isalnum() and one not in exports.folders]
    if form is None and ending and ending not in suffixes:
        endings = " or ".join(f".{one}" for one in suffixes)
        raise InputError(
            f"{path}: its suffix is not one of this model's formats; use {endings}, or give --format"
        )
    return form or ending or forms[0]
