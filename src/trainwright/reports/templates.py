"""The templates of the pages, and how a page is written."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from trainwright.redact import printable
from trainwright.safe_files import write_atomically

if TYPE_CHECKING:
    from jinja2 import Template


def write_page(path: Path, text: str) -> None:
    """Write a page or a card durably, without characters that control a terminal or turn text around.

    Names of columns, classes and files may come from a stranger, and pages are read in terminals, too.

    Raises:
        OSError: The file cannot be written.
    """
    write_atomically(path, printable(text).encode(errors="replace"))


def style() -> Markup:
    """Return the style sheet of the page of a run, which is part of its template."""
    return _within("style")


def script() -> Markup:
    """Return the script of the page of a run, which is part of its template."""
    return _within("script")


def _within(tag: str) -> Markup:
    source = Path(__file__).with_name("report.html.j2").read_text(encoding="utf-8")
    match = re.search(rf"<{tag}>(.*?)</{tag}>", source, re.DOTALL)
    return Markup(match[1] if match else "")  # it is ours, and holds no values of a run


@cache  # compiling a template takes as long as training a small model
def template(name: str) -> Template:
    """Return a template of this folder, compiled."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)
