"""Next steps with a run: the commands that mend what was found, and those that use the model."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from trainwright.config.emit import inline
from trainwright.reports.diagnosis import diagnose
from trainwright.reports.diagnosis.answers import ALL_FOLDS, threshold
from trainwright.reports.diagnosis.base import Changes
from trainwright.reports.diagnosis.changes import training_keys
from trainwright.reports.explanations import FILE as EXPLANATION
from trainwright.reports.framework import framework_of
from trainwright.reports.rundir import RunFiles, part


def section(run: RunFiles) -> list[tuple[str, str]] | None:
    """Return reasons and commands; None for a run that has not ended, or belongs to another trainer."""
    manifest = run.manifest
    if run.status != "completed" or manifest is None or manifest.trainer is not None:
        return None
    name, options = shlex.quote(run.run_id), runs_option(run)
    config = config_path(run)
    steps = []
    if manifest.data.features and (chosen := threshold(run)) is not None:
        command = f"trainwright predict {name} rows.csv -o predictions.csv --threshold {chosen:.3g}{options}"
        steps.append(("answer from the threshold at which both classes weigh the same", command))
    if not manifest.objects:
        findings = diagnose(run)
        if changes := _changes([finding.changes for finding in findings]):
            steps.append(
                ("fix what was found, in a new run", f"trainwright train {config} {changes}{options}")
            )
        if any(finding.command == ALL_FOLDS for finding in findings):
            steps.append(("judge it by all rows", ALL_FOLDS.replace("CONFIG", config) + options))
    if manifest.data.features:
        if not (run.folder / "evaluation" / EXPLANATION).exists():
            steps.append(("see which columns the model looks at", f"trainwright explain {name}{options}"))
        steps.append(("predict new rows", f"trainwright predict {name} rows.csv -o predictions.csv{options}"))
    if not manifest.objects and _has_space(run):
        steps.append(
            (
                "get a search space for better settings, to add to the config",
                f"trainwright tune --suggest {config}",
            )
        )
    return steps


def _has_space(run: RunFiles) -> bool:
    """Return whether options of the model are known that are worth a search."""
    framework, model = framework_of(run), str(part(run.settings, "model").get("type"))
    if framework is None:
        return False
    return model in framework.advice.spaces or {"learning_rate", "batch_size"} <= {*training_keys(run)}


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


def _changes(mends: Sequence[Changes]) -> str:
    """Return the changes of the config that mend what was found, as arguments."""
    both: dict[str, Any] = {}
    for key, value in (pair for changes in mends for pair in changes.items()):
        is_list = key == "data.exclude" and key in both  # several findings may leave columns out
        both[key] = list(dict.fromkeys([*both[key], *value])) if is_list else value
    return " ".join(shlex.quote(f"{key}={inline(value)}") for key, value in both.items())
