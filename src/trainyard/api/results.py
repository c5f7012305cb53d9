"""Use the models of runs, and look at what came of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.integrations.owner import refuse_guest
from trainyard.runs.lookup import RunName, find
from trainyard.runs.objects import given_objects, require_objects
from trainyard.runs.run import Run
from trainyard.runs.workdir import own_code, working_directory, working_in

if TYPE_CHECKING:
    from trainyard.runs.comparison import Comparison
    from trainyard.runs.model import Predictor
    from trainyard.types import Metrics, SplitName


def load(run: RunName = "last", *, runs_dir: Path | str | None = None, model: Any = None) -> Predictor:
    """The model of a run, ready to predict: `trainyard.load("last").predict(frame)`.

    A run directory may come from elsewhere, so code is not imported from where it says that it was started: a model that
    the config names by an import path must be installed, or lie in the caller's own working directory. That holds for
    `evaluate` and `predict`, too.

    Args:
        run: a run, a path, an id, a unique prefix, or `last`.
        runs_dir: where the runs are.
        model: such an object as `train` was given, where it was given one; its weights become those of the run.
    """
    from trainyard.runs.model import Predictor

    found = find(run, runs_dir)
    refuse_guest(found, "load")
    require_objects(found, "load", model=model)
    with working_in(Path.cwd(), own_code(found)):
        return Predictor(found, model)


def evaluate(
    run: RunName,
    *,
    split: SplitName = "test",
    data: Any = None,
    runs_dir: Path | str | None = None,
    model: Any = None,
) -> Metrics:
    """The metrics of a run's model on one of its splits, or on other rows.

    Relative paths in the run's config are relative to where it was started; code is imported as `load` does.

    Args:
        run: a run, a path, an id, a unique prefix, or `last`.
        split: a split of the run's own data.
        data: other rows: a CSV or Parquet file, or a data frame. For a run that was given its data as objects, these
            again (then `split` is one of theirs), or a file.
        runs_dir: where the runs are.
        model: such an object as `train` was given, where it was given one.

    Raises:
        InputError: the run has no weights or no such split, an object is missing, or the data are not the run's own.
    """
    found = find(run, runs_dir)
    refuse_guest(found, "evaluate")
    is_file = isinstance(data, Path | str)
    require_objects(found, "evaluate", model=model, data=data)
    predictor = load(Run(found), model=model)
    if "data" in given_objects(found) and not is_file:
        from trainyard.runs.model import evaluate_given

        return evaluate_given(found, predictor, split, data, model)
    rows = predictor.read(Path(data)) if is_file else data
    with working_in(working_directory(found), own_code(found)):
        return predictor.evaluate(split, rows).metrics


def predict(run: RunName, data: Path | str, *, runs_dir: Path | str | None = None, model: Any = None) -> Any:
    """The predictions for the rows of a CSV or Parquet file, as a data frame; `model` and imported code as in `load`."""
    predictor = load(run, runs_dir=runs_dir, model=model)
    return predictor.predict(predictor.read(Path(data)))


def export(
    run: RunName,
    path: Path | str,
    form: str | None = None,
    *,
    runs_dir: Path | str | None = None,
    model: Any = None,
) -> Path:
    """Writes a run's model as a file or folder of its library's own (`model.ubj`, `model.skops`, a SavedModel ...).

    Args:
        run: a run, a path, an id, a unique prefix, or `last`.
        path: what to make; one that is there is replaced.
        form: one of the framework's formats; default: the one that the path ends with; its usual one if the path has no ending.
        runs_dir: where the runs are.
        model: such an object as `train` was given, where it was given one; imported code as in `load`.
    """
    return load(run, runs_dir=runs_dir, model=model).export(Path(path), form)


def explain(
    run: RunName, *, data: Any = None, runs_dir: Path | str | None = None, model: Any = None
) -> dict[str, Any]:
    """What a run's model looks at: importance, permutation importance, SHAP values and partial dependence.

    They are written into the run's directory, and its report is made anew. `data` and `model` are what `train` was given as
    objects, if it was; paths and imported code are as in `evaluate`.

    Raises:
        InputError: the run has no weights, an object is missing, or the data are not the run's own.
    """
    found = find(run, runs_dir)
    require_objects(found, "explain", model=model, data=data)
    predictor = load(Run(found), model=model)
    from trainyard.runs.model import given_bundle

    bundle = given_bundle(found, predictor, data) if data is not None else None
    with working_in(working_directory(found), own_code(found)):
        explanation = predictor.explain(bundle)
    report(Run(found))
    return explanation


def report(run: RunName, *, runs_dir: Path | str | None = None) -> Path:
    """Writes the run's `report.html` anew, and returns its path."""
    from trainyard.reports.html import write_report

    return write_report(find(run, runs_dir).path)


def compare(first: RunName, second: RunName, *, runs_dir: Path | str | None = None) -> Comparison:
    """Two runs side by side: in what config and inputs they differ, and what came of it."""
    from trainyard.runs.comparison import compare as compare_runs

    with working_in(Path.cwd()):
        return compare_runs(find(first, runs_dir), find(second, runs_dir))
