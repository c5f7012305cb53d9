"""An exported model as what a user names where a run would do: its certificate stands for the run."""

from __future__ import annotations

import contextlib
import hmac
from pathlib import Path

from pydantic import ValidationError

from trainwright.digest import sha256_bytes
from trainwright.errors import CheckpointError, InputError, OtherFormatError
from trainwright.records.certificate import Certificate
from trainwright.records.result import AttemptRecord
from trainwright.records.run_dir import RunDir
from trainwright.safe_files import read_regular
from trainwright.storage.ownership import signature

EXPORTS = "exports.json"  # of a run: what was exported from it
_FORMAT = 1  # of certificates
_SHOWN = 40  # characters of a value that is wrong


class ArtifactDir(RunDir):
    """An exported model in the place of a run directory; it has no records of a run.

    Args:
        path: The file or folder of the model.
        certificate: Its certificate.
        is_own: Whether a run that this user made has recorded that it was exported.
        has_own_run: Whether its run is there, and this user's own.
    """

    def __init__(
        self, path: Path, certificate: Certificate, *, is_own: bool = False, has_own_run: bool = False
    ) -> None:
        super().__init__(path)
        self.certificate = certificate
        self.is_own = is_own
        self.has_own_run = has_own_run

    def manifest(self) -> None:
        """Return None: it has no manifest."""

    def result(self) -> None:
        """Return None: what the certificate holds of it is `test_metrics`."""

    def test_metrics(self) -> dict[str, float]:
        """Return the metrics of the run's test split, as its certificate has them."""
        known = self.certificate.run.get("test_metrics")
        if not isinstance(known, dict):
            return {}
        return {name: float(value) for name, value in known.items() if isinstance(value, int | float)}

    def creation(self) -> None:
        """Return None: what is known of its run is in the certificate."""

    def attempts(self) -> list[AttemptRecord]:
        """Return none."""
        return []


def certificate_of(path: Path) -> Path:
    """Return the path of an artifact's certificate: inside a folder, beside a file."""
    return path / "certificate.json" if path.is_dir() else path.with_name(f"{path.name}.certificate.json")


def artifact_reference(path: Path) -> Path:
    """Return the path of the reference that goes with an exported model: beside its file or folder."""
    return path.with_name(f"{path.name}.reference.json")


def is_artifact(path: Path) -> bool:
    """Return whether a path has a certificate."""
    with contextlib.suppress(OSError, ValueError):  # a name that is no path
        return path.exists() and certificate_of(path).is_file()
    return False


def read_certificate(path: Path) -> Certificate:
    """Return the certificate of an artifact.

    Raises:
        InputError: There is none, or it is damaged.
        OtherFormatError: A newer Trainwright wrote it.
    """
    file = certificate_of(path)
    if not path.exists():
        raise InputError(f"{path}: there is no such file")
    try:
        found = Certificate.model_validate_json(read_regular(file))
    except FileNotFoundError:
        raise InputError(f"{path} has no certificate: there is no {file.name} with it") from None
    except ValidationError as error:
        raise InputError(
            f"{file} is no certificate: {_wrong(error)}; it was edited or cut off: "
            "take the one that came with the model, or export its run again"
        ) from error
    if found.format_version > _FORMAT:
        raise OtherFormatError(
            f"{file} has format {found.format_version}, and this Trainwright reads up to {_FORMAT}: use a "
            "newer one"
        )
    return found


def record_export(run: RunDir, path: Path, made: Certificate, file: Path | None = None) -> None:
    """Note in a run what was exported from it, so that it is known to be this user's own.

    Args:
        run: The run.
        path: What was written.
        made: Its certificate.
        file: The file of the certificate; default: that beside `path`.
    """
    content = read_regular(file or certificate_of(path))
    entry = {
        "path": str(path.absolute()),
        "format": made.format,
        "made": made.made,
        "certificate": sha256_bytes(content),
        "signature": signature(run.path, content, EXPORTS),
    }
    try:
        known = exports_of(run)
    except CheckpointError:  # a record that nobody can read is replaced
        known = []
    others = [one for one in known if one["path"] != entry["path"]]
    run.write_json(EXPORTS, {"exports": [*others, entry]})


def exports_of(run: RunDir) -> list[dict[str, str]]:
    """Return what was exported from a run: `path`, `format`, `made` (when), `certificate` (its SHA-256).

    Raises:
        CheckpointError: The record is damaged.
    """
    found: list[dict[str, str]] = run.read_json(EXPORTS).get("exports", [])
    return found


def is_recorded(run: RunDir, path: Path) -> bool:
    """Return whether this user exported an artifact with this very certificate from a run.

    The record is signed like the run's config, as others may be able to write into the folder.
    """
    content = read_regular(certificate_of(path))
    signed = signature(run.path, content, EXPORTS)
    kept = [one.get("signature") or "" for one in exports_of(run)]
    return signed is not None and any(hmac.compare_digest(one.encode(), signed.encode()) for one in kept)


def _wrong(error: ValidationError) -> str:
    """Return what is wrong with a certificate first."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return "it is not JSON"
    key = ".".join(map(str, first["loc"])) or "it"
    if first["type"] == "missing":
        return f"`{key}` is missing"
    return f"`{key}` has the value {str(first['input'])[:_SHOWN]!r}, which is none of its kind"
