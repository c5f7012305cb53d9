"""Use the trained models of runs, and compare results."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from trainwright.config import Overrides
from trainwright.errors import CheckpointError, InputError
from trainwright.integrations.foreign import refuse_foreign_run
from trainwright.records.artifact import ArtifactDir, is_artifact
from trainwright.records.listing import has_model, runs_folder
from trainwright.runs.data.versions import local_path, trained_on
from trainwright.runs.lookup import RunName, find
from trainwright.runs.objects import passed_objects, require_objects
from trainwright.runs.processes.calls import ONE, Members, over_mesh
from trainwright.runs.run import Run
from trainwright.runs.workdir import working_directory, working_for
from trainwright.safe_files import usable_path

if TYPE_CHECKING:
    from trainwright.inference.bad_rows import OnError
    from trainwright.inference.predictor import Predictor
    from trainwright.records.run_dir import RunDir
    from trainwright.runs.comparison import Comparison
    from trainwright.runs.prediction_comparison import PredictionComparison
    from trainwright.types import Metrics, SplitName

log = logging.getLogger("trainwright")
T = TypeVar("T")
MOST_OVERLAID = 12  # runs on one page: there are as many colors


def load(
    run: RunName = "last", *, runs_dir: Path | str | None = None, model: Any = None, trust: bool = False
) -> Predictor:
    """Return the model of a run, ready to predict: `trainwright.load("last").predict(frame)`.

    Many threads may use it at once, together with other models. Loading and predicting change nothing in the
    process: no thread count, determinism flag or random generator. So its outputs may differ from those
    of the run's own evaluation in the last bits (by 1e-5 at most, relative to the largest); `predict`,
    `evaluate` and `explain` pin the process as the training did, and give its bits.

    A run directory may come from someone else, so not everything that its config names is imported: only a
    framework's own model classes, and code in the caller's own working directory. That holds for all
    functions here; `docs/security.md` has the rules.

    Args:
        run: A run, a path, an id, a unique prefix, or `last`.
        runs_dir: The folder of the runs.
        model: The model object, if `train` was given one; it gets the weights of the run.
        trust: Import all that the run's config names; each import is announced in the log.

    Raises:
        RunNotFoundError: There is no such run.
        InputError: The run has no weights, an object is missing, or the run names code that is not imported.
        CheckpointError: A file that predictions depend on is damaged.
    """
    return load_for(find(run, runs_dir, has_model), "load", model, trust=trust, pinned=False)


def load_for(
    run: RunDir,
    verb: str,
    model: Any,
    *,
    trust: bool,
    pinned: bool = True,
    members: Members = ONE,
    **data: Any,
) -> Predictor:
    """Return the model of a run for a verb, and warn of code that has changed.

    Args:
        run: The run.
        verb: What is done with it, for messages.
        model: The model object, if the run was given one.
        trust: As in `load`.
        pinned: Whether the process is pinned as the training was.
        members: The processes that do it.
        data: The data objects, if the verb needs them.
    """
    from trainwright.runs.predictor import open_predictor

    if isinstance(run, ArtifactDir):
        return _opened_artifact(run, trust=trust, members=members)
    refuse_foreign_run(run, verb)
    require_objects(run, verb, model=model, **data)
    with working_for(run, trust=trust):
        predictor = open_predictor(run, model, pinned=pinned, members=members)
    _warn_of_changes(run)
    config = predictor.config
    if verb == "evaluate" or ":" in config.model.type or (config.data and config.data.features_from):
        warn_of_files(run)
    return predictor


def _opened_artifact(artifact: ArtifactDir, *, trust: bool, members: Members) -> Predictor:
    from trainwright.exporters.opened import open_artifact

    if members.world.size > 1:
        raise InputError(
            f"{artifact.path} is an exported model, which one process opens: leave out distributed"
        )
    return open_artifact(artifact, trust=trust)


def changed_code(run: RunDir) -> dict[str, Path]:
    """Return the user's modules that were imported for a run and are not what it was trained with."""
    from trainwright.runs.code_identity import changed_modules

    manifest = run.manifest()
    return {} if manifest is None else changed_modules(manifest.code)


def changed_files(run: RunDir) -> list[str]:
    """Return the files that a run's code was seen to read and that have other content now, as it names them.

    Files that are gone are left out: where they are needed, reading them fails.
    """
    from trainwright.records.manifest import ObservedInputs
    from trainwright.runs.observed import observed_inputs

    if (manifest := run.manifest()) is None:
        return []
    folder = working_directory(run)
    names = {str(folder / name): name for name in manifest.observed.files if not name.endswith(("/", "/*"))}
    before = ObservedInputs(files={path: manifest.observed.files[name] for path, name in names.items()})
    now = observed_inputs(None, manifest.code, run, before)
    return [names[one.what] for one in before.differences(now) if Path(one.what).exists()]


def warn_of_files(run: RunDir) -> None:
    """Warn of files that a run's code has read and that have changed."""
    for name in changed_files(run):
        log.warning(
            "file %s, which the code of run %s has read, has changed since: results may differ from those of "
            "the trained model; put it back, or train again",
            name,
            run.id,
        )


def _warn_of_changes(run: RunDir, said: Collection[str] = ()) -> None:
    """Warn of code that has changed since a run was trained, but for the modules in `said`."""
    for name, file in changed_code(run).items():
        if name not in said:
            log.warning(
                "module %s (%s) has changed since run %s was trained: results may differ from those of "
                "the trained model; restore the module, or train again",
                name,
                file,
                run.id,
            )


def evaluate(
    run: RunName,
    *,
    split: SplitName = "test",
    data: Any = None,
    on_error: OnError = "stop",
    params: Mapping[str, Any] | None = None,
    runs_dir: Path | str | None = None,
    model: Any = None,
    trust: bool = False,
    overrides: Overrides = (),
) -> Metrics:
    """Compute the metrics of a run's model on one of its splits, or on other rows.

    Relative paths in the run's config are relative to where it was started; code is imported as `load` does.

    Args:
        run: A run, a path, an id, a unique prefix, or `last`.
        split: A split of the run's own data.
        data: Other rows: a file as `predict` takes it, or a data frame; for a language model a text file, or
            a folder of them. For a run that was given its data as objects, these again (then `split` is one
            of theirs), or a file.
        on_error: What becomes of a row of a file that cannot be read: `stop`: it is an error; `skip`: it is
            left out, and a warning says how many are.
        params: As in `predict`.
        runs_dir: The folder of the runs.
        model: The model object, if `train` was given one.
        trust: As in `load`.
        overrides: The mesh of processes that share the model out (`distributed.nproc=2`), as in training; by
            default this process has it whole. The metrics are the same.

    Raises:
        RunNotFoundError: There is no such run.
        InputError: The run has no weights or no such split, an object is missing, or the data are not the
            run's own; or an override is about more than the mesh.
        CheckpointError: A file that predictions depend on is damaged.
    """
    found = find(run, runs_dir, has_model)
    folder = versions_folder(found, runs_dir)
    is_own, data = _is_own_version(found, data, folder), local_path(data, folder)
    rows = _Rows(split, data, on_error, params, is_own)
    metrics: Metrics = over_mesh(
        found, overrides, "evaluate", _evaluate, found, rows, model, trust, file=data, trust=trust
    )
    return metrics


class _Rows(NamedTuple):
    """The rows to evaluate, and whether they are the version that the run was trained on; see `evaluate`."""

    split: SplitName
    data: Any
    on_error: OnError
    params: Mapping[str, Any] | None
    is_own: bool = False


def _evaluate(members: Members, found: RunDir, rows: _Rows, model: Any, trust: bool) -> Metrics:
    """Compute the metrics in each of the processes; see `evaluate`."""
    split, data, on_error, params, is_own = rows
    is_file = isinstance(data, Path | str)
    predictor = load_for(found, "evaluate", model, trust=trust, members=members, data=data)
    said = changed_code(found)
    if is_file:
        _warn_of_training_rows(found, predictor, Path(data), is_own=is_own)
    from trainwright.inference.bad_rows import check_on_error

    check_on_error(on_error)
    read_with(predictor, params)
    samples = predictor.files.samples(data) if is_file else None  # before the working directory changes
    others = predictor.files.read(data, on_error) if is_file and samples is None else data
    with working_for(found, working_directory(found), trust=trust):
        bundle = None
        if "data" in passed_objects(found) and not is_file:
            from trainwright.runs.data.bundles import bundle_of_objects

            others, bundle = None, bundle_of_objects(found, predictor, data)
        metrics = predictor.evaluate(split, others, samples=samples, bundle=bundle, on_error=on_error).metrics
    _warn_of_changes(found, said)  # in what was imported for the data and the metrics
    return metrics


def versions_folder(found: RunDir, runs_dir: Path | str | None) -> Path:
    """Return the folder of runs that keeps the versions of data which a command names: that of the run."""
    return runs_folder(runs_dir) if isinstance(found, ArtifactDir) else found.path.parent.parent


def _is_own_version(found: RunDir, data: Any, runs_dir: Path) -> bool:
    manifest = found.manifest() if isinstance(data, str) else None
    return manifest is not None and trained_on(manifest.data.pins, data, runs_dir)


def _warn_of_training_rows(run: RunDir, predictor: Predictor, file: Path, *, is_own: bool) -> None:
    """Warn if a file to evaluate on is the one that the run was trained on."""
    data, folder = predictor.config.data, working_directory(run)
    trained = [path for path in (data.path, data.train_path) if path] if data else []
    if is_own or file.resolve() in [(folder / path).resolve() for path in trained]:
        log.warning(
            "%s holds the rows that run %s was trained on, so these metrics flatter its model; for rows that "
            "it has not seen: trainwright evaluate %s --split test",
            file,
            *[run.certificate.run["id"] if isinstance(run, ArtifactDir) else run.id] * 2,
        )


def read_with(predictor: Predictor, params: Mapping[str, Any] | None) -> None:
    """Read files with other options than those of the run's data.

    Raises:
        InputError: No reader has such an option.
    """
    from trainwright.inference.input_files import set_options

    set_options(predictor.files, params or {})


def explain(
    run: RunName,
    *,
    data: Any = None,
    runs_dir: Path | str | None = None,
    model: Any = None,
    trust: bool = False,
) -> dict[str, Any]:
    """Explain a run's model: importance, permutation importance, SHAP values and partial dependence.

    They are written into the run directory, and its report is written again; where that cannot be done, the
    entry `not_kept` says why. `data` and `model` are what `train` was given as objects, if it was; paths and
    imported code are as in `evaluate`.

    Raises:
        RunNotFoundError: There is no such run.
        InputError: The run has no weights, an object is missing, or the data are not the run's own.
        CheckpointError: A file that predictions depend on is damaged.
    """
    found = find(run, runs_dir, has_model)
    predictor = load_for(found, "explain", model, trust=trust, data=data)
    from trainwright.runs.data.bundles import bundle_of_objects

    bundle = bundle_of_objects(found, predictor, data) if data is not None else None
    with working_for(found, working_directory(found), trust=trust):
        explanation = predictor.explain(bundle)
    if "not_kept" not in explanation:
        try:
            report(Run(found))
        except CheckpointError as error:
            log.warning("the report is not written again: %s", error)
    return explanation


def report(
    run: RunName,
    *others: RunName,
    output: Path | str | None = None,
    card: bool = False,
    runs_dir: Path | str | None = None,
) -> Path:
    """Write the run's `report.html` again, its model card, or a page that overlays several runs.

    Args:
        run: A run, a path, an id, a unique prefix, or `last`.
        others: More runs, up to 11: the page shows first what differs, then all curves.
        output: The file to write. By default, report.html or model-card.md in the run directory, or runs.html
            here for several runs.
        card: Write the model card instead: Markdown with the metadata that hubs read.
        runs_dir: The folder of the runs.

    Returns:
        The path of what was written.

    Raises:
        RunNotFoundError: There is no such run.
        InputError: These arguments do not go together.
        CheckpointError: A table of an evaluation has a form that cannot be shown; or a file of the run is
            damaged, and what was written into its directory before is kept, as it may show more.
        OSError: The file cannot be written.
    """
    path = None if output is None else usable_path(output)
    _check_report(len(others) + 1, output, card=card)
    folders = [find(one, runs_dir).path for one in (run, *others)]
    if card:
        from trainwright.reports.card import write_card

        return write_card(folders[0], path)
    if others:
        from trainwright.reports.overlay import FILE, write_overlay

        return write_overlay(folders, path or Path(FILE))
    from trainwright.reports.html import write_report
    from trainwright.reports.studies import link_from_study

    written = write_report(folders[0], path, keep_fuller=path is None)
    if path is None:
        link_from_study(folders[0])  # so that the page of a search links to this one
    return written


def _check_report(runs: int, output: Path | str | None, *, card: bool) -> None:
    if card and runs > 1:
        raise InputError(f"{runs} runs given, but a model card describes one run; leave the others out")
    if runs > MOST_OVERLAID:
        raise InputError(f"{runs} runs given; one page overlays {MOST_OVERLAID} at most: name fewer")
    if output is not None and not Path(output).absolute().parent.is_dir():
        raise InputError(f"{output}: there is no folder {Path(output).parent}")


def compare(
    first: RunName,
    second: RunName,
    *,
    data: Path | str | None = None,
    params: Mapping[str, Any] | None = None,
    runs_dir: Path | str | None = None,
    trust: bool = False,
) -> Comparison | PredictionComparison:
    """Compare the configs, inputs and results of two runs; or the predictions of exported models.

    Args:
        first: A run, or the path of an exported model.
        second: The same.
        data: A file of rows, as `predict` takes it, whose predictions are compared. Default, where one of
            both is an exported model: the first rows of the test split of its run.
        params: As in `predict`.
        runs_dir: The folder of the runs.
        trust: As in `load`.

    Returns:
        A `PredictionComparison` where rows are given, or one of both is an exported model.

    Raises:
        RunNotFoundError: There is no such run.
        InputError: The predictions of these models cannot be compared.
        ConfigError: The config of a run cannot be read any more.
        CheckpointError: A file of a run is damaged.
    """
    are_exported = [not isinstance(one, Run) and is_artifact(Path(one)) for one in (first, second)]
    if data is not None or any(are_exported):
        both = [find(one, runs_dir, has_model) for one in (first, second)]
        return _compare_predictions(both, data, params, runs_dir, trust)
    from trainwright.runs.comparison import compare as compare_runs

    return compare_runs(find(first, runs_dir), find(second, runs_dir), trust=trust)


def _compare_predictions(
    both: Sequence[RunDir],
    data: Path | str | None,
    params: Mapping[str, Any] | None,
    runs_dir: Path | str | None,
    trust: bool,
) -> PredictionComparison:
    """Compare the predictions of two models; see `compare`."""
    from trainwright.runs.prediction_comparison import compare_on_file, compare_on_split

    models = [load_for(one, "compare", None, trust=trust, pinned=False) for one in both]
    for model in models:
        read_with(model, params)

    def within(model: Predictor) -> AbstractContextManager[object]:
        return working_for(model.run, working_directory(model.run), trust=trust)

    if data is not None:
        folders = [versions_folder(one, runs_dir) for one in both]
        own = [_is_own_version(one, data, folder) for one, folder in zip(both, folders, strict=True)]
        data = local_path(str(data), folders[0])
        for one, model, is_own in zip(both, models, own, strict=True):
            _warn_of_training_rows(one, model, Path(data), is_own=is_own)
        return compare_on_file(models, str(data), within)
    owner = next((model for model in models if not isinstance(model.run, ArtifactDir)), None)
    if owner is None:
        owner = load_for(_run_of(both[0], runs_dir), "compare", None, trust=trust, pinned=False)
    return compare_on_split(models, owner, within)


def _run_of(artifact: RunDir, runs_dir: Path | str | None) -> RunDir:
    """Return the run that an exported model came from.

    Raises:
        InputError: It is not there.
    """
    assert isinstance(artifact, ArtifactDir)
    try:
        return find(artifact.certificate.run["id"], runs_dir, has_model)
    except InputError as error:
        raise InputError(
            f"{artifact.path} came from a run that is not here ({error}); to compare exported models without "
            "their run, give a file of rows, --data FILE"
        ) from error
