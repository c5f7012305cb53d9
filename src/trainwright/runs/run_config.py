"""The config of a run directory, which may come from someone else.

Variables are filled in, and hosts are asked, only for runs that are the user's own or that the user trusts: a
variable may hold a secret, and the config decides which host receives it. Every reader of a run's config uses
this module.
"""

from __future__ import annotations

import os
from pathlib import Path

from ruamel.yaml import YAML

from trainwright.config import Overrides, Resolved
from trainwright.config import load as load_config
from trainwright.config.env import VARIABLE, names_outside, texts_in
from trainwright.config.layers import COMMAND_LINE, OVERRIDES
from trainwright.config.resolved import flat_values, flatten
from trainwright.errors import ConfigError
from trainwright.records.run_dir import RunDir
from trainwright.require import import_rule
from trainwright.runs.catalog import Catalog
from trainwright.safe_files import read_regular
from trainwright.storage.ownership import foreign_error, is_own

_ENDPOINT = "distributed.rdzv_endpoint"  # HOST:PORT
_ONLY_SHOWN = "experiment."  # its texts are only shown
_NO_FILE = (
    "://",
    "*",
    "?",
    "[",
    "{",
)  # marks of URLs and patterns, of which it is not asked if they are there


def read_config(
    run: RunDir, overrides: Overrides = (), *, checked: bool = True, trust: bool = False
) -> Resolved:
    """Return the config of a run; `${env:NAME}` stays in it where the run is neither own nor trusted.

    Args:
        run: The run directory.
        overrides: The user's own, in which variables are filled in.
        checked: Whether names and options of adapters are checked, which must be installed then.
        trust: Whether the user trusts the run; within `workdir.working_for`, that has been said.

    Raises:
        ConfigError: The config or an override is wrong.
        InputError: It cannot be read without its variables.
        CheckpointError: The file is a link, or no regular file.
    """
    file, allowed = run.checked_config_file(), trust or is_trusted(run)
    try:
        adapters, known = (
            Catalog(run.path.parent.parent) if checked else None,
            known_paths(run) if allowed else None,
        )
        return load_config(file, overrides, adapters, variables=allowed, known=known)
    except ConfigError as error:
        if not allowed and (unfilled := _unfilled(run, error)) is not None:
            raise foreign_error(run.path, *unfilled) from error
        raise


def known_paths(run: RunDir) -> dict[str, str]:
    """Return the paths of a run's data that are variables in its config, by dotted key.

    They are those of the run's creation. Where a file is not there any more, and the variables are set, as on
    another machine, these count.
    """
    created = run.creation()
    if created is None or not created.data_paths:
        return {}
    text, folder = read_regular(run.config_file).decode(), Path(created.working_directory)
    unset = any(name not in os.environ for name in VARIABLE.findall(text))
    return {
        key: path
        for key, path in created.data_paths.items()
        if unset or any(mark in path for mark in _NO_FILE) or (folder / Path(path).expanduser()).exists()
    }


def _unfilled(run: RunDir, error: ConfigError) -> tuple[str, str] | None:
    """Return the key and the text of the first value that is wrong because its variable is not filled in."""
    content = YAML(typ="safe", pure=True).load(read_regular(run.config_file))
    wrong = [problem.path for problem in error.problems if problem.file != COMMAND_LINE.file]
    texts = {key: text for key, value in flat_values(content).items() for text in texts_in(value)}
    for path in wrong:
        for key, text in texts.items():
            if f"{key}.".startswith(f"{path}.") and VARIABLE.search(text):
                return key, text
    return None


def usable_config(run: RunDir, overrides: Overrides = (), *, trust: bool = False) -> Resolved:
    """Return the config of a run that is to be trained, or that others are made of.

    Raises:
        ConfigError: The config or an override is wrong.
        InputError: It uses a variable or names a host, and the run is neither own nor trusted.
        CheckpointError: The file is a link, or no regular file.
    """
    resolved = read_config(run, overrides, trust=trust)
    if not trust:
        check_usable(run, resolved)
    return resolved


def is_trusted(run: RunDir) -> bool:
    """Return whether the variables and hosts that a run names may be used."""
    rule = import_rule()
    said = None if rule is None else rule.allows_outside(run.path)
    return is_own(run.path) if said is None else said


def check_usable(run: RunDir, resolved: Resolved) -> None:
    """Check what the config of a run leads to, in which the user may have overridden values.

    Raises:
        InputError: The run uses a variable or names a host, and is neither own nor trusted.
    """
    if is_trusted(run):
        return
    rule = import_rule()
    for key, value in flatten(resolved.config).items():
        source = resolved.sources.get(key)
        is_given = source is not None and source.file in (COMMAND_LINE.file, OVERRIDES.file)
        for text in texts_in(value):
            is_outside = names_outside(text) or key == _ENDPOINT
            if is_given and rule is not None and "://" in text:
                rule.allow_host(text)
            elif is_outside and not is_given and not key.startswith(_ONLY_SHOWN):
                raise foreign_error(run.path, key, text)
