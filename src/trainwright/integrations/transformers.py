# ruff: noqa: ARG002 - the Trainer gives its callbacks more than each of them needs
"""A callback for `transformers.Trainer`.

recorder = TrainwrightCallback(experiment="bert")
trainer = Trainer(..., callbacks=[recorder])
trainer.train(resume_from_checkpoint=recorder.resume_from())
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwright.digest import sha256_json
from trainwright.errors import InputError, TrainwrightError
from trainwright.integrations.attempt import SavedCheckpoint, TrainingEnd
from trainwright.integrations.description import Description, Tracking, to_json_value
from trainwright.integrations.fingerprints import weights_digest
from trainwright.integrations.trainer_run import RecordingOptions, TrainerRun, record_safely
from trainwright.records.status import Ended
from trainwright.require import require
from trainwright.runs.run import Run
from trainwright.types import Determinism

if TYPE_CHECKING:
    from transformers import TrainerCallback
else:
    TrainerCallback = require("transformers", "transformers").TrainerCallback

Json = dict[str, Any]
_STATE_FILE = "trainer_state.json"
_INCOMPLETE = "checkpoint-is-incomplete.txt"

# Arguments that change only what is recorded, and where. When to save is one, unless the best save is loaded.
_RECORD = frozenset(
    {
        "output_dir",
        "run_name",
        "project",
        "report_to",
        "trackio_space_id",
        "trackio_bucket_id",
        "trackio_static_space_id",
        "disable_tqdm",
        "debug",
        "logging_dir",
        "logging_strategy",
        "logging_steps",
        "logging_first_step",
        "logging_nan_inf_filter",
        "log_level",
        "log_level_replica",
        "log_on_each_node",
        "include_num_input_tokens_seen",
        "skip_memory_metrics",
        "save_strategy",
        "save_steps",
        "save_total_limit",
        "save_only_model",
        "save_on_each_node",
        "enable_jit_checkpoint",
        "push_to_hub",
        "hub_token",
        "hub_private_repo",
        "hub_model_id",
        "hub_strategy",
        "hub_always_push",
        "hub_revision",
        "resume_from_checkpoint",
        "do_train",
        "do_eval",
        "do_predict",
        "ddp_timeout",
        "local_rank",
    }
)
_SAVES = {"save_strategy", "save_steps"}
_SPEED = (
    "_runtime",
    "_samples_per_second",
    "_steps_per_second",
    "_model_preparation_time",
    "_jit_compilation_time",
)
_REASON = (
    "transformers' Trainer owns the loop: on a resume it restores the order of the samples and the random "
    "generators, but random augmentations of samples are drawn again"
)


class TrainwrightCallback(TrainerCallback):
    """Record a training by `transformers.Trainer` in a run directory.

    Users call `run` and `resume_from`; the Trainer calls the other methods.
    """

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
            run: The run to continue (a path, an id, a unique prefix, or `last`); default: the newest one with
                the same arguments and the same `output_dir`, if it is unfinished.
            tracking: The trackers, as in a config.
            sample: How many samples of the training data to hash, to identify them; 0: none are read.

        Raises:
            InputError: An argument is wrong.
        """
        options = RecordingOptions(experiment, runs_dir, run, tracking, sample)
        self._trainer_run = TrainerRun("transformers", options)
        self._args: Any = None
        self._options: Json = {}
        self._logged: Json = {}
        self._saved_step = -1

    @property
    def run(self) -> Run | None:
        """The run of the current training, or of the last one; None in all processes but the first."""
        return None if self._trainer_run.run is None else Run(self._trainer_run.run)

    def resume_from(self) -> str | None:
        """Return the newest verified checkpoint of the run to continue, for `resume_from_checkpoint`.

        Returns None if there is none: the training then begins at step 0. Each process of a distributed
        training must call it.

        Raises:
            RunLockedError: Another process is training this run.
            InputError: The Trainer does not have this callback yet, or cannot continue the run that was
                named.
        """
        if self._args is None:
            raise InputError(
                "resume_from: give the callback to the Trainer first: Trainer(..., callbacks=[recorder])"
            )
        path = _same_in_all_processes(lambda: self._trainer_run.resume_from(self._identity(self._args)))
        return None if path is None else str(path)

    # -- what the Trainer calls

    def on_init_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """Read the model's options; the Trainer changes the model's config before it trains."""
        self._args = args
        self._options = record_safely(lambda: _options(objects["model"]), "the model's config") or {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """Begin the attempt."""
        self._saved_step = state.global_step
        if state.is_world_process_zero:
            describe = partial(self._description, args, objects["model"], objects["train_dataloader"])
            self._trainer_run.begin(describe, state.global_step)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **objects: Any
    ) -> None:
        """Record what the Trainer logs."""
        if not state.is_world_process_zero or not logs:
            return
        if "train_runtime" in logs:  # the summary at the end: its loss is the mean over the training
            self._trainer_run.metrics(state.global_step, _renamed(logs, {"train_loss": "mean_train_loss"}))
        elif any(name.endswith("_runtime") for name in logs):
            self._record_evaluation(state, logs)
        else:
            self._trainer_run.metrics(state.global_step, _renamed(logs, {"loss": "train_loss"}))

    def on_evaluate(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """Record an evaluation."""
        if state.is_world_process_zero:
            self._record_evaluation(state, objects["metrics"])

    def on_predict(
        self, args: Any, state: Any, control: Any, metrics: Mapping[str, Any], **objects: Any
    ) -> None:
        """Record the evaluation of a test split."""
        if state.is_world_process_zero:
            self._record_evaluation(state, metrics)

    def on_save(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """Record a checkpoint, when all processes have written their parts."""
        _wait_for_all_processes(args)
        if state.is_world_process_zero:
            step = state.global_step
            record_safely(lambda: self._commit(args, step, state.epoch), f"the checkpoint of step {step}")

    def on_train_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """End the attempt."""
        if not state.is_world_process_zero:
            return
        status: Ended = "completed"
        step = state.global_step
        if step < state.max_steps:
            saved = record_safely(lambda: self._unreported_step(args, step), "the checkpoint on a SIGTERM")
            if saved is not None:
                status = "preempted"
                record_safely(
                    lambda: self._commit(args, saved, state.epoch), f"the checkpoint of step {saved}"
                )
            else:
                self._trainer_run.event(step, "early_stop", of_steps=state.max_steps)
        self._trainer_run.end(
            status, lambda: _training_end(args, state, objects["model"], objects["train_dataloader"])
        )

    # -- translation into our records

    def _record_evaluation(self, state: Any, metrics: Mapping[str, Any]) -> None:
        """Record an evaluation once; the Trainer reports it twice, in `on_log` and in `on_evaluate`."""
        new = {name: value for name, value in metrics.items() if self._logged.get(name) is not value}
        self._logged = dict(metrics)
        values = {_metric(name): value for name, value in new.items() if name != "epoch"}
        if values:
            self._trainer_run.evaluation(state.global_step, values)

    def _commit(self, args: Any, step: int, epoch: float | None) -> None:
        """Record the checkpoint of a step."""
        folder, name = Path(args.output_dir), f"checkpoint-{step}"
        trials = folder.glob(f"*/{name}")  # where a hyperparameter search puts them
        paths = [path for path in (folder / name, *trials) if (path / _STATE_FILE).is_file()]
        if not paths:
            self._trainer_run.event(step, "checkpoint_failed", message=f"{name} is not in {args.output_dir}")
            return
        self._saved_step = step
        newest = max(paths, key=lambda path: path.stat().st_mtime)
        self._trainer_run.commit(
            SavedCheckpoint(newest, step, epoch or 0.0, resumable=not args.save_only_model)
        )

    def _unreported_step(self, args: Any, step: int) -> int | None:
        """Return the step of the checkpoint that the Trainer saved on a SIGTERM (enable_jit_checkpoint).

        The Trainer does not call `on_save` for it.
        """
        if not args.enable_jit_checkpoint:
            return None
        paths = [
            path for path in Path(args.output_dir).glob("checkpoint-*") if (path / _STATE_FILE).is_file()
        ]
        steps = [
            int(path.name.removeprefix("checkpoint-")) for path in paths if not (path / _INCOMPLETE).exists()
        ]
        return max((one for one in steps if self._saved_step < one <= step), default=None)

    def _identity(self, args: Any) -> Json:
        bits = {key: value for key, value in _arguments(args).items() if key not in _record_arguments(args)}
        return {
            "arguments": sha256_json([bits, self._options]),
            "output_dir": str(Path(args.output_dir).absolute()),
        }

    def _description(self, args: Any, model: Any, loader: Any) -> Description:
        exact = not args.ignore_data_skip
        skipped = "on a resume it restarts the order of the epoch's samples (ignore_data_skip)"
        return Description(
            trainer="transformers",
            model=model,
            arguments=_arguments(args),
            options=self._options,
            record=_record_arguments(args),
            identity=self._identity(args),
            seed=args.seed,
            determinism=Determinism("order" if exact else "statistical", _REASON if exact else skipped),
            data={"train": [loader.dataset] if hasattr(loader, "dataset") else []},
            checkpoints=[(str(Path(args.output_dir).absolute()), "checkpoint-*")],
            libraries={name: version(name) for name in ("torch", "transformers", "accelerate")}
            | {"device": str(args.device)},
        )


def _arguments(args: Any) -> Json:
    return {**to_json_value(args.to_dict()), "world_size": args.world_size, "n_gpu": args.n_gpu}


def _record_arguments(args: Any) -> frozenset[str]:
    return _RECORD - (_SAVES if args.load_best_model_at_end else set())


def _options(model: Any) -> Json:
    """Return the model's config, and those of its adapters (LoRA ...)."""
    config = to_json_value(model.config) if hasattr(model, "config") else {}
    adapters = {"peft": to_json_value(model.peft_config)} if hasattr(model, "peft_config") else {}
    known = config if isinstance(config, dict) else {"config": config}
    return {key: value for key, value in known.items() if key != "transformers_version"} | adapters


def _metric(name: str) -> str:
    """Return the name in our records: `val_loss` for eval_loss. Speeds get no prefix of a split."""
    if name.endswith(_SPEED):
        return f"predict_{name.removeprefix('test_')}" if name.startswith("test_") else name
    return f"val_{name.removeprefix('eval_')}" if name.startswith("eval_") else name


def _renamed(values: Mapping[str, Any], names: Mapping[str, str]) -> Json:
    return {names.get(name, name): value for name, value in values.items()}


def _rows(loader: Any) -> int | None:
    dataset = getattr(loader, "dataset", None)
    return len(dataset) if dataset is not None and hasattr(dataset, "__len__") else None


def _training_end(args: Any, state: Any, model: Any, loader: Any) -> TrainingEnd:
    digest, best = weights_digest(model), None
    is_best = bool(args.load_best_model_at_end and state.best_model_checkpoint)
    if state.best_global_step and args.metric_for_best_model:
        metric = f"val_{args.metric_for_best_model.removeprefix('eval_')}"
        best = {
            "step": state.best_global_step,
            "metric": metric,
            "value": to_json_value(float(state.best_metric)),
        }
        best |= {"digest": digest} if is_best else {}
    return TrainingEnd(state.global_step, float(state.epoch or 0.0), _rows(loader), digest, best, is_best)


def _wait_for_all_processes(args: Any) -> None:
    """Wait until each process has written its own random state into the checkpoint."""
    if args.world_size > 1:
        import torch

        if torch.distributed.is_initialized():
            torch.distributed.barrier()


def _same_in_all_processes(find: Callable[[], Path | None]) -> Path | None:
    """Call `find` in the first process; return its result, or raise its error, in all of them."""
    import torch

    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return find()
    answer: list[Any] = [None]
    if torch.distributed.get_rank() == 0:
        try:
            answer = [find()]
        except TrainwrightError as error:
            answer = [error]
    torch.distributed.broadcast_object_list(answer)
    if isinstance(answer[0], TrainwrightError):
        raise answer[0]
    return answer[0]  # type: ignore[no-any-return]
