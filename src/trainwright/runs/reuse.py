"""Find the completed run with the same inputs, and compute what the inputs of a run are now."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from trainwright import plugins
from trainwright.config import Resolved
from trainwright.config.schema import RunConfig
from trainwright.datasets.samples.file_hashes import reading_again
from trainwright.errors import TrainwrightError
from trainwright.process.environ import asked_threads
from trainwright.process.global_random import preserved_global_random, seed_global_random
from trainwright.process.observation.record import current
from trainwright.records.data import DataDescription
from trainwright.records.decision import MEASURED, NEUTRAL, journalled_decisions
from trainwright.records.journal import read
from trainwright.records.listing import find_run, has_model
from trainwright.records.manifest import WITHOUT_VALUE, Difference, InitialWeights, Manifest
from trainwright.records.run_dir import RunDir
from trainwright.records.whole_weights import is_weights
from trainwright.reports.rundir import read_run
from trainwright.require import import_paths, open_process
from trainwright.runs.code_identity import code_inputs
from trainwright.runs.data.identity import data_inputs
from trainwright.runs.data.sampling import epoch_samples
from trainwright.runs.environment import environment_inputs
from trainwright.runs.frameworks import copied_model, framework_name
from trainwright.runs.lookup import warn_of_unused
from trainwright.runs.manifest import code_roots, make_manifest
from trainwright.runs.objects import Objects
from trainwright.runs.observed import observed_inputs
from trainwright.runs.processes.state import weights_digest
from trainwright.runs.processes.threads import available_threads, default_threads
from trainwright.runs.run_config import read_config
from trainwright.runs.semantics import versions
from trainwright.runs.trust import of_own_config
from trainwright.runs.weights import file_hashes, initial_source, initialize, stored_model
from trainwright.runs.wiring import build, load_data, run_checkpoints
from trainwright.storage.copies import download_all, download_records
from trainwright.storage.index import summaries
from trainwright.types import DataInfo

log = logging.getLogger("trainwright")


_PATHS = [f"data.{name}" for name in ("path", "train_path", "val_path", "test_path")]


class CompletedRuns:
    """The completed runs of an experiment, by what they compute.

    Args:
        runs_dir: The folder of all runs.
        experiment: The name of the experiment.
        is_asked: Whether the user asked for one, so that it is said where only warnings are; studies always
            look for one.
    """

    def __init__(self, runs_dir: Path, experiment: str, *, is_asked: bool = False) -> None:
        self._runs_dir, self._experiment, self._is_asked = runs_dir, experiment, is_asked
        self._level = logging.WARNING if is_asked else logging.INFO

    def find(self, resolved: Resolved, objects: Objects) -> RunDir | None:
        """Return the newest run with the inputs that a run of this config would have now, or None.

        No model is built, unless the initial weights depend on more than the config.
        """
        known = self._by_computation.get(resolved.computation_hash(), ())
        found, reasons = None, list[tuple[str, str]]()
        for run in map(RunDir, known):
            reason = _why_not(run, resolved, objects)
            if reason is None:
                found = run
                break
            reasons.append((run.id, reason))
        for index, why in enumerate(reasons):
            asked = found is None and index == 0  # the newest
            log.log(self._level if asked else logging.INFO, "run %s is not reused: %s", *why)
        if not known and self._is_asked:
            log.info("no completed run of this config to reuse in %s/%s", self._runs_dir, self._experiment)
        if found is not None:
            same = "is reused: it has the same inputs, so nothing is trained"
            made = found.require_manifest().created
            log.log(self._level, "run %s, made at %s, %s", found.id, made, same)
        return found

    @cached_property
    def _by_computation(self) -> Mapping[str, Sequence[Path]]:
        """Paths by computation hash, newest first; cached, so that a study reads the index once."""
        paths: dict[str, list[Path]] = {}
        for summary in summaries(self._runs_dir, self._experiment):
            if summary["status"] == "completed" and (computation := summary.get("computation_hash")):
                paths.setdefault(computation, []).append(Path(summary["path"]))
        return paths


def _why_not(run: RunDir, resolved: Resolved, objects: Objects) -> str | None:
    """Return why a run is not what a new one would be; None if it is."""
    try:
        download_records(run)  # in a list of runs, a working copy has the records alone
        with of_own_config(run, resolved):
            reason = _unusable(run) or _difference(run, resolved, objects)
            reason = reason or _damage(run) or _outside_decision(run)
            if reason is None:
                warn_of_unused(resolved, read_config(run), run, known=_PATHS)  # their content is the same
            return reason
    except TrainwrightError as error:
        return str(error)


def _unusable(run: RunDir) -> str | None:
    """Return why a run's result may not be a function of its inputs alone; None if it is."""
    manifest = run.require_manifest()
    if manifest.trainer is not None:
        return f"{manifest.trainer.name} made it"
    if manifest.parent is not None and manifest.parent.untested:
        return "it is a trial of a search, and was not evaluated on the test split"
    if manifest.determinism.tier == "statistical":
        return f"its tier is statistical: {manifest.determinism.reason}"
    if not manifest.data.content_hashed:
        return (
            "only a sample of its data was hashed; a text `fingerprint` of the data set vouches for the rest"
        )
    if without := manifest.model.get(WITHOUT_VALUE) or ", ".join(manifest.code.without_value):
        return f"what its model was made of has parts without a value to compare: {without}"
    return None


def _difference(run: RunDir, resolved: Resolved, objects: Objects) -> str | None:
    """Return the first input that differs from the run's; None if none does."""
    before = run.require_manifest()
    if before.objects != objects.names:
        return "it was given other objects"
    source = _weights_source(resolved.config, run)
    with reading_again():  # the times of files need not show each change
        now = present_inputs(run, resolved, objects, source)
    differences = harmful_differences(before, now, resolved.config)
    return str(differences[0]) if differences else None


def _weights_source(config: RunConfig, run: RunDir) -> Path | None:
    """Return the file or run that a new run would take its initial weights from.

    Raises:
        InputError: They are not there.
    """
    given = config.model.init_from
    if given is None or is_weights(given.source):
        return initial_source(config, run)
    # By now, `last` may be `run` itself.
    return find_run(given.source, run.path.parent.parent, fits=has_model).path


def _damage(run: RunDir) -> str | None:
    """Return what is wrong with the first damaged file of a run; None if all are as they were written.

    Raises:
        CheckpointError, InputError: The model is damaged, or a file that it depends on.
    """
    download_all(run)
    files = read_run(run.path)
    if problems := [*files.problems, *files.history.problems]:
        return problems[0]
    result, (newest, complaints) = run.require_result(), run_checkpoints(run).resume.newest()
    if complaints or newest is None or newest.digest != result.digest:
        return complaints[0] if complaints else "its last checkpoint is not there"
    stored_model(run)
    return None


def _outside_decision(run: RunDir) -> str | None:
    """Return which decision, such as a stop, has shaped a run, even if it was resumed; None if none has."""
    parent = run.require_manifest().parent
    inherited = [kind for _, kind, _ in getattr(parent, "decisions", [])]  # where it repeats a run
    journalled = [record["name"] for record in read(run.journal) if record["kind"] == "decision"]
    outside = [kind for kind in [*inherited, *journalled] if kind not in (*MEASURED, *NEUTRAL)]
    return f"a decision from outside shaped it: {outside[0]}" if outside else None


def harmful_differences(before: Manifest, now: Manifest, config: RunConfig) -> list[Difference]:
    """Return the differences of inputs that may change bits."""
    neutral = neutral_changes(config)
    return [one for one in before.differences(now) if one.input != "environment" or one.what not in neutral]


def neutral_changes(config: RunConfig) -> Collection[str]:
    """Return the parts of the numeric environment that change no bit of a run of a config."""
    neutral: Collection[str] = plugins.adapter("framework", framework_name(config)).neutral_changes(config)
    return neutral


def present_inputs(run: RunDir, resolved: Resolved, objects: Objects, source: Path | None) -> Manifest:
    """Return the manifest that a completed run would have if it began now.

    Args:
        run: The run.
        resolved: The config, of the same computation.
        objects: The objects that are passed in Python.
        source: The file or run with the initial weights, if any; if it is gone, they count as unchanged.

    Raises:
        InputError: The data cannot be read, or the model cannot be built, any more.
    """
    before, config = run.require_manifest(), resolved.config
    if any(import_paths(config.model_dump())):
        open_process()  # before anything is imported for the config
    with preserved_global_random():
        seed_global_random(config.experiment.seed)
        device = _known_device(before, config, objects)
        if device is not None:
            return _light_inputs(run, resolved, objects, device)
        now = _built_inputs(run, resolved, objects, source)
    is_gone = source is not None and not source.exists()
    return now.model_copy(update={"weights": before.weights}) if is_gone else now


def _known_device(before: Manifest, config: RunConfig, objects: Objects) -> str | None:
    """Return the device if the initial weights follow from config and environment, else None.

    If None, the model must be built first: custom code may draw initial weights from any source, and the
    target of `init_from` may have changed.
    """
    named = [config.model.type, config.model.params, config.training.loss, config.evaluation.metrics]
    names_code = any(import_paths(named))
    if objects.model is not None or config.model.init_from or before.model or names_code:
        return None
    device: str | None = plugins.adapter("framework", framework_name(config)).device_name(config)
    return device


def _light_inputs(run: RunDir, resolved: Resolved, objects: Objects, device: str) -> Manifest:
    """Return the inputs without building the model: data, code and environment, which decide the rest.

    The versions that the framework names are those of packages, which are compared anyway.
    """
    before, config = run.require_manifest(), resolved.config
    framework = plugins.adapter("framework", framework_name(config))
    threads = config.training.threads or _default_threads(run, before, config)
    now = Manifest(
        run_id=before.run_id,
        experiment=before.experiment,
        semantics=versions(framework_name(config)),
        computation=resolved.computation(),
        environment=environment_inputs(threads, {**before.environment.framework, "device": device}),
        observed=observed_inputs(current(), before.code, run, before.observed),
        **{name: getattr(before, name) for name in ("data", "code", "model", "weights")},
    )
    if before.differences(now):
        return now  # the data need not be read
    bundle = objects.data if objects.data is not None else load_data(config, objects.model)
    roots = code_roots(resolved, objects, framework, {})
    code = code_inputs(roots, Path.cwd(), before.code.modules, data=bundle.code)
    return now.model_copy(update={"data": bundle.once(data_inputs), "code": code})


def _default_threads(run: RunDir, before: Manifest, config: RunConfig) -> int:
    """Return the threads of a run on the same data; on others it is not reused anyway."""
    description = DataDescription.load(run.path / before.data_file)
    train = before.data.splits.get("train")
    if description is None or train is None or train.rows is None:
        return asked_threads() or available_threads(config)
    framework = plugins.adapter("framework", framework_name(config))
    plan = framework.plan(config, epoch_samples(config, train.rows))
    return default_threads(framework, config, DataInfo.from_json(description.info), plan)


def _built_inputs(run: RunDir, resolved: Resolved, objects: Objects, source: Path | None) -> Manifest:
    """Return the inputs as an attempt finds them: built in the same order, as building may draw numbers."""
    config = resolved.config
    choices = journalled_decisions(run.journal).choices()  # without them, they would be measured again
    framework = plugins.adapter("framework", framework_name(config, objects.model))
    objects = replace(objects, model=copied_model(objects.model))  # itself it is trained if none is found
    components, files = build(config, config.training.threads, objects, choices), dict[str, str]()
    if source is not None and source.exists():
        initialize(components, source)
        files = file_hashes(source)
    determinism = framework.determinism(config)
    before = run.require_manifest()
    initial = weights_digest(components.learner, components.inputs.world)
    weights = InitialWeights(initial=initial, files=files)
    return make_manifest(run, resolved, objects, components, determinism, weights, before)
