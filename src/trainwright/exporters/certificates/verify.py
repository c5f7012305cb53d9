"""Verify an artifact against its certificate, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from trainwright.errors import DifferentArtifactError, InputError
from trainwright.exporters.base import Exporter
from trainwright.exporters.certificates import reader
from trainwright.exporters.certificates.script import reader_source
from trainwright.exporters.weights import WeightsExporter
from trainwright.plugins import adapter
from trainwright.records.artifact import read_certificate
from trainwright.records.certificate import Certificate


def verify(path: Path, rows: Path | None = None) -> str:
    """Verify an artifact against its certificate, in a process of its own; return what was verified.

    The reader beside it is not executed, as it may come from someone else.

    Raises:
        InputError: There is no such artifact, certificate or file, or its rows cannot be read.
        DifferentArtifactError: It is not as certified.
    """
    certificate = read_certificate(path)
    exporter: type[Exporter] = adapter("exporter", certificate.format)
    if exporter.model_alone or issubclass(exporter, WeightsExporter):
        return _verified_alone(exporter(), path, certificate, rows)
    exporter.check_runtime()
    with tempfile.TemporaryDirectory(prefix="trainwright-verify-") as folder:
        script = Path(folder, "verify.py")
        script.write_text(reader_source(exporter.runtime), encoding="utf-8")
        words = [
            "--artifact",
            str(path.absolute()),
            "verify",
            *([] if rows is None else [str(rows)]),
        ]
        done = subprocess.run(
            [sys.executable, "-I", str(script), *words], check=False, capture_output=True, text=True
        )
    if done.returncode == DifferentArtifactError.exit_code:
        raise DifferentArtifactError(done.stderr.strip())
    if done.returncode != 0:
        raise InputError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else str(path))
    return done.stdout.strip()


def _verified_alone(exporter: Exporter, path: Path, certificate: Certificate, rows: Path | None) -> str:
    """Return what was verified of weights, or of a model's file, alone; see `verify`."""
    if rows is not None:
        raise InputError(f"{path} does not say how rows become predictions: leave {rows} out")
    problems = [*reader.changed_files(path, certificate.to_json())]
    said = f"{len(certificate.files)} {'file is' if len(certificate.files) == 1 else 'files are'} equal"
    if isinstance(exporter, WeightsExporter):
        said = f"{certificate.compared['tensors']} tensors are equal"
        try:
            difference = None if problems else exporter.difference(path, certificate.compared)
        except ValueError as error:
            difference = str(error)
        problems += [difference] if difference else []
    if problems:
        raise DifferentArtifactError("\n  ".join([f"{path.name} is not as certified:", *problems[:5]]))
    return f"{path.name} is as certified: {said}"
