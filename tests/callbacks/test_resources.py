from typing import Any

import pytest

from trainwright.callbacks import resources as module
from trainwright.callbacks.base import RunView
from trainwright.callbacks.resources import Resources

RUN = RunView("r1", "digits", 900, 45, 1437, 32)


def test_a_record_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    wall, cpu, found = [0.0], [0.0], list[tuple[int, dict[str, Any]]]()
    monkeypatch.setattr(module.time, "monotonic", lambda: wall[0])
    monkeypatch.setattr(module.time, "process_time", lambda: cpu[0])
    watched = Resources(lambda step, values: found.append((step, values)))
    watched.on_start(RUN)
    for step in range(1, 26):
        wall[0], cpu[0] = wall[0] + 1.0, cpu[0] + 1.5
        watched.on_log(step, {})
    assert [step for step, _ in found] == [10, 20]
    assert [values["cpu_percent"] for _, values in found] == [150.0, 150.0]
    assert all(1 < values["rss_mib"] < 1e6 for _, values in found)


def test_memory_is_left_out_where_the_system_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(module.Path, "read_text", refuse)
    assert module._memory() == {}
