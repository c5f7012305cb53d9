"""The pages by job: all are linked, their links, names and keys exist, and their code runs."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import trainwright
import warm_commands
from trainwright.inference.predictor import Predictor
from trainwright.runs.run import Run

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md"), *ROOT.glob("examples/*.md")])
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECTIONS = "experiment|data|training|evaluation|checkpoint|logging|distributed|tuning"
KEY = re.compile(rf"`((?:{SECTIONS})(?:\.[a-z_]+)+)(?=[`:=])")
LONG = ("python.md", "coming_from.md")  # tables to look things up
LINES = 133


def text_of(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def jobs() -> list[str]:
    """The pages that the start page has above its references."""
    first = text_of("index.md").partition("## Look it up")[0]
    return re.findall(r"\]\((\w+\.md)\)", first)


def blocks(page: str, language: str) -> list[str]:
    return [text for found, text in FENCED.findall(text_of(page)) if found == language]


def test_the_start_page_leads_to_every_page() -> None:
    linked = set(re.findall(r"\]\((\w+\.md)", text_of("index.md")))
    assert linked == {page.name for page in DOCS.glob("*.md")} - {"index.md"}


def test_the_readme_links_the_start_page_first() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    prose = re.sub(r"^\|.*$", "", readme, flags=re.MULTILINE)  # the table of promises comes before it
    assert re.findall(r"\]\((docs/\w+\.md)", prose)[0] == "docs/index.md"


@pytest.mark.parametrize("page", [page for page in jobs() if page not in LONG])
def test_the_page_of_a_job_is_short(page: str) -> None:
    assert len(text_of(page).splitlines()) <= LINES


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    plain = FENCED.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.*)$", plain, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_anchors_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?://)([^)#]*)#([^)]+)\)", page.read_text(encoding="utf-8"))
    targets = [(page.parent / name if name else page, anchor) for name, anchor in links]
    missing = [
        (path.name, anchor) for path, anchor in targets if path.exists() and anchor not in anchors(path)
    ]
    assert missing == []


def keys_of(schema: dict[str, Any], node: dict[str, Any], keys: list[str]) -> bool:
    """Return whether a schema has a key; what it leaves open (`params`, import paths) counts as having it."""
    if "$ref" in node:
        return keys_of(schema, schema["$defs"][node["$ref"].rsplit("/", 1)[1]], keys)
    if not keys:
        return True
    options = [*node.get("anyOf", ()), *node.get("oneOf", ()), *node.get("allOf", ())]
    if any(keys_of(schema, option, keys) for option in options):
        return True
    inner = node.get("properties", {}).get(keys[0])
    return inner is not None and keys_of(schema, inner, keys[1:])


@pytest.mark.parametrize("page", jobs())
def test_the_keys_exist(page: str) -> None:
    schema = trainwright.schema()
    named = {key for key in KEY.findall(text_of(page)) if not key.endswith((".csv", ".py", ".md"))}
    assert sorted(key for key in named if not keys_of(schema, schema, key.split("."))) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_names_of_the_package_exist(page: Path) -> None:
    called = re.findall(r"(?<![\w./-])trainwright\.([a-z_]+)\(", page.read_text(encoding="utf-8"))
    assert {*called} <= {*trainwright.__all__}


def public(cls: type) -> set[str]:
    return {name for name in vars(cls) if not name.startswith("_")}


def test_the_page_about_python_has_every_name() -> None:
    page = text_of("python.md")
    assert [name for name in trainwright.__all__ if name != "__version__" and name not in page] == []
    assert [name for name in public(Run) - {"trained"} if f"run.{name}" not in page] == []
    table = page.partition("| method of a loaded model |")[2].partition("\n\n")[0]
    methods = {
        name for row in table.splitlines() for name in re.findall(r"`([a-z_]+)[(`]", row.split("|")[1])
    }
    assert len(methods) >= 9
    assert methods <= public(Predictor)


def run(code: str, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_page_about_python_runs(tmp_path: Path) -> None:
    run("\n".join(blocks("python.md", "python")), tmp_path)


@pytest.mark.slow
def test_the_callback_for_wandb_logs_each_step_once_and_in_order(tmp_path: Path) -> None:
    (tmp_path / "wandb.py").write_text(
        "class init:\n"
        "    def __init__(self, project, id, resume):\n"
        "        self.steps = []\n"
        "    def log(self, metrics, step):\n"
        "        self.steps.append(step)\n"
        "    def finish(self):\n"
        "        assert len(self.steps) > 3 and self.steps == sorted(self.steps), self.steps\n"
        "        print('finished')\n",
        encoding="utf-8",
    )
    (code,) = blocks("tracking.md", "python")
    run(f"import sys\nsys.path.insert(0, '.')\n{code}\nassert run.metrics", tmp_path)


def objects() -> Iterator[Any]:
    for page, word in (("models.md", "model=net"), ("models.md", "model=pipeline")):
        for number, text in enumerate(blocks(page, "python")):
            if word in text:
                yield pytest.param(text, id=f"{page}-{number}")


@pytest.mark.slow
@pytest.mark.parametrize("code", [one for one in objects() if "keras" not in one.values[0]])
def test_objects_train(code: str, tmp_path: Path) -> None:
    run(code, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "module", "config"),
    [
        ("models.md", "my_models", "my_models:Wide"),
        ("own_code.md", "my_data", "my_data:rings"),
        ("own_code.md", "my_losses", "my_losses:Poly"),
        ("own_loop.md", "losses_of_mine", "losses_of_mine:Net"),
        ("own_loop.md", "gan", "gan:Gan"),
        ("targets.md", "nets", "nets:Autoencoder"),
    ],
)
def test_the_readers_own_code_trains(page: str, module: str, config: str, tmp_path: Path) -> None:
    (code,) = [text for text in blocks(page, "python") if text.startswith(f"# {module}.py")]
    (settings,) = [text for text in blocks(page, "yaml") if config in text]
    (tmp_path / f"{module}.py").write_text(code, encoding="utf-8")
    (tmp_path / "config.yaml").write_text(settings, encoding="utf-8")
    done = warm_commands.command("train", "config.yaml", "training.epochs=2", "--quiet", folder=tmp_path)
    assert done.returncode == 0, done.stderr
