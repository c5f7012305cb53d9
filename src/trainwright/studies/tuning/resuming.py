"""The command that resumes a search, for messages."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from trainwright.records.listing import runs_folder
from trainwright.require import import_paths
from trainwright.safe_open import read_regular
from trainwright.storage.ownership import is_own
from trainwright.studies.tuning.tuner_checks import CONFIG

_WORDS = re.compile(r"[^\s'\",\[\]{}]+")


def resuming(study: Path, *options: str) -> str:
    """Return the command that goes on with a search.

    Args:
        study: Its folder.
        options: Options to put after its name.
    """
    runs, config = study.parent.parent, study / CONFIG
    words = ["trainwright", "resume", study.name]
    if runs.absolute() != runs_folder().absolute():
        words += ["--runs-dir", str(runs)]
    if config.exists() and not is_own(study, CONFIG):
        text = read_regular(config).decode(errors="replace")
        words += ["--trust"] if any(import_paths(_WORDS.findall(text))) else []
    return shlex.join([*words, *options])
