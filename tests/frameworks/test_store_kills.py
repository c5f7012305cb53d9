"""The kill suite in stores: killed at any request, a run is resumed elsewhere, with its URL, to the same bits."""

from pathlib import Path
from typing import ClassVar

import pytest
import test_torch_suite
import test_toy

from trainwright.testing.framework_suite import DATA_MODULES, VICTIM, FrameworkSuite, Kills
from trainwright.testing.warm import WarmProcesses
from troubled_server import TroubledServer


class InStore(FrameworkSuite):
    """A suite whose runs are in a store, and are resumed in a folder and with a cache of their own."""

    service = "s3"  # the fixture of it
    starts_afresh = False  # the suite of the framework does
    # The first entry takes the lease; the second makes the attempt known in the store.
    three_kills: ClassVar[Kills] = (("step", 9), ("committed", 2), ("entry", 3))

    def resume_folder(self, config_file: Path, folder: Path) -> Path:
        elsewhere = folder / "elsewhere"
        elsewhere.mkdir(exist_ok=True)
        return elsewhere

    @pytest.fixture(scope="class")
    @classmethod
    def processes(cls, request: pytest.FixtureRequest) -> WarmProcesses:
        service: TroubledServer = request.getfixturevalue(cls.service)
        # The cache is in the folder that a process is started in.
        environment = service.environment() | {"TRAINWRIGHT_CACHE": "cache"}
        return WarmProcesses(VICTIM, (*DATA_MODULES, "torch"), environment)


for name in dir(FrameworkSuite):
    if name.startswith("test_") and "killed" not in name:
        setattr(InStore, name, None)  # it does not concern the store


class TestInFolder(InStore, test_toy.TestToy):
    """Any `file://` URL: what is on a network disk, say."""

    # Before its sixth request, no run is there: the store is tried, the config and what belongs to it are put.
    kills = (("request", 6), ("request", 13), ("answer", 5), ("answer", 12), ("step", 13), ("end", 1))

    def runs_dir(self, folder: Path) -> str:
        return (folder / "store").as_uri()


class TestInS3(InStore, test_torch_suite.TestTorch):
    kills = (("request", 8), ("answer", 11), ("final-evaluation", 1))

    @pytest.fixture(autouse=True)
    def _bucket(self, bucket: str) -> None:
        self._url = bucket

    def runs_dir(self, folder: Path) -> str:
        return f"{self._url}/runs"


class TestInGs(InStore, test_toy.TestToy):
    service = "gs"
    kills = (("request", 9), ("answer", 5), ("step", 13))

    @pytest.fixture(autouse=True)
    def _bucket(self, gs_bucket: str) -> None:
        self._url = gs_bucket

    def runs_dir(self, folder: Path) -> str:
        return f"{self._url}/runs"


class TestInAz(InStore, test_toy.TestToy):
    service = "az"
    kills = (("request", 9), ("step", 13))

    @pytest.fixture(autouse=True)
    def _bucket(self, az_container: str) -> None:
        self._url = az_container

    def runs_dir(self, folder: Path) -> str:
        return f"{self._url}/runs"
