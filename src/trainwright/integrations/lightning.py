# ruff: noqa: ARG002 - the Trainer gives its callbacks more than each of them needs
"""A callback for Lightning's `Trainer`.

recorder = TrainwrightCallback(experiment="mnist")
trainer = Trainer(..., callbacks=[recorder])
trainer.fit(model, ckpt_path=recorder.resume_from(trainer))
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

from trainwright.digest import sha256_json
from trainwright.integrations.attempt import SavedCheckpoint, TrainingEnd
from trainwright.integrations.description import Description, Tracking, to_json_value
from trainwright.integrations.fingerprints import weights_digest
from trainwright.integrations.trainer_run import RecordingOptions, TrainerRun
from trainwright.records.status import Ended
from trainwright.redact import redacted
from trainwright.require import class_name, require
from trainwright.runs.run import Run
from trainwright.types import Determinism

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.loggers.logger import DummyLogger
else:
    Callback = require("lightning.pytorch", "lightning").Callback
    DummyLogger = require("lightning.pytorch.loggers.logger", "lightning").DummyLogger

Json = dict[str, Any]
_REASON = "Lightning's Trainer owns the loop, and does not restore all random generators on a resume"
_RECORD = frozenset({"log_every_n_steps", "default_root_dir", "loggers", "max_time"})
# fmt: off
_ATTRIBUTES = (
    "max_steps", "min_steps", "accumulate_grad_batches", "gradient_clip_val", "gradient_clip_algorithm",
    "precision", "num_nodes", "num_devices", "world_size", "fast_dev_run", "limit_train_batches",
    "limit_val_batches", "overfit_batches", "val_check_interval", "check_val_every_n_epoch",
    "num_sanity_val_steps", "log_every_n_steps", "default_root_dir",
)
# fmt: on
_PREFIXES = {
    "val": ("validation_", "validation/", "valid_", "valid/", "val/", "eval_", "eval/", "val_"),
    "test": ("test/", "test_"),
}


class TrainwrightCallback(Callback):
    """Record a training by Lightning's `Trainer` in a run directory."""

    def __init__(
        self,
        experiment: str,
        runs_dir: Path | str | None = None,
        *,
        run: str | None = None,
        tracking: Tracking = (),
        sample: int = 16,
    ) -> None:
        """Check the arguments; nothing is written before the training begins.

        Args:
            experiment: The name that groups runs.
            runs_dir: The folder of the run directories; default `TRAINWRIGHT_RUNS`, or `runs`.
            run: The run to continue (a path, an id, a unique prefix, or `last`); default: the newest one of
                the same command line, in the same directory, if it is unfinished.
            tracking: The trackers, as in a config.
            sample: How many samples of each data set to hash, to identify them; 0: none are read.

        Raises:
            InputError: An argument is wrong.
        """
        options = RecordingOptions(experiment, runs_dir, run, tracking, sample)
        self._trainer_run = TrainerRun("lightning", options)
        self._relay: _RelayLogger | None = None
        self._raised: BaseException | None = None

    @property
    def run(self) -> Run | None:
        """The run of the current training, or of the last one; None in all processes but the first."""
        return None if self._trainer_run.run is None else Run(self._trainer_run.run)

    def resume_from(self, trainer: Trainer | None = None) -> str | None:
        """Return the newest verified checkpoint of the run to continue, for `fit(ckpt_path=...)`.

        Returns None if there is none: the training then begins at step 0.

        Args:
            trainer: The Trainer, if the run must have the same arguments; default: they are compared when the
                training begins, and differences are recorded.

        Raises:
            RunLockedError: Another process is training this run.
            InputError: The Trainer cannot continue the run that was named.
        """
        path = self._trainer_run.resume_from(_identity(trainer))
        return None if path is None else str(path)

    # -- what the Trainer calls

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Attach the logger, but not before a fit: its first logger decides where checkpoints go."""
        self._raised = None
        if stage != "fit":
            self._attach(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin the attempt, and attach the logger."""
        if trainer.is_global_zero:
            self._trainer_run.begin(partial(_description, trainer, pl_module), trainer.global_step)
        self._attach(trainer)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the attempt."""
        self._end(trainer, pl_module)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Keep the exception: other callbacks may save a checkpoint now, before the loggers are finalized."""
        self._raised = exception

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Detach the logger."""
        self._detach(trainer)

    # -- what the relay logger reports

    def _attach(self, trainer: Trainer) -> None:
        if self._relay is None:
            self._relay = _RelayLogger(self, trainer)
            trainer.loggers = [*trainer.loggers, self._relay]
            trainer.save_checkpoint = self._relay.save_checkpoint  # type: ignore[method-assign]

    def _detach(self, trainer: Trainer) -> None:
        if self._relay is not None:
            trainer.loggers = [logger for logger in trainer.loggers if logger is not self._relay]
            del trainer.save_checkpoint
            self._relay = None

    def record_metrics(self, trainer: Trainer, metrics: Mapping[str, Any]) -> None:
        """Record what the Trainer sends to its loggers."""
        if not trainer.is_global_zero or trainer.sanity_checking:
            return
        split = "test" if trainer.testing else "val" if trainer.validating else ""
        if split:
            values = {_metric(name, split): value for name, value in metrics.items() if name != "epoch"}
            self._trainer_run.evaluation(trainer.global_step, values)
        else:
            self._trainer_run.metrics(
                trainer.global_step, {_train_metric(name): value for name, value in metrics.items()}
            )

    def record_checkpoint(self, trainer: Trainer, path: Path | str, weights_only: bool) -> None:
        """Record a checkpoint that the Trainer has written."""
        if not trainer.is_global_zero:
            return
        if "://" in str(path):
            message = f"{redacted(str(path))} is not on a local file system: it cannot be verified"
            self._trainer_run.event(trainer.global_step, "checkpoint_failed", message=message)
            return
        saved = SavedCheckpoint(
            Path(path),
            trainer.global_step,
            float(trainer.current_epoch),
            not weights_only,
            _wait_for_writer(trainer),
        )
        self._trainer_run.commit(saved)

    def end_failed(self, trainer: Trainer) -> None:
        """End the attempt of a training that raised, after all callbacks have handled the exception."""
        self._end(trainer, trainer.lightning_module)
        self._detach(trainer)

    def _end(self, trainer: Trainer, module: LightningModule) -> None:
        if not trainer.is_global_zero or not self._trainer_run.is_open:
            return
        raised, step = self._raised, trainer.global_step
        if raised is not None:
            status = _status(raised)
            error = f"{type(raised).__name__}: {raised}" if status == "failed" else ""
            self._trainer_run.end(status, lambda: _training_end(trainer, module), error)
            return
        if trainer.should_stop:
            self._trainer_run.event(step, "early_stop", epochs=trainer.current_epoch)
        self._trainer_run.end("completed", lambda: _training_end(trainer, module))


class _RelayLogger(DummyLogger):
    """A logger that passes the Trainer's metrics, checkpoints and failure to the callback."""

    def __init__(self, callback: TrainwrightCallback, trainer: Trainer) -> None:
        super().__init__()
        self._callback = callback
        self._trainer = trainer
        self._save = trainer.save_checkpoint

    @property
    def name(self) -> str:
        """The name of the logger."""
        return "trainwright"

    @property
    def save_dir(self) -> str:
        """The folder that the Trainer would use without a logger."""
        return str(self._trainer.default_root_dir)

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Forward metrics to the run's journal."""
        self._callback.record_metrics(self._trainer, metrics)

    def finalize(self, status: str) -> None:
        """Report a failure."""
        if status == "failed":
            self._callback.end_failed(self._trainer)

    def save_checkpoint(
        self, filepath: Path | str, weights_only: bool | None = None, storage_options: Any = None
    ) -> None:
        """Save as the Trainer does, then record the checkpoint."""
        self._save(filepath, weights_only, storage_options)
        self._callback.record_checkpoint(self._trainer, filepath, bool(weights_only))


def _identity(trainer: Trainer | None) -> Json:
    """Return what a later process must share to continue the run.

    That is the command line, the working directory and, if known, the Trainer's arguments. Other callbacks
    are a recorded change, not a reason to begin a new run.
    """
    command = [str(Path(sys.argv[0]).resolve()), *(redacted(word) for word in sys.argv[1:])]
    identity: Json = {"command": sha256_json(command), "directory": str(Path.cwd())}
    if trainer is not None:
        bits = {
            key: value for key, value in _arguments(trainer).items() if key not in _RECORD | {"callbacks"}
        }
        identity["arguments"] = sha256_json(bits)
    return identity


def _arguments(trainer: Any) -> Json:
    """Return what the Trainer made of its arguments; it does not keep the arguments themselves."""
    import torch
    from lightning.pytorch.callbacks import Checkpoint, ModelSummary, ProgressBar, Timer

    recording = (TrainwrightCallback, Checkpoint, ModelSummary, ProgressBar)
    timed = any(isinstance(callback, Timer) for callback in trainer.callbacks)
    unlimited = -1 if timed or trainer.max_steps != -1 else 1000  # the value that `fit` will set
    arguments = {name: getattr(trainer, name, None) for name in _ATTRIBUTES} | {
        "max_epochs": unlimited if trainer.max_epochs is None else trainer.max_epochs,
        "min_epochs": trainer.min_epochs or int(trainer.min_steps is not None),
        "reload_dataloaders_every_n_epochs": trainer.reload_dataloaders_every_n_epochs,
        "strategy": class_name(type(trainer.strategy)),
        "accelerator": class_name(type(trainer.accelerator)),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "benchmark": torch.backends.cudnn.benchmark,
        "callbacks": [class_name(type(one)) for one in trainer.callbacks if not isinstance(one, recording)],
        "loggers": [class_name(type(one)) for one in trainer.loggers if not isinstance(one, _RelayLogger)],
    }
    return dict(to_json_value(arguments))


def _description(trainer: Any, module: LightningModule) -> Description:
    import torch

    seed = os.environ.get("PL_GLOBAL_SEED")
    hyperparameters = to_json_value(dict(module.hparams))
    data = getattr(trainer.datamodule, "hparams", None)
    unseeded = "" if seed else "; no seed was set by seed_everything"
    return Description(
        trainer="lightning",
        model=module,
        arguments=_arguments(trainer),
        options={"hparams": hyperparameters} | ({"datamodule": to_json_value(dict(data))} if data else {}),
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
    """Return a function that waits until AsyncCheckpointIO has done its writes so far."""
    executor = getattr(trainer.strategy.checkpoint_io, "_executor", None)
    return executor.submit(int).result if isinstance(executor, Executor) else lambda: None


def _loaders(value: Any) -> Iterator[Any]:
    """Yield the data loaders, which may be nested in lists and mappings."""
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
    """Return the name in our records: `val_loss` for valid_loss, val/loss or, in a validation, loss."""
    for prefix in _PREFIXES[split]:
        if name.startswith(prefix):
            return f"{split}_{name.removeprefix(prefix)}"
    return f"{split}_{name}"


def _train_metric(name: str) -> str:
    if name.startswith("train/"):
        name = f"train_{name.removeprefix('train/')}"
    return {"loss": "train_loss", "train_loss_step": "train_loss"}.get(name, name)


def _status(error: BaseException) -> Ended:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return "preempted" if type(error).__name__ == "SIGTERMException" else "failed"


def _training_end(trainer: Trainer, module: LightningModule) -> TrainingEnd:
    datasets = [_dataset(one) for one in _loaders(trainer.train_dataloader)]
    rows = (
        sum(len(one) for one in datasets)
        if datasets and all(hasattr(one, "__len__") for one in datasets)
        else None
    )
    return TrainingEnd(trainer.global_step, float(trainer.current_epoch), rows, weights_digest(module))
