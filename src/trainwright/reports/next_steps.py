"""Next steps with a run: the commands that mend what was found, and those that use the model."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import pairwise

from trainwright.reports.diagnosis import diagnose
from trainwright.reports.diagnosis.answers import ALL_FOLDS
from trainwright.reports.explanations import FILE as EXPLANATION
from trainwright.reports.rundir import RunFiles

_BLANKS = ("COLUMN", "ALL_ROWS")  # what the reader must fill in


def section(run: RunFiles) -> list[tuple[str, str]] | None:
    """Return reasons and commands; None for a run that has not ended, or belongs to another trainer."""
    manifest = run.manifest
    if run.status != "completed" or manifest is None or manifest.trainer is not None:
        return None
    name, options = shlex.quote(run.run_id), runs_option(run)
    config = config_path(run)
    steps = []
    if not manifest.objects:
        mends = [finding.mend for finding in diagnose(run)]
        if changes := _changes([one for one in mends if one != ALL_FOLDS]):
            steps.append(
                ("fix what was found, in a new run", f"trainwright train {config} {changes}{options}")
            )
        if ALL_FOLDS in mends:
            steps.append(("judge it by all rows", ALL_FOLDS.replace("CONFIG", config) + options))
    if manifest.data.features:
        if not (run.folder / "evaluation" / EXPLANATION).exists():
            steps.append(("see which columns the model looks at", f"trainwright explain {name}{options}"))
        steps.append(("predict new rows", f"trainwright predict {name} rows.csv -o predictions.csv{options}"))
    if not manifest.objects:
        steps.append(
            (
                "get a search space for better settings, to add to the config",
                f"trainwright tune --suggest {config}",
            )
        )
    return steps


def config_path(run: RunFiles) -> str:
    """Return the path of the resolved config, quoted: from the run's working directory, if it is below."""
    path = (run.folder / "config.yaml").absolute()
    start = run.manifest.working_directory if run.manifest else ""
    return shlex.quote(str(path.relative_to(start) if start and path.is_relative_to(start) else path))


def runs_option(run: RunFiles) -> str:
    """Return the option with the folder of the runs, as the run's own command named it; mostly empty."""
    words: Sequence[str] = run.manifest.command if run.manifest else ()
    for word, following in pairwise([*words, ""]):
        option, _, value = word.partition("=")
        if option == "--runs-dir" and (value or following):
            return f" --runs-dir {shlex.quote(value or following)}"
    return ""


def _changes(mends: Sequence[str]) -> str:
    """Return the lines of config that mend what was found, as arguments."""
    lines = [one for one in mends if not any(blank in one for blank in _BLANKS)]
    pairs: dict[str, str] = {}
    for key, _, value in (line.partition(": ") for line in lines):
        both = key == "data.exclude" and key in pairs  # several findings may leave columns out
        pairs[key] = _union(pairs[key], value) if both else value
    return " ".join(shlex.quote(f"{key}={value}") for key, value in pairs.items())


def _union(one: str, other: str) -> str:
    """Return the items of two lists, which are in YAML, as one."""
    from ruamel.yaml import YAML

    from trainwright.config.emit import inline

    parser = YAML(typ="safe", pure=True)
    return inline(list(dict.fromkeys([*parser.load(one), *parser.load(other)])))
