"""Packages for other systems are what these systems read: by their own code or schemas where it is there."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import onnxruntime
import pytest
from ruamel.yaml import YAML

from trainwright import api
from trainwright.runs.run import Run
from trainwright.servers.bentoml import BentomlServer
from trainwright.servers.mlserver import MlserverServer
from trainwright.servers.torchserve import TorchserveServer
from trainwright.servers.triton import TritonServer
from trainwright.servers.vllm import VllmServer
from trainwright.testing.server_suite import ServerSuite, artifact_in

MEDIAN = {"data.impute": "median"}
ARRAYS = {
    "tensor(double)": "TYPE_FP64",
    "tensor(string)": "TYPE_STRING",
    "tensor(int64)": "TYPE_INT64",
    "tensor(float)": "TYPE_FP32",
}


def yaml_of(path: Path) -> Any:
    return YAML(typ="safe", pure=True).load(path.read_text())


@pytest.mark.soak
class TestTriton(ServerSuite):
    server = TritonServer
    to = "triton"
    models: ClassVar[dict[str, dict[str, Any]]] = {"lightgbm": {}, "mlp": MEDIAN}

    def check(self, path: Path) -> None:
        """The config names the inputs and outputs as ONNX Runtime finds them; a batch is no dimension."""
        place = path / "models" / "churn-of-2026"
        assert sorted(one.name for one in place.iterdir()) == ["1", "config.pbtxt"]
        text = (place / "config.pbtxt").read_text()
        session = onnxruntime.InferenceSession(place / "1" / "model.onnx")
        expected = []
        for one in (*session.get_inputs(), *session.get_outputs()):
            dims = ", ".join(str(size) for size in one.shape[1:]) or "1"
            expected.append((one.name, ARRAYS[one.type], dims))
        assert re.findall(r'name: "([^"]+)" data_type: (\w+) dims: \[ (.*?) \]', text) == expected
        assert yaml_of(path / "compose.yaml")["services"]["triton"]["volumes"] == ["./models:/models:ro"]

    def test_triton_reads_the_config(self, package_of: Callable[[str, Path], Path], tmp_path: Path) -> None:
        """By the protocol buffer of tritonclient, whose text format knows each field."""
        found = importlib.util.find_spec("tritonclient")
        if found is None or found.submodule_search_locations is None:
            pytest.skip("pip install tritonclient brings the protocol of Triton's configs")
        from google.protobuf import text_format

        file = Path(found.submodule_search_locations[0], "grpc", "model_config_pb2.py")
        spec = importlib.util.spec_from_file_location("model_config_pb2", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        path = package_of("lightgbm", tmp_path) / "models" / "churn-of-2026" / "config.pbtxt"
        config = text_format.Parse(path.read_text(), module.ModelConfig())
        assert (config.name, config.max_batch_size) == ("churn-of-2026", 64)
        assert [one.name for one in config.input] == ["age", "city", "income", "joined"]
        assert config.instance_group[0].count == 2
        with pytest.raises(text_format.ParseError):
            text_format.Parse(path.read_text().replace("max_batch_size", "most_rows"), module.ModelConfig())


@pytest.mark.soak
class TestMlserver(ServerSuite):
    server = MlserverServer
    to = "mlserver"
    models: ClassVar[dict[str, dict[str, Any]]] = {"lightgbm": {}}
    packages = ("mlserver==1.7.1", "uvloop==0.21.0")

    def check(self, path: Path) -> None:
        model = json.loads((path / "model-settings.json").read_text())
        module, _, name = model["implementation"].rpartition(".")
        classes = {
            one.name
            for one in ast.parse((path / f"{module}.py").read_text()).body
            if isinstance(one, ast.ClassDef)
        }
        assert name in classes
        assert path / model["parameters"]["uri"] == artifact_in(path)
        assert [one["name"] for one in model["inputs"]] == ["age", "city", "income", "joined"]
        settings = json.loads((path / "settings.json").read_text())
        image = (path / "Containerfile").read_text()
        assert f"EXPOSE {settings['http_port']}" in image
        assert f"127.0.0.1:{settings['http_port']}/v2/health/live" in image
        assert 'ENTRYPOINT ["mlserver", "start", "."]' in image
        assert not [line for line in image.splitlines() if line.startswith("CMD")]
        assert "mlserver==" in (path / "requirements.txt").read_text()


@pytest.mark.soak
class TestBentoml(ServerSuite):
    server = BentomlServer
    to = "bentoml"
    models: ClassVar[dict[str, dict[str, Any]]] = {"lightgbm": {}, "mlp": MEDIAN}
    packages = ("bentoml==1.4.1",)

    def check(self, path: Path) -> None:
        bento = yaml_of(path / "bentofile.yaml")
        module, _, name = bento["service"].partition(":")
        source = (path / f"{module}.py").read_text()
        assert name in {one.name for one in ast.parse(source).body if isinstance(one, ast.ClassDef)}
        (named,) = re.findall(r'with_name\("model"\)(?: / "([^"]+)")?', source)
        assert path / "model" / named == artifact_in(path)
        assert (path / bento["python"]["requirements_txt"]).is_file()
        assert all((path / name).exists() for name in bento["include"])
        assert "bentoml==" in (path / "requirements.txt").read_text()

    def test_rows_of_other_clients_do_no_harm(
        self,
        package_of: Callable[[str, Path], Path],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """BentoML's dispatcher puts rows of several clients into one call; it is not needed to look at that."""
        path = package_of("lightgbm", tmp_path)
        (text,) = re.findall(r"-d '(.*)'$", (path / "README.md").read_text(), re.MULTILINE)
        (row,) = json.loads(text)["rows"]
        plain: Any = SimpleNamespace(
            service=lambda **_: lambda cls: cls, api=lambda **_: lambda method: method
        )
        monkeypatch.setitem(sys.modules, "bentoml", plain)
        scope: dict[str, Any] = {"__file__": str(path / "service.py"), "__name__": "service"}
        exec((path / "service.py").read_text(), scope)
        predict = scope["Service"]().predict
        number = next(name for name, cell in row.items() if isinstance(cell, float))
        short = {name: cell for name, cell in row.items() if name != number}
        alone = predict([row])
        assert set(alone[0]) > {"prediction"}
        together = predict([row, {**row, number: "x"}, short, row])
        assert [together[0], together[3]] == [*alone, *alone]
        assert number in together[1]["error"]
        assert together[2] == {"error": f"there is no column {number!r}"} == predict([short])[0]


@pytest.mark.soak
class TestTorchserve(ServerSuite):
    server = TorchserveServer
    to = "torchserve"
    models: ClassVar[dict[str, dict[str, Any]]] = {"mlp": MEDIAN}
    refused = "lightgbm"
    trust = True

    def check(self, path: Path) -> None:
        """The archive that the settings name is in the store; nobody else reaches the addresses."""
        lines = [line for line in (path / "config.properties").read_text().splitlines() if line[0] != "#"]
        settings = dict(line.split("=", 1) for line in lines)
        ((_, versions),) = json.loads(settings["models"]).items()
        ((_, one),) = versions.items()
        archive = path / settings["model_store"] / one["marName"]
        assert archive == artifact_in(path)
        with zipfile.ZipFile(archive) as opened:
            manifest = json.loads(opened.read("MAR-INF/MANIFEST.json"))
            assert manifest["model"]["handler"].partition(":")[0] in opened.namelist()
        addresses = [value for name, value in settings.items() if name.endswith("_address")]
        assert len(addresses) == 3
        assert all(value.startswith("http://127.0.0.1:") for value in addresses)


@pytest.mark.soak
class TestVllm(ServerSuite):
    server = VllmServer
    to = "vllm"
    models: ClassVar[dict[str, dict[str, Any]]] = {"gpt": {}}
    refused = "lightgbm"

    @pytest.fixture(scope="class")
    def run_of(self, folder: Path) -> Callable[[str], Run]:
        """Return a function to the run of a small model of transformers, or to that of another library."""
        rows = folder / "rows-of-a-customer"
        (rows / "text.txt").write_text("it is good. it is fine. " * 60)
        small = {"model_type": "gpt2", "n_positions": 32, "n_embd": 16, "n_layer": 1, "n_head": 2}
        gpt = {"type": "transformers:AutoModelForCausalLM", "config": small}
        text = {"type": "text", "path": "${env:TRAINWRIGHT_ROWS}/text.txt", "length": 16}
        iris = {"data": {"type": "iris"}, "model": "lightgbm"}
        configs: dict[str, Any] = {"gpt": {"data": text, "model": gpt}, "lightgbm": iris}
        runs: dict[str, Run] = {}

        def run(name: str) -> Run:
            if name not in runs:
                overrides = ["training.max_steps=2", "training.threads=1", "experiment.name=Churn_of.2026"]
                runs[name] = api.train(
                    configs[name], overrides=overrides, runs_dir=folder / "runs", quiet=True
                )
            return runs[name]

        return run

    def check(self, path: Path) -> None:
        assert (path / "model" / "config.json").is_file()
        assert "serve ./model --served-model-name churn-of-2026" in (path / "start.sh").read_text()
        subprocess.run(["bash", "-n", path / "start.sh"], check=True)
        open_to_all = {"PATH": "/usr/bin:/bin", "HOST": "0.0.0.0"}
        done = subprocess.run(
            [path / "start.sh"], check=False, capture_output=True, text=True, env=open_to_all
        )
        assert done.returncode == 2
        assert "lets other machines in: set KEY_FILE" in done.stderr
        service = yaml_of(path / "compose.yaml")["services"]["vllm"]
        assert service["env_file"] == ["api-key.env"]
        assert "api-key*" in (path / ".gitignore").read_text()
