"""Write an artifact with its certificate, if it predicts what its run predicts; or show no artifact."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from trainwright.config.schema import RunConfig
from trainwright.errors import InputError
from trainwright.evaluation.gates import Gate
from trainwright.exporters.base import Exporter, Input, class_axis
from trainwright.exporters.certificates import reader
from trainwright.exporters.certificates.compare import TOLERANCE, differences_of, measured, samples_of
from trainwright.exporters.certificates.diagnosis import different
from trainwright.exporters.certificates.files import files_of, parts_of
from trainwright.exporters.certificates.gated import judged
from trainwright.exporters.certificates.samples import Sample
from trainwright.exporters.certificates.script import reader_of, reader_source
from trainwright.exporters.certificates.units import unit_of, warn_of_unit
from trainwright.inference.predictor import Predictor
from trainwright.inference.whole_files import write_all, write_whole
from trainwright.plugins import adapter, name_of_framework
from trainwright.records.artifact import certificate_of
from trainwright.records.certificate import Certificate
from trainwright.records.journal import finite
from trainwright.records.run_dir import RunDir
from trainwright.storage.portable import portable_config, weights_digest
from trainwright.types import Array, DataInfo
from trainwright.version import VERSION


def export_certified(
    predictor: Predictor,
    path: Path,
    form: str,
    *,
    tolerance: float | None = None,
    licence: str | None = None,
    options: Mapping[str, str] | None = None,
    gate: Gate | None = None,
) -> Certificate:
    """Write an artifact with its certificate and reader, if it predicts what the run predicts.

    Args:
        predictor: The model of a run.
        path: The file or folder to make; a file gets `PATH.certificate.json` and `PATH.reader.py` beside it.
        form: The name of an exporter.
        tolerance: The largest difference of an output, beside its size where that is above 1; default: 1e-5.
        licence: The terms of use, for the certificate.
        options: Of the exporter; see its `choices`.
        gate: What the artifact has to pass on the validation rows; see `certificates.gated`.

    Raises:
        InputError: The format cannot hold this model, or the path cannot be written.
        DifferentArtifactError: The artifact does not predict what the run predicts; it does not appear.
        GateError: It does not pass the gate; it does not appear.
    """
    exporter: Exporter = adapter("exporter", form)(options)
    exporter.check_framework(form, name_of_framework(predictor.framework))
    if getattr(predictor.preparation, "steps", None) is not None:
        raise InputError(
            f"run {predictor.run.id} makes its columns by code of the user's (data.features_from), which no "
            "format can hold: predict with the run itself, or train on a file that has these columns; for "
            "PyTorch, --format safetensors writes the weights alone"
        )
    predictor.unusual()  # which silences warnings of the edge rows
    inputs = exporter.inputs(predictor)
    with tempfile.TemporaryDirectory(prefix="trainwright-export-") as folder:
        made = Path(folder, path.name)
        about = origin_of(predictor.run, predictor.config, predictor.info, predictor.stored.folder)
        exporter.write(predictor, made, {"run": json.dumps(about)})
        script = reader_of(made)
        script.write_text(reader_source(exporter.runtime), encoding="utf-8")
        certificate = _certified(exporter, predictor, made, inputs, tolerance)
        certificate = certificate.model_copy(
            update={
                "format": form,
                "run": about,
                "licence": licence,
                "versions": _versions(exporter.packages_for(name_of_framework(predictor.framework))),
                "data": predictor.stored.data.to_json(),
                "config": portable_config(predictor.run),
                "options": exporter.options,
                "needs": exporter.needs(),
            }
        )
        if gate is not None:
            said = judged(gate, predictor, made, certificate)
            certificate = certificate.model_copy(update={"compared": {**certificate.compared, "gate": said}})
        if exporter.model_alone:
            made, certificate = _alone(predictor, made, certificate)
        text = json.dumps(certificate.to_json(), indent=1, ensure_ascii=False)
        certificate_of(made).write_text(text, encoding="utf-8")
        _place(made, path)
    if exporter.model_alone:
        warn_of_unit(predictor.info, certificate_of(path))
    return certificate


def _certified(
    exporter: Exporter, predictor: Predictor, made: Path, inputs: Sequence[Input], given: float | None
) -> Certificate:
    """Return the certificate of an artifact.

    Raises:
        DifferentArtifactError: It does not predict what the run predicts, or cannot be opened.
    """
    tolerance = TOLERANCE if given is None else given
    samples, expected, batches = samples_of(exporter, predictor, inputs)
    edges, real = samples["edge"], samples.get("test")
    feeds = {name: sample.feeds(inputs) for name, sample in samples.items()}
    found = measured(made, feeds, batches, exporter.timed)
    differences = {
        name: differences_of(
            {key.removeprefix(f"{name}/"): one for key, one in found.items() if key.startswith(f"{name}/")},
            expected[name],
            samples[name].names,
            tolerance,
            class_axis(predictor.info),
        )
        for name in samples
    }
    if any(one.lines for one in differences.values()):
        raise different(exporter, predictor, made, samples, differences, given)
    return Certificate(
        artifact=made.name,
        format="",
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        run={},
        versions={},
        inputs=[{**one._asdict(), "shape": list(one.shape)} for one in inputs],
        outputs=_outputs(predictor, expected["edge"]),
        files=files_of(made),
        tolerance=tolerance,
        compared={
            "rows": {name: len(sample) for name, sample in samples.items()},
            "batches": list(batches),
            "largest_difference": max(one.largest for one in differences.values()),
            "mean_difference": float(np.mean([one.mean for one in differences.values()])),
            "equal_labels": differences.get("test", differences["edge"]).equal_labels,
        },
        latency_seconds={str(size): float(found[f"/latency/{size}"]) for size in exporter.timed}
        | {"open": float(found["/open"])},
        edge_rows=_kept(edges, inputs, expected["edge"]) | {"rows": list(edges.names)},
        test_rows={"keys": [], "outputs": {}} if real is None else _keyed(real, inputs, expected["test"]),
    )


def _alone(predictor: Predictor, made: Path, certificate: Certificate) -> tuple[Path, Certificate]:
    """Return the model's file of a compared folder, and the certificate of it alone."""
    (found,) = made.glob("model.*")
    file = made / "alone" / made.name
    file.parent.mkdir()
    found.rename(file)
    inputs = [
        {"name": name, "dtype": spec.dtype, "shape": list(spec.shape), "content": "", "reads": {}}
        for name, spec in predictor.info.inputs.items()
    ]
    alone = {"inputs": inputs, "outputs": [unit_of(predictor.info)], "files": files_of(file)}
    return file, certificate.model_copy(update=alone | {"edge_rows": {}, "test_rows": {}, "data": {}})


def _place(made: Path, path: Path) -> None:
    """Put the artifact and what is beside it in their places, the certificate last."""
    if made.is_dir():
        write_whole(path, lambda target: shutil.copytree(made, target))
        return
    others = [one for one in parts_of(made) if one != made]
    parts = [one for one in (made, *others, reader_of(made), certificate_of(made)) if one.exists()]
    targets = [path.with_name(path.name + one.name.removeprefix(made.name)) for one in parts]
    write_all({target: partial(shutil.copyfile, one) for target, one in zip(targets, parts, strict=True)})


def _outputs(predictor: Predictor, expected: Mapping[str, Array]) -> list[dict[str, Any]]:
    """Return what there is to say of each output."""
    info = predictor.info
    labels = [str(one) for one in (info.classes or range(info.outputs))]
    found = []
    for name, values in expected.items():
        if values.ndim > 2 and name != "mask":
            columns = [name]
        elif name == "probabilities":
            columns = [f"probability_{label}" for label in labels]
        else:
            several = name == "prediction" and values.ndim == 2 and values.shape[1] > 1
            columns = (
                [f"prediction_{one}" for one in info.target_names or labels] if several else ["prediction"]
            )
        about = {"name": name, "dtype": str(values.dtype), "shape": list(values.shape[1:])}
        found.append({**about, "columns": columns, "unit": f"that of {info.target}"})
    return found


def _kept(sample: Sample, inputs: Sequence[Input], expected: Mapping[str, Array]) -> dict[str, Any]:
    """Return rows and their outputs as the certificate holds them."""
    feeds = sample.feeds(inputs)
    return {
        "inputs": {name: reader.encoded(value) for name, value in feeds.items()},
        "outputs": {name: reader.encoded(value) for name, value in expected.items()},
    }


def _keyed(sample: Sample, inputs: Sequence[Input], expected: Mapping[str, Array]) -> dict[str, Any]:
    """Return the keys of rows and their outputs as the certificate holds them."""
    keys = reader.row_keys([one._asdict() for one in inputs], sample.feeds(inputs))
    return {"keys": keys, "outputs": {name: reader.encoded(value) for name, value in expected.items()}}


def origin_of(run: RunDir, config: RunConfig, info: DataInfo, checkpoint: Path) -> dict[str, Any]:
    """Return where a model came from: its run, and the folder of its checkpoint."""
    return {
        "id": run.id,
        "experiment": config.experiment.name,
        "digest": weights_digest(checkpoint),
        "config_sha256": run.config_sha256(),
        "model": config.model.type,
        "task": info.task,
        "target": info.target,
        "test_metrics": {name: finite(value) for name, value in run.test_metrics().items()},
    }


def _versions(packages: Sequence[str]) -> dict[str, str]:
    known, sources = {"trainwright": VERSION}, metadata.packages_distributions()
    found = {name: sources.get(name, [name]) for name in packages}
    return known | {name: metadata.version(name if name in of else of[0]) for name, of in found.items()}
