"""Write the weights of a run, whose model is not made, with a certificate of their tensors."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from trainwright.config.schema import RunConfig
from trainwright.exporters.certificates.export import origin_of
from trainwright.exporters.certificates.files import files_of
from trainwright.exporters.certificates.units import unit_of, warn_of_unit
from trainwright.exporters.weights import WeightsExporter
from trainwright.inference.whole_files import write_all
from trainwright.plugins import adapter
from trainwright.records.artifact import certificate_of
from trainwright.records.certificate import Certificate
from trainwright.records.data import StoredModel
from trainwright.records.run_dir import RunDir
from trainwright.types import DataInfo
from trainwright.version import VERSION


def export_weights(
    run: RunDir,
    config: RunConfig,
    stored: StoredModel,
    path: Path,
    form: str,
    *,
    most: int | None = None,
    licence: str | None = None,
) -> Certificate:
    """Write the weights of a run with a certificate, if their tensors are the run's.

    Args:
        run: The run.
        config: Its config.
        stored: Its weights.
        path: The file to make, which gets `PATH.certificate.json` beside it; with `most` a folder.
        form: The name of an exporter of weights.
        most: The bytes of tensors in a file of the folder.
        licence: The terms of use, for the certificate.

    Raises:
        InputError: The path cannot be written.
        CheckpointError: The tensors are not those that the checkpoint's manifest names.
    """
    exporter: WeightsExporter = adapter("exporter", form)()
    info = DataInfo.from_json(stored.data.info)
    made: list[Certificate] = []

    def write(target: Path) -> None:
        compared = exporter.write_weights(stored.folder, target, most)
        made.append(
            Certificate(
                artifact=path.name,
                format=form,
                made=datetime.now(UTC).isoformat(timespec="seconds"),
                run=origin_of(run, config, info, stored.folder),
                versions={"trainwright": VERSION},
                licence=licence,
                inputs=[],
                outputs=[unit_of(info)],
                files=files_of(target),
                tolerance=0.0,
                compared=dict(compared),
                latency_seconds={},
                edge_rows={},
                test_rows={},
            )
        )
        if target.is_dir():
            certificate_of(target).write_text(_text(made[0]), encoding="utf-8")

    files: dict[Path, Callable[[Path], object]] = {path: write}
    if most is None:
        files[path.with_name(f"{path.name}.certificate.json")] = lambda target: target.write_text(
            _text(made[0]), encoding="utf-8"
        )
    write_all(files)
    warn_of_unit(info, certificate_of(path))
    return made[0]


def _text(certificate: Certificate) -> str:
    return json.dumps(certificate.to_json(), indent=1, ensure_ascii=False)
