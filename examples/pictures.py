"""Make the pictures of docs/report.md: train two small models, and take figures out of their pages.

Run it with `python examples/pictures.py [FOLDER]`; the default folder is docs/images. It takes half a minute,
downloads nothing, and leaves no run behind. The pages themselves are written there with `--pages`.
"""

from __future__ import annotations

import argparse
import re
import shutil
import tempfile
from pathlib import Path

import trainyard

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
BASE = {
    "experiment": {"name": "pictures", "seed": 1},
    "data": {"type": "breast_cancer"},
    "model": {"type": "mlp", "params": {"hidden": [32]}},
    "training": {"epochs": 20, "learning_rate": 0.003, "threads": 1},
}


def main() -> None:
    """Train the runs, and write the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=IMAGES)
    parser.add_argument("--pages", action="store_true", help="write the pages, too")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as runs:
        first = trainyard.train(BASE, runs_dir=runs)
        second = trainyard.train(BASE, {"training.learning_rate": 0.03}, runs_dir=runs)
        report = trainyard.report(first)
        several = trainyard.report(first, second, output=Path(runs) / "runs.html")
        cut_out(report, "ROC", given.folder / "roc.svg")
        cut_out(report, "Calibration", given.folder / "calibration.svg")
        cut_out(several, "validation loss", given.folder / "overlay.svg")
        if given.pages:
            for page in (report, several):
                shutil.copy(page, given.folder)


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


if __name__ == "__main__":
    main()
