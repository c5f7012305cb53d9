"""Export the models of runs, each with a certificate."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainwright.api.results import load_for
from trainwright.config.words import nearest
from trainwright.errors import InputError
from trainwright.exporters.base import Exporter
from trainwright.exporters.weights import WeightsExporter
from trainwright.integrations.foreign import refuse_foreign_run
from trainwright.plugins import adapter, adapters, names
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
        DifferentArtifactError: The exported model predicts something else than the run; it is not written.
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
    """Note an export in its run, which may lie where nothing can be written."""
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


def framework_of_run(run: RunDir) -> str | None:
    """Return the name of a run's framework; None: it is none of ours."""
    manifest = run.manifest()
    known = () if manifest is None else manifest.semantics
    return next((name for name in names("framework") if name in known), None)


def formats(framework: str | None = None) -> dict[str, type[Exporter]]:
    """Return the exporters that take the models of a framework, or all, by name."""
    return {name: cls for name, cls in adapters("exporter") if framework is None or cls.takes(framework)}


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
    asked = path.suffix if form is None else f".{form}"
    by_suffix = next((name for name, cls in known.items() if asked in cls.suffixes(framework)), None)
    if form is not None and form in names("exporter"):
        chosen = form
    elif by_suffix is not None:
        chosen = by_suffix
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
