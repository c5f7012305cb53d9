"""A new sqlite store of MLflow's is whole, or not there."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainwright.trackers.mlflow.store import client_of


class Client:
    """Makes the file of a store in two steps, as MLflow does in fifty; the first time it dies between them."""

    dies = True

    def __init__(self, tracking_uri: str) -> None:
        self.file = Path(tracking_uri.removeprefix("sqlite:///"))
        if self.file.exists():
            assert self.file.read_text() == "all tables", "a half of a store cannot be opened"
            return
        self.file.write_text("a half")
        if type(self).dies:
            type(self).dies = False
            raise KeyboardInterrupt
        self.file.write_text("all tables")


TRACKING: Any = SimpleNamespace(MlflowClient=Client)


def test_a_process_that_dies_while_it_makes_a_store_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Client, "dies", True)
    file = tmp_path / "mlflow.db"
    with pytest.raises(KeyboardInterrupt):
        client_of(TRACKING, f"sqlite:///{file}")
    assert not [*tmp_path.iterdir()]
    for _ in range(2):
        assert client_of(TRACKING, f"sqlite:///{file}").file == file
    assert [*tmp_path.iterdir()] == [file]


def test_the_store_of_the_process_that_was_faster_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Client, "dies", False)
    file = tmp_path / "mlflow.db"

    class Slow(Client):
        def __init__(self, tracking_uri: str) -> None:
            super().__init__(tracking_uri)
            if self.file != file:
                file.write_text("all tables")
                theirs.append(file.stat().st_ino)

    theirs: list[int] = []
    client_of(SimpleNamespace(MlflowClient=Slow), f"sqlite:///{file}")
    assert [file.stat().st_ino] == theirs
    assert [*tmp_path.iterdir()] == [file]


@pytest.mark.parametrize("uri", ["http://127.0.0.1:5000", "sqlite:///:memory:", "sqlite://", "file:///x"])
def test_other_stores_are_left_to_mlflow(uri: str) -> None:
    asked: list[str] = []

    def client(*, tracking_uri: str) -> None:
        asked.append(tracking_uri)

    client_of(SimpleNamespace(MlflowClient=client), uri)
    assert asked == [uri]
