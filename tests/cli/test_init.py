from pathlib import Path

import pytest
from commandline import Command


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.csv"
    lines = [f"{i % 7},{i * 0.5},{'yes' if i % 7 > 3 else 'no'}" for i in range(80)]
    path.write_text("\n".join(["a,b,y", *lines]) + "\n", encoding="utf-8")
    return path


def test_the_config_that_init_writes_is_good(command: Command, rows: Path) -> None:
    output = rows.with_name("new.yaml")
    done = command("init", rows, "--target", "y", "-o", output)
    assert done.code == 0, done.err
    assert f"next: trainwright train {output}" in done.out
    assert command("config", "check", output).code == 0


def test_nothing_is_overwritten_without_force(command: Command, rows: Path) -> None:
    output = rows.with_name("mine.yaml")
    output.write_text("mine", encoding="utf-8")
    done = command("init", rows, "--target", "y", "-o", output)
    assert done.code == 2
    assert "--force" in done.err
    assert output.read_text(encoding="utf-8") == "mine"
    assert command("init", rows, "--target", "y", "-o", output, "--force", "--json").json == {
        "config": str(output)
    }
    assert output.read_text(encoding="utf-8") != "mine"


def test_another_encoding_is_seen_and_can_be_given(command: Command, rows: Path) -> None:
    rows.write_bytes(rows.read_text(encoding="utf-8").replace("yes", "jä").encode("latin-1"))
    output = rows.with_name("new.yaml")
    assert command("init", rows, "--target", "y", "-o", output).code == 0
    assert 'encoding: "cp1252"' in output.read_text(encoding="utf-8")
    assert command("init", rows, "--target", "y", "-o", output, "--encoding", "latin-1", "--force").code == 0
    assert 'encoding: "latin-1"' in output.read_text(encoding="utf-8")
    assert command("config", "check", output).code == 0
    wrong = command("init", rows, "--target", "y", "-o", output, "--encoding", "latin-0", "--force")
    assert "there is no encoding 'latin-0'" in wrong.err


def test_a_wrong_target_leaves_no_file(command: Command, rows: Path) -> None:
    output = rows.with_name("new.yaml")
    done = command("init", rows, "--target", "z", "-o", output)
    assert done.code == 2
    assert "'z'" in done.err
    assert not output.exists()
