"""The manifest: every input of the computation, written before step 1 and compared at each resume."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainwright import plugins
from trainwright.config import Resolved
from trainwright.config.schema import RunConfig
from trainwright.datasets.base import DataBundle
from trainwright.errors import ChangedInputsError, InputError
from trainwright.frameworks.base import Framework
from trainwright.process.observation.record import current
from trainwright.records.data import DataDescription
from trainwright.records.manifest import (
    SEMANTICS_OF,
    Change,
    DataIdentity,
    DeterminismRecord,
    Difference,
    InitialWeights,
    Manifest,
)
from trainwright.records.run_dir import RunDir
from trainwright.redact import redacted
from trainwright.require import import_paths
from trainwright.runs.code_identity import code_inputs
from trainwright.runs.data.identity import data_inputs
from trainwright.runs.environment import environment_inputs
from trainwright.runs.frameworks import framework_name
from trainwright.runs.objects import Objects
from trainwright.runs.observed import observed_inputs
from trainwright.runs.semantics import in_words, versions
from trainwright.runs.wiring import Components
from trainwright.types import Determinism

log = logging.getLogger("trainwright")
_LISTED = 5  # attributes or features that a message names
Json = dict[str, Any]


def make_manifest(
    run: RunDir,
    resolved: Resolved,
    objects: Objects,
    components: Components,
    determinism: Determinism,
    weights: InitialWeights,
    before: Manifest | None = None,
) -> Manifest:
    """Return all inputs of the computation as they are now.

    Args:
        run: The run.
        resolved: Its config.
        objects: The objects that are passed in Python.
        components: What was built from them.
        determinism: How exactly the run can be repeated.
        weights: The initial weights.
        before: The manifest of the run, if it has begun before: the modules and files that it names may be
            read later than now.
    """
    here = Path.cwd()
    config, definition = components.config, dict(components.learner.definition())
    roots = code_roots(resolved, objects, components.framework, definition)
    known = before.code.modules if before else ()
    code = code_inputs(roots, here, known, model=objects.model, data=components.bundle.code)
    return Manifest(
        run_id=run.id,
        experiment=run.experiment,
        created=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        working_directory=str(here),
        command=[redacted(word) for word in sys.argv],
        objects=objects.names,
        semantics=versions(framework_name(config, objects.model)),
        seed=config.experiment.seed,
        config_hash=resolved.config_hash(),
        config_sha256=run.config_sha256(),
        computation_hash=resolved.computation_hash(),
        computation=resolved.computation(),
        data=_identity(components.bundle),
        code=code,
        observed=observed_inputs(current(), code, run, before.observed if before else None),
        environment=environment_inputs(
            components.inputs.threads,
            components.learner.describe(),
            components.bundle.packages,
            components.inputs.world.mesh,
        ),
        placement=Resolved(config).placement() | {"training.threads": components.inputs.threads},
        model=definition,
        weights=weights,
        determinism=DeterminismRecord(**determinism._asdict()),
    )


def _identity(bundle: DataBundle) -> DataIdentity:
    """Return what identifies the data, and their positive class, which the config may name."""
    info = bundle.info
    label = None if info.positive is None or info.classes is None else str(info.classes[info.positive])
    return bundle.once(data_inputs).model_copy(update={"positive": label})


def describe_data(bundle: DataBundle) -> DataDescription:
    """Return how data were prepared, as the run keeps it for predictions."""
    preparation = bundle.preparation
    return DataDescription(
        info=bundle.info.to_json(),
        preparation=preparation.to_json() if preparation else None,
        tokenizer=bundle.tokenizer,
        ranges={name: list(one) for name, one in bundle.ranges.items()},
    )


def code_roots(
    resolved: Resolved, objects: Objects, framework: type[Framework], definition: Mapping[str, str]
) -> list[str]:
    """Return the modules that a run's code starts from.

    They are all that the config names by import paths where it changes the bits (model, loss, optimizer,
    schedule, metrics, data, collate, transforms ...), and those of adapters from other packages.
    """
    config, paths = resolved.config, import_paths([resolved.bits, definition])
    classes: list[type] = [framework, *([type(objects.model)] if objects.model is not None else [])]
    if config.data and objects.data is None:
        classes.append(plugins.dataset_of(config.data.type))
    return [path.partition(":")[0] for path in paths] + [cls.__module__ for cls in classes]


def refused_differences(
    before: Manifest, differences: Sequence[Difference], neutral: Collection[str]
) -> list[Difference]:
    """Return the differences that make a resume impossible.

    Another numeric environment is among them only where the config demands `bitwise`, and never in what is
    `neutral`: what the framework declares to change no bit.
    """
    return [
        one
        for one in differences
        if one.input != "environment" or (before.demands_bitwise and one.what not in neutral)
    ]


def check_unchanged(
    run: RunDir, before: Manifest, now: Manifest, *, allow_change: bool, neutral: Collection[str] = ()
) -> Manifest:
    """Compare a run's inputs with those at its start, or at the last accepted change.

    Changed config, data, code or weights are refused; another numeric environment is recorded, and refused
    only where the config demands `bitwise`. With `allow_change` all are recorded.

    Args:
        run: The run.
        before: Its manifest.
        now: Its inputs as they are now.
        allow_change: Accept what is refused otherwise.
        neutral: The parts of the numeric environment that change no bit of this run.

    Returns:
        The run's manifest from here on.

    Raises:
        ChangedInputsError: What changed is listed.
    """
    changed = before.differences(now)
    refused = refused_differences(before, changed, neutral)
    if refused and not allow_change:
        listed = "\n".join(f"  {line}" for line in _in_words(before, now, refused))
        raise ChangedInputsError(
            f"run {run.id} cannot be resumed: its inputs have changed\n{listed}\n"
            f"{advice(before, refused)}, start a new run, or resume with --allow-change (which is recorded)"
        )
    if changed:
        return _record(run, before, now, changed, neutral)
    return _adopted(run, before, now)


def _in_words(before: Manifest, now: Manifest, refused: Sequence[Difference]) -> Iterator[str]:
    """Yield what changed; other features say more than the hashes of all that is made of them."""
    then, today = before.data.features, now.data.features
    news = [f"{_named(today, then)} new"] if set(today) - set(then) else []
    news += [f"{_named(then, today)} missing"] if set(then) - set(today) else []
    if news:
        yield f"data: the features differ: {'; '.join(news)}"
    follows = {"preparation", "initial", *(f"{name} split, sha256" for name in before.data.splits)}
    yield from (str(one) for one in refused if not (news and one.what in follows))


def _named(features: Sequence[str], others: Sequence[str]) -> str:
    """Return the features that are not among others, as the beginning of a sentence."""
    names = [repr(name) for name in features if name not in set(others)]
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"{', '.join(names[:_LISTED])}{more} {'is' if len(names) == 1 else 'are'}"


def advice(before: Manifest, refused: Sequence[Difference]) -> str:
    """Return how refused differences can be undone."""
    parts = [one.what.removeprefix(SEMANTICS_OF) for one in refused if one.what.startswith(SEMANTICS_OF)]
    if parts:
        version = before.code.trainwright or "that began it"
        ours = in_words(parts)
        return f"this version of Trainwright computes otherwise: {ours}; resume with version {version}"
    if all(one.input == "environment" for one in refused):
        return "training.determinism: bitwise allows no other environment: resume in that of before"
    return "put them back"


def _adopted(run: RunDir, before: Manifest, now: Manifest) -> Manifest:
    """Adopt what may differ without changing a bit: a config file that was edited, another placement."""
    values: Json = {}
    if before.config_sha256 != now.config_sha256:
        log.warning("config.yaml has changed since the run began, but nothing in it that changes the result")
        values = {name: getattr(now, name) for name in ("config_hash", "config_sha256")}
        values["earlier_configs"] = before.configs_before(now)
    if before.placement != now.placement:
        values["placement"] = now.placement
    if not values:
        return before
    manifest = before.model_copy(update=values)
    run.write(Manifest.FILE, manifest)
    return manifest


def checked_determinism(config: RunConfig, determinism: Determinism) -> Determinism:
    """Return the determinism as it is; warn if its tier is below `bitwise`.

    Raises:
        InputError: The config demands `bitwise`.
    """
    if determinism.tier == "bitwise":
        return determinism
    if config.training.determinism == "bitwise":
        raise InputError(
            "training.determinism: bitwise was requested, "
            f"but this run gives {determinism.tier}: {determinism.reason}"
        )
    log.warning("determinism: %s (%s)", determinism.tier, determinism.reason)
    return determinism


def lower_tier(run: RunDir, manifest: Manifest, reason: str) -> Manifest:
    """Record that a run cannot be repeated to the bit; of several reasons the first is kept.

    Returns:
        The run's manifest from here on.
    """
    if manifest.determinism.tier == "statistical":
        return manifest
    lowered = DeterminismRecord(tier="statistical", reason=reason)
    manifest = manifest.model_copy(update={"determinism": lowered})
    run.write(Manifest.FILE, manifest)
    return manifest


def unsaved_reason(names: Sequence[str]) -> str:
    """Return why the tier is lowered if training changes attributes that no checkpoint holds."""
    more = [f"{len(names) - _LISTED} more"] if len(names) > _LISTED else []
    return f"training changes {', '.join([*names[:_LISTED], *more])} of the model, which no checkpoint holds"


def _record(
    run: RunDir, before: Manifest, now: Manifest, changed: list[Difference], neutral: Collection[str]
) -> Manifest:
    """Warn of accepted changes, record them, and lower the tier if they may change bits."""
    harmful = [one for one in changed if one.input != "environment" or one.what not in neutral]
    for difference in changed:
        note = "" if difference in harmful else " (which changes no bit)"
        log.warning("changed since the run began: %s%s", difference, note)
    determinism = before.determinism
    if harmful:
        what = "numeric environment" if harmful[0].input == "environment" else "inputs"
        reason = f"the {what} changed before a resume: {harmful[0]}"
        determinism = DeterminismRecord(tier="statistical", reason=reason)
    after = before.with_change(now, Change(time=time.time(), differences=changed), determinism)
    run.write(Manifest.FILE, after)
    return after
