"""Verify exported models against their certificates."""

from __future__ import annotations

import logging
from pathlib import Path

from trainwright.plugins import adapter
from trainwright.records.artifact import ArtifactDir, read_certificate
from trainwright.records.listing import has_model
from trainwright.runs.lookup import find
from trainwright.safe_files import usable_path

log = logging.getLogger("trainwright")


def verify_certificate(
    path: Path | str,
    rows: Path | str | None = None,
    *,
    runs_dir: Path | str | None = None,
    trust: bool = False,
) -> str:
    """Verify an exported model against its certificate, with its own runtime, in a process of its own.

    Its files must have the SHA-256 of the certificate, and its outputs for the edge rows in it must be equal
    within the certified tolerance.

    Args:
        path: The model, beside its certificate.
        rows: A CSV file of raw rows; those that the model was compared on when it was exported are compared
            again.
        runs_dir: The folder of the runs, which have recorded what was exported from them.
        trust: Open the model also if its format executes code that it holds, and it is not of an own run.

    Returns:
        What was verified, in words.

    Raises:
        InputError: There is no such model, certificate or file, or its rows cannot be read; or opening it
            executes code, and it is neither the user's own nor trusted.
        DifferentArtifactError: The model is not as certified; the message says where.
    """
    from trainwright.exporters.certificates.verify import verify
    from trainwright.exporters.opened import refuse_code

    path = usable_path(path)
    read_certificate(path)  # its errors are about artifacts, and not about runs
    found = find(path, runs_dir, has_model)
    assert isinstance(found, ArtifactDir)
    refuse_code(found, adapter("exporter", found.certificate.format), trust=trust)
    said = verify(path, None if rows is None else usable_path(rows))
    if found.has_own_run and not found.is_own:
        log.warning(
            "run %s is yours, and has recorded no export with this certificate: it was edited, or exported "
            "where the run could not be written",
            found.certificate.run["id"],
        )
    return said
