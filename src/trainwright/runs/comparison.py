"""Two runs side by side: config, inputs and results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trainwright.digest import WEIGHTS
from trainwright.errors import CheckpointError
from trainwright.evaluation.metrics import adds_up, without_prefix
from trainwright.evaluation.significance import Significance, same_rows
from trainwright.records.manifest import Difference, Manifest
from trainwright.records.result import Result
from trainwright.records.run_dir import RunDir
from trainwright.redact import redacted, redacted_value
from trainwright.runs.data.differences import in_sentences
from trainwright.runs.run_config import read_config
from trainwright.runs.workdir import working_directory, working_for

_RESULTS = ("steps", "epochs", "train_seconds", "samples_per_second")
_ON_SAME_ROWS = "; `runs compare --data FILE` tests both on a file, `retrain` a model and its parent"


@dataclass(frozen=True)
class NumberPair:
    """A number of both runs; None if a run does not have it, or the difference is undefined."""

    name: str
    first: float | None
    second: float | None
    delta: float | None


@dataclass(frozen=True)
class Comparison:
    """The differences of the second run from the first.

    `config`: all config values, also those that change no bits; `inputs`: data, code, environment and weights
    (None where a run ended before they were recorded); `numbers`: the metrics, steps and speed of both;
    `digests`: of the final weights, None before the end; `data`: what differs in the rows of their data, in
    sentences, empty where they had the same data; `tests`: whether the models differ on the test rows,
    where both were tested on the same ones, by each metric that both computed; else `untested` says why there
    is none.
    `model_bytes` are the sizes of the weights.
    """

    runs: tuple[str, str]
    config: Sequence[Difference]
    inputs: Sequence[Difference] | None
    numbers: Sequence[NumberPair]
    digests: tuple[str | None, str | None]
    data: Sequence[str] = ()
    tests: Sequence[Significance] = ()
    untested: str | None = None
    model_bytes: tuple[int | None, int | None] = (None, None)

    @property
    def simpler(self) -> str | None:
        """The run whose model is smaller, where no test tells the two models apart; else None."""
        one, other = self.model_bytes
        if not self.tests or any(test.significant for test in self.tests) or one is None or other is None:
            return None
        return None if one == other else self.runs[int(other < one)]

    @property
    def same_digest(self) -> bool:
        """True if both runs ended with the same weights."""
        return self.digests[0] is not None and self.digests[0] == self.digests[1]

    def to_json(self) -> dict[str, Any]:
        """Return the comparison for JSON."""
        tests = [test.to_json() for test in self.tests]
        return asdict(self) | {"same_digest": self.same_digest, "tests": tests, "simpler": self.simpler}


def compare(first: RunDir, second: RunDir, *, trust: bool = False) -> Comparison:
    """Compare two runs, finished or not.

    Where both were tested on the same rows, their models predict these rows again for a significance test. If
    that is not possible (weights are missing, a framework is not installed ...), the comparison says why.

    Raises:
        ConfigError: The config of a run cannot be read any more.
        CheckpointError: A file of a run is damaged.
    """
    before, now = first.manifest(), second.manifest()
    _check_config(first, before)
    _check_config(second, now)
    results = first.result(), second.result()
    digests = tuple(result.digest if result else None for result in results)
    inputs = None
    if before and now:
        inputs = [difference for difference in before.differences(now) if difference.input != "config"]
    same_model = digests[0] is not None and digests[0] == digests[1]
    tests, untested = _tested(first, second, same_model=same_model, trust=trust)
    return Comparison(
        (first.id, second.id),
        list(_config(first, second)),
        inputs,
        list(_numbers(*results)),
        (digests[0], digests[1]),
        in_sentences(first, second, trust=trust),
        tests,
        untested,
        (_model_bytes(first), _model_bytes(second)) if tests else (None, None),
    )


def _model_bytes(run: RunDir) -> int | None:
    """Return the size of the weights that a run was judged by; None if they are not there."""
    from trainwright.runs.wiring import run_checkpoints

    checkpoints = run_checkpoints(run)
    for kept in (checkpoints.best, checkpoints.resume):
        if (commit := kept.newest()[0]) is not None:
            return sum(file.bytes for file in commit.files if f"{file.stem}." == WEIGHTS)
    return None


def _check_config(run: RunDir, manifest: Manifest | None) -> None:
    """Raise CheckpointError if the config file is not the one that the manifest was made from."""
    path = run.checked_config_file()
    if manifest and path.exists() and manifest.config_sha256 != run.config_sha256():
        raise CheckpointError(f"{path} is damaged: its content is not what was written")


def _tested(
    first: RunDir, second: RunDir, *, same_model: bool, trust: bool
) -> tuple[Sequence[Significance], str | None]:
    """Return the tests, or why there is none."""
    from trainwright.runs.split_predictions import other_question, other_rows

    if same_model:
        return (), "the models are the same"
    before, now = first.manifest(), second.manifest()
    if before is None or now is None:
        return (), "one of them ended before its inputs were recorded"
    if (why := other_rows(before, now)) is not None:
        has_rows = all("test" in one.data.splits for one in (before, now))
        return (), why + (_ON_SAME_ROWS if has_rows and other_question(before, now) is None else "")
    for manifest in (before, now):
        if manifest.objects:
            return (), manifest.objects_in_words()
    try:
        return _tests(first, second, trust), None
    # Foreign code loads models: whatever it raises, the rest of the comparison is still of use.
    except Exception as error:
        return (), redacted(f"{type(error).__name__}: {error}")


def _tests(first: RunDir, second: RunDir, trust: bool) -> list[Significance]:
    from trainwright.evaluation.metrics import wanted_metrics
    from trainwright.runs.split_predictions import predicted

    predictions = []
    for run in (first, second):
        with working_for(run, working_directory(run), trust=trust):
            predictions.append(predicted(run))
    # Of a metric that a model brings, nothing but its value is known.
    ours, theirs = (
        {without_prefix(name): name for name in wanted_metrics(part.config, part.info)}
        for part in predictions
    )
    names = [without_prefix(name) for name in predictions[0].result.metrics if name != "test_loss"]
    metrics = [_tested_by(name, ours, theirs) for name in names if name in ours and name in theirs]
    one, other = (part.scores for part in predictions)
    return [same_rows(metric, one, other) for metric in metrics if metric is not None]


def _tested_by(name: str, ours: Mapping[str, str], theirs: Mapping[str, str]) -> str | None:
    """Return a metric of this name that both runs have; None of users' own that are not the same.

    None, too, of those that add up by themselves: they have no values by row.
    """
    own = {metric for metric in (ours[name], theirs[name]) if ":" in metric}
    if not own:
        return name
    return own.pop() if ours[name] == theirs[name] and not adds_up(ours[name]) else None


def _config(first: RunDir, second: RunDir) -> Iterator[Difference]:
    before, now = (read_config(run, checked=False).flat() for run in (first, second))
    known = [created.data_paths if (created := run.creation()) else {} for run in (first, second)]
    for key in [*before, *(key for key in now if key not in before)]:
        old, new = before.get(key), now.get(key)
        paths = [paths.get(key) for paths in known]  # of data, which hold no secrets
        if old != new or paths[0] != paths[1]:
            shown = [redacted_value(key, value) for value in (old, new)]
            yield Difference("config", key, paths[0] or shown[0], paths[1] or shown[1])


def _numbers(first: Result | None, second: Result | None) -> Iterator[NumberPair]:
    before, now = (_values(result) for result in (first, second))
    for name in [*before, *(name for name in now if name not in before)]:
        old, new = before.get(name), now.get(name)
        yield NumberPair(name, old, new, None if old is None or new is None else new - old)


def _values(result: Result | None) -> dict[str, float]:
    if result is None:
        return {}
    numbers = {name: getattr(result, name) for name in _RESULTS}
    return result.metrics | {name: float(value) for name, value in numbers.items() if value is not None}
