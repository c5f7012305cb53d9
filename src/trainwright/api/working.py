"""Create runs, and make attempts of them in worker processes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainwright.api.progress import interruptible
from trainwright.api.training import log_notes, resume
from trainwright.config import Config, Overrides
from trainwright.config import load as load_resolved
from trainwright.config.env import DATA_PATHS
from trainwright.records.listing import runs_folder
from trainwright.records.run_dir import RunDir
from trainwright.records.status import DECIDED
from trainwright.runs.catalog import Catalog
from trainwright.runs.leasing import publish
from trainwright.runs.lookup import RunName, find
from trainwright.runs.objects import require_data
from trainwright.runs.processes.isolation import as_fresh_process
from trainwright.runs.run import Run
from trainwright.runs.workdir import creation_of

if TYPE_CHECKING:
    from trainwright.callbacks.base import Callback

log = logging.getLogger("trainwright")


def create(config: Config, overrides: Overrides = (), *, runs_dir: Path | str | None = None) -> Run:
    """Create a run that a worker process trains: `work`, here or on another machine.

    The config is checked as `config check` does, without data, frameworks or the user's own code. Unlike
    `train`, it takes no model or data objects: a worker could not have them.

    Args:
        config: A YAML file, or its content as a mapping.
        overrides: `key.path=value` texts, or a mapping from dotted keys.
        runs_dir: The folder of the runs, or the URL of a store; default `TRAINWRIGHT_RUNS`, or `runs`.

    Raises:
        InputError: The config is wrong, or the run cannot be stored.
    """
    from trainwright.datasets.samples.remote import refuse_credentials

    folder = runs_folder(runs_dir)
    resolved = load_resolved(config, overrides, Catalog(folder))
    log_notes(resolved)
    require_data(resolved, config)
    for key in DATA_PATHS:
        refuse_credentials(str(getattr(resolved.config.data, key.removeprefix("data.")) or ""))
    experiment = resolved.config.experiment.name
    run = RunDir.create(folder, experiment, resolved.dump(), created=creation_of(resolved))
    publish(run)
    return Run(run)


@interruptible
def work(
    run: RunName,
    *,
    runs_dir: Path | str | None = None,
    callbacks: Sequence[Callback] = (),
    trust: bool = False,
    quiet: bool = False,
) -> Run:
    """Make one attempt of a run: its first one, or one that continues from the newest valid checkpoint.

    A worker process calls this any number of times, and each run gets the bits of a fresh process. What a run
    changes in the process (environment variables, the import path, the user's modules that it imports) is
    undone at its end, and the libraries of the frameworks have their default settings at its start. A run is
    refused if it would need a change of what cannot be undone: the backend of Keras, and the number of
    threads of TensorFlow and JAX.

    Call it from one thread of a process at a time.

    The attempt is the same as that of `train`, or of `resume` without overrides. A run that is completed, or
    was stopped or pruned, is left as it is.

    Args:
        run: A run, a path, a URL, an id, a unique prefix, or `last`.
        runs_dir: The folder of the runs, or the URL of a store.
        callbacks: Observers of the run.
        trust: Import all that the run's config names; each import is announced in the log.
        quiet: Show no progress.

    Raises:
        InputError: The run's inputs are wrong, or need a fresh process. A run that `create` made stays.
        RunNotFoundError: There is no such run.
        RunLockedError: Another process owns it.
        ChangedInputsError: Data or code have changed since the first attempt.
        TrainingError: The training failed; another attempt continues from the last commit.
        CheckpointError: A checkpoint cannot be written or restored, or the best model is damaged.
        Interrupted: Ctrl-C has ended the run, after a commit or before its first step; it is a
            `KeyboardInterrupt`, with the run, if there is one, in `run`.
    """
    chosen = find(run, runs_dir)
    if (status := chosen.status()) in DECIDED:
        log.info("run %s is %s: `trainwright resume` goes on with it", chosen.id, status)
        return Run(chosen)
    with as_fresh_process():
        return resume(Run(chosen), callbacks=callbacks, trust=trust, quiet=quiet)
