"""Verify exported models against their certificates."""

from __future__ import annotations

from pathlib import Path

from trainwright.safe_files import usable_path


def verify_certificate(path: Path | str, rows: Path | str | None = None) -> str:
    """Verify an exported model against its certificate, with its own runtime, in a process of its own.

    Its files must have the SHA-256 of the certificate, and its outputs for the edge rows in it must be equal
    within the certified tolerance.

    Args:
        path: The model, beside its certificate.
        rows: A CSV file of raw rows; those that the model was compared on when it was exported are compared
            again.

    Returns:
        What was verified, in words.

    Raises:
        InputError: There is no such model, certificate or file, or its rows cannot be read.
        DifferentArtifactError: The model is not as certified; the message says where.
    """
    from trainwright.exporters.certificates.certify import verify

    return verify(usable_path(path), None if rows is None else usable_path(rows))
