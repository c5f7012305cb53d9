"""Our own server: a folder with all that containers, Kubernetes, or a script need to run replicas of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from trainwright.records.certificate import Certificate
from trainwright.servers.base import Package, Server
from trainwright.servers.rendering import render
from trainwright.servers.requirements import PYTHON, write_requirements

_MIB = 2**20
_STEP = 256  # MiB, of which a limit of memory is a multiple
_BASE = 512  # MiB, of Python, the server and the libraries
_COPIES = 4  # of the model: read, opened, and two for a reload
_SHOWN = 6  # inputs in the README
# Debian's packages that wheels expect, by the name of what imports them.
_SYSTEM: Mapping[str, Sequence[str]] = {"lightgbm": ("libgomp1",)}


class OwnServer(Server):
    """The layout for `trainwright serve`, which reads any format that predicts."""

    summary = "our own server: by containers, compose, Kubernetes, KServe, or a script (the default)"
    # What is small and exact first: ONNX Runtime has 20 MB, where TensorFlow and PyTorch have hundreds.
    formats: ClassVar[Sequence[str]] = ("native", "sklearn", "onnx", "pt2", "keras")

    def write(self, package: Package, folder: Path) -> str:
        """Write the folder; see `Server.write`."""
        certificate = package.certificate
        artifact = package.copy_artifact(folder / "model")
        write_requirements(folder, certificate, ["serve", *_extras(certificate)])
        render(Path(__file__).with_name("templates"), folder, _values(package, artifact.relative_to(folder)))
        shutil.copyfile(folder / ".containerignore", folder / ".dockerignore")
        (folder / "prometheus" / "alerts.yml").write_text(alert_rules(package.name), encoding="utf-8")
        return f"./run.sh --replicas {package.replicas}"


def _extras(certificate: Certificate) -> list[str]:
    """Return the extras of Trainwright that read the rows of a model."""
    reads = [one.get("reads", {}).get("raw") for one in certificate.inputs]
    tokenizer = certificate.data.get("tokenizer")
    return ["image"] * ("image" in reads) + ["text"] * (tokenizer is not None)


def _values(package: Package, artifact: Path) -> dict[str, Any]:
    """Return what the templates name."""
    known, size = package.certificate, package.model_bytes / _MIB
    own = artifact if (artifact.suffix == "") else artifact.with_name(f"{artifact.name}.certificate.json")
    inputs = [f"`{one['name']}` ({one['dtype']})" for one in known.inputs]
    more = [f"and {len(inputs) - _SHOWN} more"] if len(inputs) > _SHOWN else []
    systems = {name for module in known.versions for name in _SYSTEM.get(module, ())}
    return {
        "name": package.name,
        "version": package.version,
        "replicas": package.replicas,
        "python": PYTHON,
        "model": artifact.as_posix(),
        "flags": ["--trust"] if package.executes_code else [],
        "system": sorted(systems),
        "memory": int(-(-(_BASE + _COPIES * size) // _STEP) * _STEP),
        "megabytes": f"{package.model_bytes / 1e6:.3g}",
        "digest": known.run["digest"],
        "kind": known.run["model"],
        "task": known.run["task"].replace("_", " "),
        "format": known.format,
        "certificate": (own / "certificate.json" if own == artifact else own).as_posix(),
        "licence": known.licence or "not stated",
        "inputs": ", ".join([*inputs[:_SHOWN], *more]),
        "outputs": ", ".join(f"`{one['name']}`" for one in known.outputs),
        "request": _request(known),
    }


def _request(known: Certificate) -> str:
    """Return a request for one row, in which there is something to fill in."""
    examples = {"float64": 0.5, "string": "..."}
    row = {one["name"]: examples.get(one["dtype"], 0) for one in known.inputs}
    return json.dumps({"rows": [row]}, ensure_ascii=False).replace("'", "'\\''")


def alert_rules(service: str) -> str:
    """Return the rules of Prometheus for a service, as YAML."""
    replicas = f'job="{service}"'
    rules = [
        ("ReplicaDown", f"up{{{replicas}}} == 0", "1m", "a replica does not answer"),
        (
            "RequestsFail",
            f'sum(rate(trainwright_requests_total{{{replicas}, code=~"5.."}}[5m])) / '
            f"sum(rate(trainwright_requests_total{{{replicas}}}[5m])) > 0.01",
            "5m",
            "more than 1% of the requests fail",
        ),
        (
            "RequestsRefused",
            f'sum(rate(trainwright_requests_total{{{replicas}, code="429"}}[5m])) > 0',
            "5m",
            "requests are refused, as the queue is full",
        ),
        (
            "RequestsSlow",
            "histogram_quantile(0.99, sum by (le) "
            f"(rate(trainwright_request_seconds_bucket{{{replicas}}}[5m]))) > 1",
            "10m",
            "one request in a hundred takes more than a second",
        ),
        (
            "QueueGrows",
            f"min_over_time(trainwright_queue_rows{{{replicas}}}[5m]) > 0",
            "5m",
            "rows wait all the time",
        ),
        (
            "InputsDrift",
            f"max by (job) (trainwright_drift_alarm{{{replicas}}}) > 0",
            "0m",
            "rows are not like those of the training",
        ),
        (
            "SeveralModels",
            f'count(count by (run) (trainwright_model_info{{{replicas}, role="main"}} == 1)) > 1',
            "15m",
            "replicas answer with different models",
        ),
    ]
    lines = ["groups:", f"  - name: {service}", "    rules:"]
    for name, expression, span, said in rules:
        lines += [
            f"      - alert: {name}",
            f"        expr: {json.dumps(expression)}",
            f"        for: {span}",
            f"        labels: {{service: {service}}}",
            f"        annotations: {{summary: {json.dumps(f'{service}: {said}')}}}",
        ]
    return "\n".join(lines) + "\n"
