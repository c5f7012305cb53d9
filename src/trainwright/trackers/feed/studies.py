"""Tell trackers how a study has ended, from a process of its own.

The trackers and the study arrive there as JSON on standard input, as options may hold secrets.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainwright import plugins
from trainwright.trackers.base import StudyCard, StudyTracker

log = logging.getLogger("trainwright")
_PATIENCE = 60.0  # seconds in all; a busy machine takes long to import a tracker


def tell_end(card: StudyCard, tracking: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """Tell the trackers that know studies how one has ended; what goes wrong is a warning.

    Args:
        card: The study.
        tracking: Type and options of each tracker.
    """
    told = [(name, dict(options)) for name, options in tracking if _knows_studies(name)]
    if not told:
        return
    request = json.dumps({"card": card._asdict() | {"folder": str(card.folder)}, "tracking": told})
    command = [sys.executable, "-P", "-m", __name__]
    try:
        # A session of its own: Ctrl-C is meant for the study.
        ended = subprocess.run(
            command,
            input=request.encode(),
            capture_output=True,
            timeout=_PATIENCE,
            start_new_session=True,
            check=False,
        )
        problem = "" if ended.returncode == 0 else ended.stderr.decode(errors="replace").strip()[-300:] or "?"
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = f"{type(error).__name__}"
    if problem:
        log.warning(
            "the trackers do not know yet that study %s has ended (%s); `trainwright resume %s` tells them",
            card.study_id,
            problem,
            card.study_id,
        )


def _knows_studies(name: str) -> bool:
    return hasattr(plugins.adapter("tracker", name), "end_study")


def main() -> None:
    """Report the end of a study to the trackers that standard input lists."""
    from trainwright.trackers.feed.__main__ import connect

    request = json.load(sys.stdin)
    card = StudyCard(**request["card"] | {"folder": Path(request["card"]["folder"])})
    for name, options in request["tracking"]:
        tracker = connect(name, options)
        assert isinstance(tracker, StudyTracker)
        tracker.end_study(card)


if __name__ == "__main__":
    main()
