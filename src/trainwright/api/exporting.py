"""Export the models of runs, each with a certificate."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainwright.api.formats import check_target, choose, framework_of_run
from trainwright.api.results import load_for
from trainwright.errors import CheckpointError, InputError
from trainwright.exporters.base import Exporter
from trainwright.exporters.weights import WeightsExporter
from trainwright.integrations.foreign import refuse_foreign_run
from trainwright.plugins import adapter
from trainwright.records.artifact import ArtifactDir, record_export
from trainwright.records.certificate import Certificate
from trainwright.records.listing import has_model
from trainwright.records.run_dir import RunDir
from trainwright.runs.lookup import RunName, find
from trainwright.runs.workdir import working_directory, working_for
from trainwright.safe_files import usable_path

log = logging.getLogger("trainwright")


def export(
    run: RunName,
    path: Path | str,
    form: str | None = None,
    *,
    max_shard_size: int | None = None,
    tolerance: float | None = None,
    licence: str | None = None,
    options: Mapping[str, str] | None = None,
    gate: str | None = None,
    runs_dir: Path | str | None = None,
    model: Any = None,
    trust: bool = False,
) -> Path:
    """Write a run's model as a file or folder for use elsewhere, with a certificate.

    The format's own runtime opens it in a process of its own, and must predict what the run predicts. Of
    weights alone the tensors are compared. `trainwright export --help` lists the formats; see docs/export.md.

    Args:
        run: A run, a path, an id, a unique prefix, or `last`.
        path: The file or folder to write; an existing one is replaced.
        form: The format, by its name or the suffix of its files; default: that of the path's suffix, or the
            usual one of the framework for a path without one.
        max_shard_size: With `safetensors`, `path` is a folder that gets files of at most so many bytes, and
            an index of them, as transformers writes it.
        tolerance: The largest difference of an output, beside its size where that is above 1; default: 1e-5.
        licence: The terms of use, for the certificate.
        options: Of the format, as docs/export.md lists them: `{"method": "script"}`.
        gate: What the exported model has to pass on the run's validation rows, such as
            `val_f1 >= parent - 0.005`; `parent` is the run.
        runs_dir: The folder of the runs.
        model: The model object, if `train` was given one.
        trust: As in `load`.

    Returns:
        The path.

    Raises:
        RunNotFoundError: There is no such run.
        InputError: The run has no weights, an object is missing, no such format can hold the model, or the
            path cannot be written.
        CheckpointError: A file that predictions depend on is damaged.
        DifferentArtifactError: The exported model does not predict what the run predicts; it is not written.
        GateError: The exported model does not pass the gate; it is not written.
    """
    if tolerance is not None and not 0 <= tolerance <= 1:
        raise InputError(f"a tolerance of {tolerance:g} given; it is from 0 to 1")
    path, found = usable_path(path), find(run, runs_dir, has_model)
    if isinstance(found, ArtifactDir):
        raise InputError(
            f"{found.path} is an exported model already; export its run, {found.certificate.run['id']}"
        )
    refuse_foreign_run(found, "export")
    chosen = choose(path, form, framework_of_run(found))
    exporter: type[Exporter] = adapter("exporter", chosen)
    check_target(path, found, chosen, is_folder=not exporter.suffix or max_shard_size is not None)
    if issubclass(exporter, WeightsExporter):
        if tolerance is not None or gate is not None:
            word = "tolerance" if gate is None else "gate"
            raise InputError(f"{word} is for formats that predict; {chosen} holds weights, which are exact")
        exporter(options)  # which refuses unknown ones
        if (manifest := found.manifest()) is not None and manifest.compression is not None:
            raise InputError(
                f"run {found.id} is compressed, and its file leaves out zeros: export the weights of the run "
                "that it is compressed from, or this one with --format onnx"
            )
        made = _export_weights(found, path, chosen, max_shard_size, licence)
        _record(found, path, made)
        return path
    if max_shard_size is not None:
        raise InputError("max_shard_size is for models of PyTorch, in the format safetensors")
    from trainwright.evaluation.gates import Gate
    from trainwright.exporters.certificates.export import export_certified

    asked = None if gate is None else Gate.parse(gate)
    predictor = load_for(found, "export", model, trust=trust, pinned=True)
    target = path.absolute()
    how: dict[str, Any] = {"tolerance": tolerance, "licence": licence, "options": options, "gate": asked}
    with working_for(found, working_directory(found), trust=trust):  # where its data are read
        made = export_certified(predictor, target, chosen, **how)
    _record(found, path, made)
    return path


def _record(run: RunDir, path: Path, made: Certificate) -> None:
    """Note an export in its run, which may lie where nothing can be written; and give it the reference."""
    from trainwright.runs.watching import carry_reference

    try:
        carry_reference(run, path)
    except (CheckpointError, OSError) as error:
        log.warning("the model is exported without the reference for drift: %s", error)
    try:
        record_export(run, path, made)
    except OSError as error:
        log.warning(
            "run %s cannot note this export (%s): where opening the model executes code, give --trust",
            run.id,
            error.strerror or error,
        )


def _export_weights(
    found: RunDir, path: Path, form: str, most: int | None, licence: str | None
) -> Certificate:
    """Write the weights of a run, whose model is not made."""
    from trainwright.exporters.certificates.tensors import export_weights
    from trainwright.runs.run_config import read_config
    from trainwright.runs.weights import stored_model

    config = read_config(found, checked=False).config
    return export_weights(found, config, stored_model(found), path, form, most=most, licence=licence)
