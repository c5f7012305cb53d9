"""Make the pictures of README.md and docs/report.md: train two small models, and picture their pages.

Run it with `python docs/pictures.py [FOLDER]`; the default folder is docs/images. It takes half a minute,
downloads nothing, and leaves no run behind. A figure is cut out of a page as SVG. The pictures of whole
pages need a Chromium or Chrome on this machine (or `--chromium PATH`), and Pillow; without, the figure is
all that is made. The pages themselves are written there with `--pages`.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import trainwright

IMAGES = Path(__file__).resolve().parent / "images"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
LARGEST = 150_000  # bytes of a picture
BASE = {
    "experiment": {"name": "breast-cancer", "seed": 1},
    "data": {"type": "breast_cancer"},
    "model": {"type": "mlp", "params": {"hidden": [32]}},
    "training": {"epochs": 20, "learning_rate": 0.003, "threads": 1},
}


def main() -> int:
    """Train the runs, and make the pictures; return 1 where those of whole pages are missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=IMAGES)
    parser.add_argument("--pages", action="store_true", help="write the pages, too")
    parser.add_argument("--chromium", metavar="PATH", help="the browser that takes pictures of pages")
    given = parser.parse_args()
    folder = given.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    browser = given.chromium or next((found for name in BROWSERS if (found := shutil.which(name))), None)
    with tempfile.TemporaryDirectory() as work:
        os.chdir(work)  # pages name the directory of the runs' commands
        first = trainwright.train(BASE, runs_dir="runs")
        second = trainwright.train(BASE, {"training.learning_rate": 0.03}, runs_dir="runs")
        report = trainwright.report(second)
        several = trainwright.report(first, second, output=Path("runs.html"))
        cut_out(report, "ROC", folder / "roc.svg")
        if given.pages:
            for page in (report, several):
                shutil.copy(page, folder)
        if browser is not None:
            take_picture(browser, report, folder / "report.png", (1060, 1400))
            take_picture(browser, several, folder / "comparison.png", (1060, 1400))
        os.chdir(folder)
    if browser is None:
        print(f"no picture of whole pages: none of {', '.join(BROWSERS)} is on this machine", file=sys.stderr)
    return 0 if browser is not None else 1


def cut_out(page: Path, title: str, path: Path) -> None:
    """Write the chart of this title as a picture of its own, with the style sheet of the page."""
    source = page.read_text(encoding="utf-8")
    charts = re.findall(r"<svg class=\"chart.*?</svg>", source, re.DOTALL)
    chart = next(one for one in charts if f"<title>{title}</title>" in one)
    style = re.search(r"<style>(.*?)</style>", source, re.DOTALL)
    assert style is not None, "each page has a style sheet"
    # The script of the page reads these; a picture has none.
    chart = re.sub(r" data-[a-z]+=\"[^\"]*\"", "", chart)
    head = '<svg xmlns="http://www.w3.org/2000/svg"'
    rules = f"><style>{style[1].strip()}</style>"
    path.write_text(chart.replace("<svg", head, 1).replace(">", rules, 1) + "\n", encoding="utf-8")


def take_picture(browser: str, page: Path, path: Path, size: tuple[int, int]) -> None:
    """Take a picture of the beginning of a page, `size` (width, height) pixels, with few colors."""
    from PIL import Image

    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    window = [f"--window-size={size[0]},{size[1]}", f"--screenshot={path}"]
    with tempfile.TemporaryDirectory() as profile:
        command = [browser, *options, f"--user-data-dir={profile}", *window, page.absolute().as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
    with Image.open(path) as picture:
        picture.convert("RGB").quantize(64, dither=Image.Dither.NONE).save(path, optimize=True)
    if path.stat().st_size > LARGEST:
        raise SystemExit(f"{path} has {path.stat().st_size:,} bytes, and may have {LARGEST:,}")


if __name__ == "__main__":
    sys.exit(main())
