"""The documents: configs check, commands and code parse, links lead somewhere; README and quickstart run."""

import ast
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import click
import pytest

import warm_commands
from trainwright import api
from trainwright.callbacks.progress import line
from trainwright.cli.commands import cli

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`trainwright ([a-z][a-z-]*(?: [^`]*)?)`")


def blocks(language: str) -> Iterator[Any]:
    """The code blocks of a language in all pages."""
    for page in PAGES:
        for number, (found, text) in enumerate(BLOCK.findall(page.read_text(encoding="utf-8"))):
            if found == language:
                yield pytest.param(text, id=f"{page.name}-{number}")


def test_the_readme_names_every_extra() -> None:
    table = (ROOT / "README.md").read_text(encoding="utf-8").partition("| extra | installs |")[2]
    rows = table.partition("\n\n")[0].splitlines()
    named = [name for row in rows for name in re.findall(r"`([\w-]+)`", row)]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    others = {"bench"}  # benchmarks/README.md has it
    assert {*named} == project["project"]["optional-dependencies"].keys() - others


def test_the_layout_names_what_is_there() -> None:
    sources = ROOT / "src" / "trainwright"
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (layout,) = (text for language, text in BLOCK.findall(page) if language == "text")
    named, folder = [], sources
    for row in layout.splitlines():
        if not row.startswith("  "):
            continue
        names, _, description = row[2:].partition("  ")  # a row that goes on has no names
        named += [sources / name for name in names.split()]
        folder = sources / names if names else folder
        named += [folder / name for name in re.findall(r"`([\w/]+(?:\.py|/))`", description)]
    assert len(named) > 40
    assert [str(path.relative_to(sources)) for path in named if not path.exists()] == []


def commands() -> Iterator[Any]:
    """Every `trainwright ...` line that the pages tell people to type."""
    for page in PAGES:
        shown = [
            text
            for language, text in BLOCK.findall(page.read_text(encoding="utf-8"))
            if language in ("sh", "console")
        ]
        for text in "\n".join(shown).splitlines():
            words = shlex.split(text.removeprefix("$ "), comments=True)
            words = list(takewhile(lambda word: not word.startswith(">"), words))
            if words[:1] == ["trainwright"]:
                yield pytest.param(words[1:], id=" ".join(words))


def inline_commands() -> Iterator[Any]:
    """Every `trainwright ...` within a sentence or a table, where arguments may be left out or be placeholders."""
    for page in PAGES:
        text = BLOCK.sub("", page.read_text(encoding="utf-8"))
        for found in sorted(set(INLINE.findall(text))):
            yield pytest.param(shlex.split(found), id=f"{page.name}: {found}")


def command_of(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that the words name, and the words that follow its name."""
    command: click.Command = cli
    context = click.Context(cli, info_name="trainwright")
    while isinstance(command, click.Group) and words:
        found = command.get_command(context, words[0])
        assert found is not None, f"there is no command {words[0]!r}"
        command, words = found, words[1:]
    return command, words


def test_the_config_reference_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ROOT / "docs" / "config.md").read_text(encoding="utf-8") == module.render(), "run `make docs`"
    assert (ROOT / "docs" / "export.md").read_text(encoding="utf-8") == module.render_exports(), (
        "run `make docs`"
    )


# The config on the page about adapters needs the adapters of that page: `test_adapters_page.py` trains with
# it.
@pytest.mark.parametrize(
    "text", [block for block in blocks("yaml") if not str(block.id).startswith("adapters.md")]
)
def test_configs_check(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEAM_MLFLOW", "http://127.0.0.1:5000")
    (tmp_path / "config.yaml").write_text(text, encoding="utf-8")
    api.check(tmp_path / "config.yaml")


def test_the_first_screen_shows_the_example() -> None:
    example = "".join(
        row for row in (ROOT / "examples" / "digits.yaml").open(encoding="utf-8") if not row.startswith("#")
    )
    assert example in [text for _, text in BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))]
    assert len(example.splitlines()) < 15


@pytest.mark.parametrize("words", list(commands()))
def test_commands_parse(words: list[str]) -> None:
    command, arguments = command_of(words)
    command.make_context("trainwright", arguments)


@pytest.mark.parametrize("words", list(inline_commands()))
def test_commands_in_sentences_exist(words: list[str]) -> None:
    command, arguments = command_of(words)
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    named = {word.partition("=")[0] for word in arguments if word.startswith("-")}
    assert named <= options, f"{command.name} has no {named - options}"


@pytest.mark.parametrize("text", list(blocks("python")))
def test_code_parses(text: str) -> None:
    ast.parse(text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text(encoding="utf-8"))
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert missing == []


def test_the_documented_expression_finds_what_progress_prints() -> None:
    (expression,) = re.findall(
        r"^\(\?P<name>.*$", (ROOT / "docs" / "cli.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    printed = line({"step": "5/10"}, {"train_loss": float("nan"), "metric": "val loss", "eta_seconds": 3})
    found = {match["name"]: match["value"] for match in re.finditer(expression, printed)}
    assert found == {"step": "5/10", "train_loss": "nan", "metric": "val_loss", "eta_seconds": "3"}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with the examples, as in a fresh clone."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def run(command: list[str], place: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        key: value
        for key, value in os.environ.items()
        if key not in ("TRAINWRIGHT_RUNS", "MLFLOW_TRACKING_URI")
    }
    return subprocess.run(
        command, cwd=place, env=environment, capture_output=True, text=True, timeout=280, check=False
    )


@pytest.mark.slow
def test_the_code_of_the_readme_runs(place: Path) -> None:
    (code,) = [
        text
        for language, text in BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
        if language == "python"
    ]
    done = run([sys.executable, "-c", code], place)
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"^ +prediction .*probability_", done.stdout, re.MULTILINE
    )  # pandas may leave out columns


@pytest.mark.slow
@pytest.mark.parametrize("tracking", ["[]", "[mlflow]"])
def test_the_quickstart_and_the_commands_that_it_prints(tracking: str, place: Path) -> None:
    config = place / "examples" / "digits.yaml"
    text = config.read_text(encoding="utf-8")
    assert "tracking: [mlflow]" in text
    shorter = text.replace("tracking: [mlflow]", f"tracking: {tracking}").replace("epochs: 30", "epochs: 15")
    config.write_text(shorter, encoding="utf-8")
    done = run([sys.executable, str(place / "examples" / "quickstart.py")], place)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\n  equal\n" in done.stdout
    report = re.search(r"^report  file://(.*)$", done.stdout, re.MULTILINE)
    assert report is not None
    assert Path(report[1]).is_file()
    following = [
        row for row in done.stdout.partition("\nNext\n")[2].splitlines() if row and not row.startswith("#")
    ]
    assert len(following) == 3
    for shown in following:
        program, *words = shlex.split(shown)
        assert program.endswith("bin/trainwright")
        tried = warm_commands.command(*words, folder=place)
        assert tried.returncode == 0, f"{shown}\n{tried.stdout}{tried.stderr}"
