"""Lay out folders that serve a model: for our own server, or for another system's."""

from __future__ import annotations

import json
import logging
import re
import shutil
import tempfile
from hashlib import file_digest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trainwright.api.formats import check_target, framework_of_run
from trainwright.api.results import load_for
from trainwright.config.words import nearest
from trainwright.errors import DifferentArtifactError, InputError, TrainwrightError
from trainwright.integrations.foreign import refuse_foreign_run
from trainwright.plugins import adapter, adapters, names, task_for
from trainwright.records.artifact import (
    ArtifactDir,
    artifact_reference,
    certificate_of,
    read_certificate,
    record_export,
)
from trainwright.records.certificate import Certificate
from trainwright.records.listing import has_model
from trainwright.records.run_dir import RunDir
from trainwright.runs.lookup import RunName, find
from trainwright.runs.watching import carry_reference, reference_of
from trainwright.runs.workdir import working_directory, working_for
from trainwright.safe_files import usable_path

if TYPE_CHECKING:
    from trainwright.inference.predictor import Predictor
    from trainwright.servers.base import Server

log = logging.getLogger("trainwright")
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")  # of a service in Kubernetes, with room for endings
_MOST = 100  # replicas
# What stands in scripts, tags of images and manifests as it is.
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
SUMS = "SHA256SUMS"


class Packaged(NamedTuple):
    """A package that was written.

    Attributes:
        path: The folder.
        name: The name of the service.
        format: That of the model.
        start: The command that starts the service, as typed in the folder.
    """

    path: Path
    name: str
    format: str
    start: str


def package(
    run: RunName,
    path: Path | str,
    to: str = "trainwright",
    *,
    name: str | None = None,
    replicas: int = 3,
    runs_dir: Path | str | None = None,
    trust: bool = False,
) -> Packaged:
    """Write a folder that serves a model, with all that it needs.

    It holds the model with its certificate, what the system needs to run it, and a README for operators.
    `trainwright package --help` lists the systems; see docs/deploying.md.

    Args:
        run: A run, a path, an id, a unique prefix, or `last`; or an exported model, in a format that the
            system takes.
        path: The folder to make; an existing one is replaced.
        to: The system that serves it.
        name: The name of the service: lower-case letters, digits and hyphens, 40 at most; default: that of
            the run's experiment.
        replicas: The processes that serve it.
        runs_dir: The folder of the runs.
        trust: As in `load`.

    Returns:
        The folder, the name of the service, the model's format, and the command that starts the service.

    Raises:
        RunNotFoundError: There is no such run.
        InputError: There is no such system, it cannot serve this model, or the folder cannot be written; or
            the package index, from which hashes come, does not answer.
        DifferentArtifactError: The exported model does not predict what the run predicts.
    """
    from trainwright.inference.whole_files import write_whole
    from trainwright.servers.base import Package

    if to not in names("server"):
        known = names("server")
        raise InputError(f"there is no system {to!r}{nearest(to, known)}\nthere are: {', '.join(known)}")
    if not 1 <= replicas <= _MOST:
        raise InputError(f"{replicas} replicas given; there are from 1 to {_MOST}")
    if name is not None and not _NAME.fullmatch(name):
        raise InputError(
            f"name {name!r}: use lower-case letters, digits and hyphens, 40 at most, beginning with a letter"
        )
    path, found = usable_path(path), find(run, runs_dir, has_model)
    if not isinstance(found, ArtifactDir):
        found = RunDir(found.path.resolve())  # of a link: the run has the name of its folder
    server: type[Server] = adapter("server", to)
    check_target(path, found, to, is_folder=True)
    with tempfile.TemporaryDirectory(prefix="trainwright-package-") as place:
        aside = Path(place)
        if isinstance(found, ArtifactDir):
            artifact = _copied(found, to, server, aside)
        else:
            artifact = _exported(found, to, server, aside, trust=trust)
        certificate = read_certificate(artifact)
        _check_predicts(certificate, to, server)
        for what, word in (("run id", certificate.run["id"]), ("file name", artifact.name)):
            if not _VERSION.fullmatch(str(word)):
                raise InputError(
                    f"{what} {str(word)[:80]!r}: a package takes letters, digits, '.', '_' and '-'"
                )
        called = name or _name_of(certificate.run["experiment"])
        made = Package(called, artifact, certificate, replicas)
        folder = aside / "package"
        folder.mkdir()
        start = server().write(made, folder)
        _write_sums(folder)
        write_whole(path.absolute(), lambda target: shutil.copytree(folder, target))
        if not isinstance(found, ArtifactDir):
            record_export(found, path, certificate, certificate_of(artifact))
    return Packaged(path, called, certificate.format, start)


def _exported(found: RunDir, to: str, server: type[Server], folder: Path, *, trust: bool) -> Path:
    """Export a run in the first format of a server that holds its model, and return the artifact.

    Raises:
        InputError: None does.
    """
    from trainwright.exporters.certificates.export import export_certified

    refuse_foreign_run(found, "package")
    framework = framework_of_run(found) or "another library"
    if not (forms := server.takes(framework)):
        able = [one for one, cls in adapters("server") if cls.takes(framework)]
        raise InputError(
            f"--to {to} takes models in the format {' or '.join(server.formats)}, which holds none of "
            f"{framework}; there is --to {' or '.join(able)}"
        )
    predictor = load_for(found, "package", None, trust=trust, pinned=True)
    refusals: list[str] = []
    for form in forms:
        target = folder / form / f"model{adapter('exporter', form).suffix}"
        target.parent.mkdir()
        try:
            with working_for(found, working_directory(found), trust=trust):  # where its data are read
                export_certified(predictor, target, form)
        except (InputError, DifferentArtifactError) as error:
            if len(forms) == 1:
                raise
            refusals.append(f"{form}: {str(error).splitlines()[0]}")
        else:
            _carry_reference(found, predictor, target, trust=trust)
            return _without_folders(target)
    raise InputError("\n  ".join([f"--to {to} takes none of the formats that hold this model:", *refusals]))


def _carry_reference(found: RunDir, predictor: Predictor, artifact: Path, *, trust: bool) -> None:
    """Put the reference of a run beside its artifact, so that the service watches drift."""
    try:
        if not task_for(predictor.info).sums:
            reference_of(found, predictor, trust=trust)
        carry_reference(found, artifact)
    except TrainwrightError as error:
        log.warning("the package will not watch drift: %s", error)


def _copied(found: ArtifactDir, to: str, server: type[Server], folder: Path) -> Path:
    """Copy an exported model whose files are as certified, and return the copy.

    Raises:
        InputError: The server does not take its format.
        DifferentArtifactError: Its files are not those of its certificate.
    """
    from trainwright.exporters.certificates.files import parts_of
    from trainwright.exporters.certificates.reader import changed_files
    from trainwright.exporters.certificates.script import reader_of

    known = found.certificate
    if known.format not in server.formats:
        raise InputError(
            f"--to {to} takes models in the format {' or '.join(server.formats)}, and {found.path} is in "
            f"{known.format}: package its run, {known.run['id']}"
        )
    if wrong := list(changed_files(found.path, known.to_json())):
        raise DifferentArtifactError("\n  ".join([f"{found.path} is not as certified:", *wrong]))
    target = folder / "artifact" / ("model" if found.path.is_dir() else found.path.name)
    target.parent.mkdir()
    if found.path.is_dir():
        shutil.copytree(found.path, target)
    else:
        for part in (*parts_of(found.path), reader_of(found.path), certificate_of(found.path)):
            if part.exists():
                shutil.copyfile(part, target.with_name(part.name))
    if (reference := artifact_reference(found.path)).exists():
        shutil.copyfile(reference, artifact_reference(target))
    return _without_folders(target)


def _without_folders(artifact: Path) -> Path:
    """Take the folders of the machine out of a certificate, which names the files of the training data."""
    file = certificate_of(artifact)
    known = json.loads(file.read_text(encoding="utf-8"))
    known["config"]["data"] = _names(known["config"].get("data", {}))
    file.write_text(json.dumps(known, indent=1, ensure_ascii=False), encoding="utf-8")
    return artifact


def _names(value: Any) -> Any:
    """Return a value in which absolute paths are names of files."""
    if isinstance(value, dict):
        return {key: _names(child) for key, child in value.items()}
    if isinstance(value, list):
        return [_names(child) for child in value]
    return Path(value).name if isinstance(value, str) and value.startswith(("/", "~")) else value


def _check_predicts(certificate: Certificate, to: str, server: type[Server]) -> None:
    """Check that an artifact gives predictions of rows, if the server asks for them.

    Raises:
        InputError: It gives something else.
    """
    outputs = [one["name"] for one in certificate.outputs]
    if server.predicts and not {"probabilities", "prediction"} & {*outputs}:
        others = [one for one, cls in adapters("server") if not cls.predicts]
        raise InputError(
            f"this model gives {', '.join(outputs) or 'features'}, which are no predictions of rows, and "
            f"--to {to} serves these; there is --to {' or '.join(others)}, and `trainwright serve "
            f"{certificate.run['id']}`"
        )


def _name_of(experiment: str) -> str:
    """Return a name for the service of an experiment."""
    words = re.sub(r"[^a-z0-9]+", "-", experiment.lower()).lstrip("-0123456789")[:40].rstrip("-")
    return words or "model"


def _write_sums(folder: Path) -> None:
    """Write the SHA-256 of all files, as `sha256sum --check` reads it."""
    lines = []
    for path in sorted(one for one in folder.rglob("*") if one.is_file()):
        with open(path, "rb") as file:
            lines.append(
                f"{file_digest(file, 'sha256').hexdigest()}  {path.relative_to(folder).as_posix()}\n"
            )
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")
