"""The package for our own server: its files are valid by the tools that read them, and it stands alone."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import kubernetes_validate
import pytest
from ruamel.yaml import YAML
from starlette.testclient import TestClient

from trainwright import api
from trainwright.cli.main import main
from trainwright.errors import InputError
from trainwright.plugins import names
from trainwright.runs.run import Run
from trainwright.servers.own import OwnServer
from trainwright.servers.requirements import write_wheel
from trainwright.servers.service.app import make_app
from trainwright.servers.service.settings import Settings
from trainwright.testing.server_suite import ServerSuite, artifact_in

INSTALL = "apt-get install {} brings it"


def tool(name: str) -> str:
    """Return the path of a program; skip the test where there is none."""
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
    if found is None:
        pytest.skip(f"{name} is not installed; {INSTALL.format({'promtool': 'prometheus'}.get(name, name))}")
    return found


def said(*command: str | Path, **options: Any) -> str:
    done = subprocess.run([*map(str, command)], check=False, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def yaml_of(path: Path) -> Any:
    return YAML(typ="safe", pure=True).load(path.read_text())


@pytest.mark.services
class TestOwn(ServerSuite):
    server = OwnServer
    to = "trainwright"
    models: ClassVar[dict[str, dict[str, Any]]] = {
        "lightgbm": {},
        "mlp": {"data.impute": "median"},
        "sklearn": {"model": "random_forest", "data.impute": "median"},
    }

    def check(self, path: Path) -> None:
        check_requirements(path)
        check_image(path)
        check_compose(path)
        check_cluster(path)
        said("bash", "-n", path / "run.sh")
        assert os.access(path / "run.sh", os.X_OK)

    def test_nginx_takes_its_configuration(
        self, package_of: Callable[[str, Path], Path], tmp_path: Path
    ) -> None:
        nginx, path = tool("nginx"), package_of("lightgbm", tmp_path) / "nginx"
        replicas = (path / "replicas.conf").read_text()
        assert re.findall(r"server (\S+) max_fails=1", replicas) == ["replica-1:8000", "replica-2:8000"]
        # The names of containers mean nothing here.
        (path / "replicas.conf").write_text(re.sub(r"replica-(\d):8000", r"127.0.0.1:800\1", replicas))
        said(nginx, "-t", "-p", tmp_path, "-c", path / "nginx.conf")
        (path / "replicas.conf").write_text(replicas.replace("max_fails", "most_fails"))
        with pytest.raises(AssertionError, match="most_fails"):
            said(nginx, "-t", "-p", tmp_path, "-c", path / "nginx.conf")

    def test_prometheus_takes_its_configuration(
        self, package_of: Callable[[str, Path], Path], tmp_path: Path
    ) -> None:
        promtool, path = tool("promtool"), package_of("lightgbm", tmp_path) / "prometheus"
        said(promtool, "check", "config", "--syntax-only", path / "prometheus.yml")
        assert "rules found" in said(promtool, "check", "rules", path / "alerts.yml")
        jobs = yaml_of(path / "prometheus.yml")["scrape_configs"]
        rules = (path / "alerts.yml").read_text()
        assert {f'job=\\"{job["job_name"]}\\"' for job in jobs} == set(re.findall(r'job=\\"[^"]*"', rules))

    def test_kubernetes_takes_its_manifests(
        self, package_of: Callable[[str, Path], Path], tmp_path: Path
    ) -> None:
        """By the schemas of the package kubernetes-validate, which refuses unknown fields, too."""
        path = package_of("lightgbm", tmp_path) / "kubernetes"
        kinds = set()
        for file in path.glob("*.yaml"):
            if file.name != "kustomization.yaml":
                manifest = yaml_of(file)
                kubernetes_validate.validate(manifest, "1.32", strict=True)
                kinds.add(manifest["kind"])
        assert kinds == {"Deployment", "Service", "HorizontalPodAutoscaler", "PodDisruptionBudget"}

    def test_kustomize_puts_them_together(
        self, package_of: Callable[[str, Path], Path], tmp_path: Path
    ) -> None:
        kubectl, path = tool("kubectl"), package_of("lightgbm", tmp_path) / "kubernetes"
        listed = set(yaml_of(path / "kustomization.yaml")["resources"])
        assert {file.name for file in path.iterdir()} == listed | {"kustomization.yaml"}
        whole = list(YAML(typ="safe", pure=True).load_all(said(kubectl, "kustomize", path)))
        assert len(whole) == len(listed)

    def test_kubectl_would_create_them(self, package_of: Callable[[str, Path], Path], tmp_path: Path) -> None:
        """It asks a server which kinds there are, and no more; that is one of ours here."""
        kubectl, path = tool("kubectl"), package_of("lightgbm", tmp_path) / "kubernetes"
        with discovery() as server:
            words = ["--server", server, "create", "--dry-run=client", "--validate=false", "-o", "name", "-k"]
            given = {**os.environ, "HOME": str(tmp_path), "KUBECONFIG": str(tmp_path / "none")}
            made = said(kubectl, *words, path, env=given).split()
        assert sorted(made) == [
            "deployment.apps/churn-of-2026",
            "horizontalpodautoscaler.autoscaling/churn-of-2026",
            "poddisruptionbudget.policy/churn-of-2026",
            "service/churn-of-2026",
        ]

    def test_names_that_are_commands_are_refused(self, run_of: Callable[[str], Run], tmp_path: Path) -> None:
        """The id of a run and the packages of a certificate stand in scripts and commands."""
        path = api.export(run_of("lightgbm"), tmp_path / "model.onnx")
        certificate = path.with_name("model.onnx.certificate.json")
        known = json.loads(certificate.read_text())
        for changed, words in (
            ({"run": {**known["run"], "id": "a\ntouch owned\n#"}}, "run id"),
            ({"run": {**known["run"], "id": "a$(touch owned)"}}, "run id"),
            ({"versions": {**known["versions"], "--index-url=http://127.0.0.1": "1"}}, "asks for"),
            ({"versions": {**known["versions"], "leftpad": "1.0"}}, "asks for 'leftpad'"),
        ):
            certificate.write_text(json.dumps({**known, **changed}))
            with pytest.raises(InputError, match=re.escape(words)):
                api.package(path, tmp_path / "package", name="svc")
        link = tmp_path / "b\ntouch owned\n#"
        link.symlink_to(run_of("lightgbm").path)
        made = api.package(link, tmp_path / "package", name="svc")  # it has the name of its run
        assert "touch owned" not in "".join(
            one.read_text() for one in made.path.rglob("*.*") if one.suffix in (".sh", ".md", ".yaml")
        )

    def test_the_example_of_the_readme_is_answered(
        self, package_of: Callable[[str, Path], Path], tmp_path: Path
    ) -> None:
        path = package_of("lightgbm", tmp_path)
        (request,) = re.findall(r"-d '(.*)'$", (path / "README.md").read_text(), re.MULTILINE)
        with TestClient(make_app(Settings(str(next(path.glob("model")))))) as client:
            answer = client.post("/predict", json=json.loads(request))
            assert answer.status_code == 200, answer.text

    def test_the_image_has_the_name_that_the_manifests_name(
        self, run_of: Callable[[str], Run], package_of: Callable[[str, Path], Path], tmp_path: Path
    ) -> None:
        path, image = package_of("lightgbm", tmp_path), f"churn-of-2026:{run_of('lightgbm').id}"
        for file in ("kubernetes/deployment.yaml", "kserve/inference-service.yaml", "compose.yaml"):
            assert set(re.findall(r"image: (churn-of-2026\S*)", (path / file).read_text())) == {image}
        assert f"-t {image} ." in (path / "Containerfile").read_text()

    def test_a_name_that_no_service_has_is_refused(
        self, run_of: Callable[[str], Run], tmp_path: Path
    ) -> None:
        for name in ("Churn", "1st", "a_b", "a-", "x" * 41, "", "a\nb"):
            with pytest.raises(InputError, match="use lower-case letters"):
                api.package(run_of("lightgbm"), tmp_path / "p", name=name)
        for replicas in (0, -1, 101):
            with pytest.raises(InputError, match="from 1 to 100"):
                api.package(run_of("lightgbm"), tmp_path / "p", replicas=replicas)
        with pytest.raises(InputError, match="did you mean 'trainwright'"):
            api.package(run_of("lightgbm"), tmp_path / "p", "trainwrigth")
        assert list(tmp_path.iterdir()) == []

    def test_the_command_replaces_no_folder(
        self, run_of: Callable[[str], Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "package").mkdir()
        assert main(["package", run_of("lightgbm").id, "-o", str(tmp_path / "package")]) == 2
        assert "replace it with --force" in capsys.readouterr().err
        assert list((tmp_path / "package").iterdir()) == []
        assert main(["package", "--help"]) == 0
        out = " ".join(capsys.readouterr().out.split())
        assert all(name in out for name in names("server"))
        assert "legacy: use trainwright" in out

    def test_a_run_and_a_file_are_not_overwritten(self, run_of: Callable[[str], Run], tmp_path: Path) -> None:
        run = run_of("lightgbm")
        with pytest.raises(InputError, match="would change the directory of a run"):
            api.package(run, Path(run.path) / "package")
        (tmp_path / "file").write_text("x")
        with pytest.raises(InputError, match="is a file"):
            api.package(run, tmp_path / "file")

    def test_the_run_knows_its_package(
        self,
        run_of: Callable[[str], Run],
        package_of: Callable[[str, Path], Path],
        tmp_path: Path,
        folder: Path,
    ) -> None:
        path = package_of("lightgbm", tmp_path)
        records = json.loads((Path(run_of("lightgbm").path) / "exports.json").read_text())["exports"]
        certificate = artifact_in(path) / "certificate.json"
        known = {one["path"]: one["certificate"] for one in records}
        own = known[str(folder / "packages" / "lightgbm")]
        assert own == hashlib.sha256(certificate.read_bytes()).hexdigest()
        assert not [one for one in known if "trainwright-package-" in one]

    def test_packages_that_the_index_lacks_are_said(
        self, run_of: Callable[[str], Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
        with pytest.raises(InputError, match="pip finds no packages to serve this model"):
            api.package(run_of("lightgbm"), tmp_path / "package")
        assert list(tmp_path.iterdir()) == []


KINDS = {
    "api/v1": ("services", "Service"),
    "apis/apps/v1": ("deployments", "Deployment"),
    "apis/autoscaling/v2": ("horizontalpodautoscalers", "HorizontalPodAutoscaler"),
    "apis/policy/v1": ("poddisruptionbudgets", "PodDisruptionBudget"),
}


@contextlib.contextmanager
def discovery() -> Iterator[str]:
    """Answer kubectl's question which kinds there are, and yield the address."""
    groups = [path.split("/")[1:] for path in KINDS if path.startswith("apis")]
    answers: dict[str, Any] = {"api": {"kind": "APIVersions", "versions": ["v1"]}}
    versions = {name: {"groupVersion": f"{name}/{version}", "version": version} for name, version in groups}
    listed = [{"name": name, "versions": [one], "preferredVersion": one} for name, one in versions.items()]
    answers["apis"] = {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}
    for path, (plural, kind) in KINDS.items():
        one = {
            "name": plural,
            "singularName": "",
            "namespaced": True,
            "kind": kind,
            "verbs": ["create", "get"],
        }
        group = path.removeprefix("apis/").removeprefix("api/")
        answers[path] = {"kind": "APIResourceList", "groupVersion": group, "resources": [one]}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answers.get(self.path.partition("?")[0].strip("/"))
            content = json.dumps(found or {}).encode()
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def check_requirements(path: Path) -> None:
    """Have pip read the requirements in the folder, with the hashes of the files that it would take."""
    pip = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--require-hashes"]
    options = ["--only-binary=:all:", "--quiet", "--report", "-", "-r", "requirements.txt"]
    report = json.loads(said(*pip, *options, cwd=path))
    names = {one["metadata"]["name"].lower() for one in report["install"]}
    assert {"trainwright", "uvicorn", "numpy"} <= names
    text = (path / "requirements.txt").read_text()
    assert "index-url" not in text
    for line in text.splitlines()[1:]:
        assert re.fullmatch(r"(\./wheels/\S+|[\w.-]+==\S+) \\|    --hash=sha256:[0-9a-f]{64}( \\)?", line), (
            line
        )
    altered = text.replace("--hash=sha256:", "--hash=sha256:0", 1)
    (path / "altered.txt").write_text(re.sub(r"(sha256:0[0-9a-f]{63})[0-9a-f]", r"\1", altered))
    options[-1] = "altered.txt"
    done = subprocess.run([*pip, *options], check=False, capture_output=True, text=True, cwd=path)
    assert "DO NOT MATCH THE HASHES" in done.stderr
    (path / "altered.txt").unlink()


def check_image(path: Path) -> None:
    """Check the Containerfile by the rules of linters, and against the folder."""
    text = (path / "Containerfile").read_text()
    lines = re.sub(r"#.*\n", "", text).replace("\\\n", " ").splitlines()
    stages = "\n".join(lines).split("FROM ")[1:]
    assert len(stages) == 2
    for stage in stages:
        assert re.match(r"python:\d\.\d+-slim-\w+( AS build)?\n", stage)  # a tag, and not the newest
    last = stages[-1].splitlines()
    commands = [line.split(" ", 1) for line in last if re.match("[A-Z]+ ", line)]
    words = [word for word, _ in commands]
    by_word = dict(commands)
    assert by_word["USER"] == "10001:10001"
    assert words.index("USER") > max(i for i, word in enumerate(words) if word in ("RUN", "COPY"))
    assert "urlopen" in json.loads(by_word["HEALTHCHECK"].split("CMD ")[1])[2]
    assert "--require-hashes" in stages[0]
    assert not re.search(r"gcc|build-essential|make |pip install|curl|wget|ADD |:latest|sudo", stages[-1])
    for command, rest in commands:
        if command == "RUN" and "apt-get install" in rest:
            assert "--no-install-recommends" in rest
            assert rest.endswith("rm -rf /var/lib/apt/lists/*")
    entry = json.loads(by_word["ENTRYPOINT"])
    assert entry[:4] == ["python", "-m", "trainwright", "serve"]
    assert json.loads(by_word["CMD"]) == ["--key-file", "/run/secrets/api-key"]
    # What is copied is there, is let in by .dockerignore, and has the model.
    copied = [line.split()[1] for line in lines if line.startswith("COPY ") and "--from" not in line]
    let_in = (path / ".dockerignore").read_text().splitlines()
    assert let_in[0] == "*"
    assert {f"!{name}" for name in copied} == set(let_in[1:])
    assert (path / ".containerignore").read_text() == (path / ".dockerignore").read_text()
    assert all((path / name).exists() for name in copied)
    assert path / entry[4] == artifact_in(path)


def check_compose(path: Path) -> None:
    """Check that the services of compose.yaml fit each other and the folder."""
    compose = yaml_of(path / "compose.yaml")
    services = compose["services"]
    replicas = [name for name in services if name.startswith("replica-")]
    assert set(services["balancer"]["depends_on"]) == set(replicas)
    assert re.findall(r"server (\S+):8000", (path / "nginx" / "replicas.conf").read_text()) == replicas
    targets = yaml_of(path / "prometheus" / "prometheus.yml")["scrape_configs"][0]["static_configs"][0][
        "targets"
    ]
    assert targets == [f"{name}:8000" for name in replicas]
    for name, service in services.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert ":" in service["image"]
        assert not service["image"].endswith(":latest")
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (path / source).exists() if source.startswith(".") else source in compose["volumes"]
        for secret in service.get("secrets", ()):
            assert secret in compose["secrets"]
    assert not (path / "api-key").exists()
    assert "api-key" in (path / ".gitignore").read_text().splitlines()


def check_cluster(path: Path) -> None:
    """Check that the manifests select and name each other."""
    folder = path / "kubernetes"
    deployment, service = yaml_of(folder / "deployment.yaml"), yaml_of(folder / "service.yaml")
    pod = deployment["spec"]["template"]
    labels = pod["metadata"]["labels"]
    budget, scaler = yaml_of(folder / "disruption-budget.yaml"), yaml_of(folder / "autoscaler.yaml")
    kserve = yaml_of(path / "kserve" / "inference-service.yaml")["spec"]["predictor"]
    for selector in (
        deployment["spec"]["selector"]["matchLabels"],
        service["spec"]["selector"],
        budget["spec"]["selector"]["matchLabels"],
        *(one["labelSelector"]["matchLabels"] for one in pod["spec"]["topologySpreadConstraints"]),
    ):
        assert selector.items() <= labels.items()
    assert scaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert scaler["spec"]["minReplicas"] == 2
    assert "replicas" not in deployment["spec"]  # or each apply would undo the autoscaler
    for spec in (pod["spec"], kserve):
        (container,) = spec["containers"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["readinessProbe"]["httpGet"]["path"] == "/ready"
        assert container["livenessProbe"]["httpGet"]["path"] == "/health"
        assert {"requests", "limits"} == container["resources"].keys()
        mounted = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
        assert mounted.keys() == {one["name"] for one in spec["volumes"]}
        assert mounted["api-key"] == "/run/secrets/api-key"  # which the image's command names


def test_the_wheel_is_what_is_installed(tmp_path: Path) -> None:
    """pip installs it, and its files are ours; it has the same hash again."""
    first, again = write_wheel(tmp_path / "a"), write_wheel(tmp_path / "b")
    assert first.read_bytes() == again.read_bytes()
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    said(*install, "--target", tmp_path / "site", first)
    code = "import trainwright; from trainwright.cli.main import main; print(trainwright.__file__); main(['--help'])"
    out = said(sys.executable, "-c", code, env={**os.environ, "PYTHONPATH": str(tmp_path / "site")})
    assert out.startswith(str(tmp_path / "site"))
    assert "package" in out
    with zipfile.ZipFile(first) as archive:
        assert archive.testzip() is None
        assert any(name.endswith("own/templates/run.sh.j2") for name in archive.namelist())
