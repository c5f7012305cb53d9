# ruff: noqa: ARG002 - the Trainer gives its callbacks more than each of them needs
"""A callback for Lightning's `Trainer`.

yard = TrainyardCallback(experiment="mnist")
trainer = Trainer(..., callbacks=[yard])
trainer.fit(model, ckpt_path=yard.resume_from(trainer))
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.digest import sha256_json
from trainyard.integrations.attempt import Ending, Saved
from trainyard.integrations.description import Description, Tracking, class_name, plain
from trainyard.integrations.fingerprints import weights_digest
from trainyard.integrations.guest import Guest, Place
from trainyard.redact import redacted
from trainyard.require import require
from trainyard.runs.run import Run
from trainyard.types import Determinism

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.loggers.logger import DummyLogger
else:
    Callback = require("lightning.pytorch", "lightning").Callback
    DummyLogger = require("lightning.pytorch.loggers.logger", "lightning").DummyLogger

Json = dict[str, Any]
_REASON = "Lightning's Trainer owns the loop, and does not put all random generators back on a resume"
_RECORD = frozenset({"log_every_n_steps", "default_root_dir", "loggers", "max_time"})
# fmt: off
_ATTRIBUTES = (
    "max_steps", "min_steps", "accumulate_grad_batches", "gradient_clip_val", "gradient_clip_algorithm", "precision",
    "num_nodes", "num_devices", "world_size", "fast_dev_run", "limit_train_batches", "limit_val_batches",
    "overfit_batches", "val_check_interval", "check_val_every_n_epoch", "num_sanity_val_steps", "log_every_n_steps",
    "default_root_dir",
)
# fmt: on
_PREFIXES = {
    "val": ("validation_", "validation/", "valid_", "valid/", "val/", "eval_", "eval/", "val_"),
    "test": ("test/", "test_"),
}


class TrainyardCallback(Callback):
    """Gives a training by Lightning's `Trainer` a run directory of ours."""

    def __init__(
        self,
        experiment: str,
        runs_dir: Path | str | None = None,
        *,
        run: str | None = None,
        tracking: Tracking = (),
        sample: int = 16,
    ) -> None:
        """
        Args:
            experiment: the name that groups runs.
            runs_dir: where run directories are made; default `TRAINYARD_RUNS`, or `runs`.
            run: the run to go on with (a path, an id, a unique prefix, or `last`); default: the newest one of the same
                command line, in the same directory, if it did not come to its end.
            tracking: the trackers, as in a config.
            sample: how many samples of each data set are hashed to identify them; 0: none are touched.

        Raises:
            InputError: one of them is wrong.
        """
        self._guest = Guest("lightning", Place(experiment, runs_dir, run, tracking, sample))
        self._feed: _Feed | None = None
        self._raised: BaseException | None = None

    @property
    def run(self) -> Run | None:
        """The run of the training that is under way, or of the last one; None in all processes but the first."""
        return None if self._guest.run is None else Run(self._guest.run)

    def resume_from(self, trainer: Trainer | None = None) -> str | None:
        """The newest verified checkpoint of the run that is to go on, for `trainer.fit(..., ckpt_path=...)`.

        None where there is none: the training begins anew then.

        Args:
            trainer: whose arguments must be those of the run as well; default: they are compared when the training
                begins, and what differs is recorded.

        Raises:
            RunLockedError: another process is at this very training.
            InputError: the run that was asked for cannot be gone on with.
        """
        found = self._guest.resume_from(_identity(trainer))
        return None if found is None else str(found)

    # -- what the Trainer calls

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._raised = None
        if (
            stage != "fit"
        ):  # there, the first logger decides where checkpoints go: ours comes when that is settled
            self._attach(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:
            self._guest.begin(partial(_description, trainer, pl_module), trainer.global_step)
        self._attach(trainer)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._end(trainer, pl_module)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._raised = exception  # other callbacks may save a checkpoint now; the loggers are told after them

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._detach(trainer)

    # -- what its logger and its saves tell

    def _attach(self, trainer: Trainer) -> None:
        if self._feed is None:
            self._feed = _Feed(self, trainer)
            trainer.loggers = [*trainer.loggers, self._feed]
            trainer.save_checkpoint = self._feed.save_checkpoint  # type: ignore[method-assign]

    def _detach(self, trainer: Trainer) -> None:
        if self._feed is not None:
            trainer.loggers = [logger for logger in trainer.loggers if logger is not self._feed]
            del trainer.save_checkpoint
            self._feed = None

    def logged(self, trainer: Trainer, metrics: Mapping[str, Any]) -> None:
        """What the Trainer sends to its loggers."""
        if not trainer.is_global_zero or trainer.sanity_checking:
            return
        split = "test" if trainer.testing else "val" if trainer.validating else ""
        if split:
            found = {_metric(name, split): value for name, value in metrics.items() if name != "epoch"}
            self._guest.evaluation(trainer.global_step, found)
        else:
            self._guest.metrics(
                trainer.global_step, {_train_metric(name): value for name, value in metrics.items()}
            )

    def saved(self, trainer: Trainer, path: Path | str, weights_only: bool) -> None:
        """The Trainer has written a checkpoint."""
        if not trainer.is_global_zero:
            return
        if "://" in str(path):
            message = f"{redacted(str(path))} is not on a local file system: it cannot be verified"
            self._guest.event(trainer.global_step, "checkpoint_failed", message=message)
            return
        saved = Saved(
            Path(path),
            trainer.global_step,
            float(trainer.current_epoch),
            not weights_only,
            _wait_for_writer(trainer),
        )
        self._guest.commit(saved)

    def failed(self, trainer: Trainer) -> None:
        """The training raised, and all callbacks have been told."""
        self._end(trainer, trainer.lightning_module)
        self._detach(trainer)

    def _end(self, trainer: Trainer, module: LightningModule) -> None:
        if not trainer.is_global_zero or not self._guest.is_open:
            return
        raised, step = self._raised, trainer.global_step
        if raised is not None:
            status = _status(raised)
            error = f"{type(raised).__name__}: {raised}" if status == "failed" else ""
            self._guest.end(status, lambda: _ending(trainer, module), error)
            return
        if trainer.should_stop:
            self._guest.event(step, "stopped_early", epochs=trainer.current_epoch)
        self._guest.end("completed", lambda: _ending(trainer, module))


class _Feed(DummyLogger):
    """A logger among the Trainer's own; and the way that its checkpoints take."""

    def __init__(self, callback: TrainyardCallback, trainer: Trainer) -> None:
        super().__init__()
        self._callback = callback
        self._trainer = trainer
        self._save = trainer.save_checkpoint

    @property
    def name(self) -> str:
        return "trainyard"

    @property
    def save_dir(self) -> str:
        return str(self._trainer.default_root_dir)  # as if there were no logger

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        self._callback.logged(self._trainer, metrics)

    def finalize(self, status: str) -> None:
        if status == "failed":
            self._callback.failed(self._trainer)

    def save_checkpoint(
        self, filepath: Path | str, weights_only: bool | None = None, storage_options: Any = None
    ) -> None:
        """The Trainer's method, and then word of it."""
        self._save(filepath, weights_only, storage_options)
        self._callback.saved(self._trainer, filepath, bool(weights_only))


def _identity(trainer: Trainer | None) -> Json:
    """What makes a later process mean the same run: the command line, and the Trainer's arguments where they are known.

    Other callbacks are a change that is recorded, and no reason to begin anew.
    """
    command = [str(Path(sys.argv[0]).resolve()), *(redacted(word) for word in sys.argv[1:])]
    found: Json = {"command": sha256_json(command), "directory": str(Path.cwd())}
    if trainer is not None:
        bits = {
            key: value for key, value in _arguments(trainer).items() if key not in _RECORD | {"callbacks"}
        }
        found["arguments"] = sha256_json(bits)
    return found


def _arguments(trainer: Any) -> Json:
    """The Trainer keeps no record of its arguments: these are what it made of them."""
    import torch
    from lightning.pytorch.callbacks import Checkpoint, ModelSummary, ProgressBar, Timer

    recording = (TrainyardCallback, Checkpoint, ModelSummary, ProgressBar)
    timed = any(isinstance(callback, Timer) for callback in trainer.callbacks)
    unlimited = -1 if timed or trainer.max_steps != -1 else 1000  # what it sets itself, when it begins to fit
    found = {name: getattr(trainer, name, None) for name in _ATTRIBUTES} | {
        "max_epochs": unlimited if trainer.max_epochs is None else trainer.max_epochs,
        "min_epochs": trainer.min_epochs or int(trainer.min_steps is not None),
        "reload_dataloaders_every_n_epochs": trainer.reload_dataloaders_every_n_epochs,
        "strategy": class_name(type(trainer.strategy)),
        "accelerator": class_name(type(trainer.accelerator)),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "benchmark": torch.backends.cudnn.benchmark,
        "callbacks": [class_name(type(one)) for one in trainer.callbacks if not isinstance(one, recording)],
        "loggers": [class_name(type(one)) for one in trainer.loggers if not isinstance(one, _Feed)],
    }
    return dict(plain(found))


def _description(trainer: Any, module: LightningModule) -> Description:
    import torch

    seed = os.environ.get("PL_GLOBAL_SEED")
    hyperparameters = plain(dict(module.hparams))
    data = getattr(trainer.datamodule, "hparams", None)
    unseeded = "" if seed else "; no seed was set by seed_everything"
    return Description(
        trainer="lightning",
        model=module,
        arguments=_arguments(trainer),
        options={"hparams": hyperparameters} | ({"datamodule": plain(dict(data))} if data else {}),
        record=_RECORD,
        identity=_identity(trainer),
        seed=int(seed) if seed else None,
        determinism=Determinism("statistical", _REASON + unseeded),
        data={
            "train": [_dataset(one) for one in _loaders(trainer.train_dataloader)],
            "val": [_dataset(one) for one in _loaders(trainer.val_dataloaders)],
        },
        checkpoints=[
            (str(Path(callback.dirpath).absolute()), "*.ckpt")
            for callback in trainer.checkpoint_callbacks
            if getattr(callback, "dirpath", None)
        ],
        libraries={name: version(name) for name in ("torch", "lightning")}
        | {"device": str(trainer.strategy.root_device)}
        | {"float32_matmul_precision": torch.get_float32_matmul_precision()},
    )


def _wait_for_writer(trainer: Trainer) -> Callable[[], object]:
    """Returns when what AsyncCheckpointIO is writing by now is written; it writes one after the other, in one thread."""
    executor = getattr(trainer.strategy.checkpoint_io, "_executor", None)
    return executor.submit(int).result if isinstance(executor, Executor) else lambda: None


def _loaders(value: Any) -> Iterator[Any]:
    """The data loaders in whatever nesting the user gave them."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _loaders(item)
    elif value is not None:
        yield value


def _dataset(loader: Any) -> Any:
    return getattr(loader, "dataset", loader)


def _metric(name: str, split: str) -> str:
    """`val_loss` for what people call valid_loss, val/loss or, in a validation, loss."""
    for prefix in _PREFIXES[split]:
        if name.startswith(prefix):
            return f"{split}_{name.removeprefix(prefix)}"
    return f"{split}_{name}"


def _train_metric(name: str) -> str:
    if name.startswith("train/"):
        name = f"train_{name.removeprefix('train/')}"
    return {"loss": "train_loss", "train_loss_step": "train_loss"}.get(name, name)


def _status(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return "preempted" if type(error).__name__ == "SIGTERMException" else "failed"


def _ending(trainer: Trainer, module: LightningModule) -> Ending:
    datasets = [_dataset(one) for one in _loaders(trainer.train_dataloader)]
    rows = (
        sum(len(one) for one in datasets)
        if datasets and all(hasattr(one, "__len__") for one in datasets)
        else None
    )
    return Ending(trainer.global_step, float(trainer.current_epoch), rows, weights_digest(module))
