"""Compress runs: smaller models as child runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwright.api.forking import attempted
from trainwright.api.results import load_for
from trainwright.config import Config, Overrides
from trainwright.config import load as load_config
from trainwright.config.overrides import with_settings
from trainwright.config.words import nearest
from trainwright.errors import InputError
from trainwright.integrations.foreign import refuse_foreign_run
from trainwright.records.compression import Recipe
from trainwright.records.listing import find_run, has_model
from trainwright.records.run_dir import RunDir
from trainwright.records.schemes import SCHEMES
from trainwright.runs.catalog import Catalog
from trainwright.runs.data.bundles import make_objects
from trainwright.runs.lookup import RunName, find
from trainwright.runs.objects import passed_objects, require_objects
from trainwright.runs.run import Run
from trainwright.runs.workdir import code_beside, working_directory, working_for, working_in

if TYPE_CHECKING:
    from trainwright.evaluation.gates import Gate

# What other tools call the numbers that weights are held in.
_WORDS = {
    "int8": ("int8", "i8", "8", "8bit", "8-bit", "q8", "qint8", "w8a8", "w8a16", "dynamic", "static", "ptq"),
    "int4": ("int4", "i4", "4", "4bit", "4-bit", "q4", "nf4", "w4a16", "gptq", "awq"),
    "fp16": ("16", "float16", "half", "f16"),
    "bf16": ("bfloat16",),
    "fp8": ("float8", "f8", "e4m3", "float8-e4m3fn"),
}


def compress(
    run: RunName,
    *,
    quantize: str | None = None,
    prune: float = 0.0,
    structured: bool = False,
    distill: Any = None,
    overrides: Overrides = (),
    gate: str | None = None,
    search: bool = False,
    runs_dir: Path | str | None = None,
    model: Any = None,
    data: Any = None,
    trust: bool = False,
) -> Run:
    """Make a smaller model of a run's, as a child run of it that was compared with it on the same rows.

    The child is a run like any other: `evaluate`, `predict` and `report` take it. Its report, and the
    attribute `compression`, have both models side by side: bytes, latency for 1 and 64 rows, memory, metrics.
    `docs/compress.md` says what each way does to which model.

    Args:
        run: A run, a path, an id, a unique prefix, or `last`.
        quantize: `int8-dynamic`, `int8-static`, `int8-weight-only`, `int4-weight-only`, `fp16`, `bf16` or
            `fp8`.
        prune: The share of the weights of each layer to drop, those of the smallest magnitude; of boosters
            and forests, of the trees.
        structured: Drop whole channels, those of the smallest norm, so that the tensors are smaller.
        distill: Train the model of this config (a file, or a mapping) with the run's model as its teacher,
            on the same data.
        overrides: Settings of that config.
        gate: What the child has to pass, such as `val_f1 >= parent - 0.005`.
        search: Look for the largest compression that passes the gate, up to what is given.
        runs_dir: The folder of the runs.
        model: The model object, if `train` was given one.
        data: The data objects, if `train` was given some.
        trust: As in `load`.

    Raises:
        RunNotFoundError: There is no such run.
        InputError: The model cannot be compressed so, or the gate cannot be read.
        GateError: The compressed model does not pass the gate; no run is kept.
        CheckpointError: A file that predictions depend on is damaged.
    """
    from trainwright.evaluation.gates import Gate

    asked = None if gate is None else Gate.parse(gate)
    if distill is not None:
        if quantize is not None or prune or search:
            raise InputError("distill trains a student by itself; quantize or prune the run that comes of it")
        return _distilled(find(run, runs_dir, has_model), distill, overrides, asked, trust=trust)
    if overrides:
        raise InputError("overrides are settings of a student's config: give one with distill")
    recipe = _recipe(quantize, prune, structured=structured)
    found = find(run, runs_dir, has_model)
    refuse_foreign_run(found, "compress")
    require_objects(found, "compress", model=model, data=data)
    bundle = _bundle(found, model, data, trust=trust)
    from trainwright.compression.compress import Request, compress_run

    with working_for(found, working_directory(found), trust=trust):
        request = Request(found, recipe, asked, search=search, trust=trust, model=model)
        return Run(compress_run(request, bundle).child)


def _distilled(found: RunDir, config: Config, overrides: Overrides, gate: Gate | None, *, trust: bool) -> Run:
    """Train a student, compare it with its teacher, and return its run."""
    from trainwright.compression.distill import Teacher, compared
    from trainwright.runs.request import Request

    refuse_foreign_run(found, "distill")
    require_objects(found, "distill", model=None, data=None)
    with working_for(found, working_directory(found), trust=trust):
        teacher = Teacher.of(found)
    resolved = load_config(config, with_settings(overrides, teacher.settings()), Catalog())
    teacher.check(resolved)
    with working_in(Path.cwd(), [Path.cwd(), *code_beside(resolved)]):
        objects = make_objects(resolved, None, None, ())
        student = teacher.create(resolved)
        made = attempted(Request(resolved, student, objects))
        if made.status == "completed":
            compared(teacher, RunDir(made.path), gate, trust=trust)
        return made


def compress_again(original: RunDir, model: Any, data: Any, *, trust: bool) -> RunDir:
    """Return a run that repeats a compressed one, from the same parent.

    Raises:
        InputError: The parent is gone, or has other weights by now.
    """
    from trainwright.compression.compress import Request, compress_run, digest_of

    record = original.require_manifest().compression
    lineage = original.lineage()
    assert record is not None, "it was compressed"
    assert lineage is not None, "it was compressed"
    parent = find_run(lineage.run_id, original.path.parent.parent)
    if digest_of(parent) != record.parent_digest:
        raise InputError(f"run {parent.id} has other weights than when {original.id} was compressed from it")
    require_objects(parent, "reproduce", model=model, data=data)
    bundle = _bundle(parent, model, data, trust=trust)
    with working_for(parent, working_directory(parent), trust=trust):
        return compress_run(Request(parent, record.recipe, trust=trust, model=model), bundle).child


def _bundle(found: RunDir, model: Any, data: Any, *, trust: bool) -> Any:
    """Return the data that were given as objects; None where the run reads its own."""
    if "data" not in passed_objects(found):
        return None
    from trainwright.runs.data.bundles import bundle_of_objects

    return bundle_of_objects(found, load_for(found, "compress", model, trust=trust, data=data), data)


def _recipe(quantize: str | None, prune: float, *, structured: bool) -> Recipe:
    """Return what is asked, as a recipe.

    Raises:
        InputError: It makes no sense.
    """
    if quantize is not None and quantize not in SCHEMES:
        raise InputError(f"quantize: {quantize!r} given; {_meant(quantize)}")
    if not 0 <= prune < 1:
        percent = f"{prune / 100:g} for {prune:g}%" if 1 < prune < 100 else "such as 0.5"
        raise InputError(f"prune: {prune:g} given; a share from 0 to below 1 is expected, {percent}")
    if structured and not prune:
        raise InputError("structured says how to prune: give a share with it, such as prune=0.5")
    if quantize is None and not prune:
        raise InputError("nothing to do: give quantize (such as int8-dynamic) or prune (such as 0.5)")
    return Recipe(quantize=quantize, prune=prune, structured=structured)


def _meant(quantize: str) -> str:
    """Return what to give instead of a way to quantize that there is not."""
    word = quantize.lower().replace("_", "-")
    bits = next((bits for bits, words in _WORDS.items() if word in words), "")
    if near := [scheme for scheme in SCHEMES if bits and scheme.partition("-")[0] == bits]:
        ways = "; docs/compress.md says how they differ" if len(near) > 1 else ""
        return f"give {' or '.join(near)}{ways}"
    return f"there are {', '.join(SCHEMES)}{nearest(word, SCHEMES)}"
