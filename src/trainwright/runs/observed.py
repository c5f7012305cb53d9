"""The inputs that the user's code was seen to read, as a run records and compares them."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from trainwright.datasets.samples.file_hashes import hash_of
from trainwright.process.observation.record import Observation, current
from trainwright.process.observation.states import MISSING, THERE, state_of, variable_state
from trainwright.records.manifest import CodeIdentity, Manifest, ObservedInputs
from trainwright.records.run_dir import RunDir
from trainwright.runs.code_identity import module_files, with_later_imports
from trainwright.runs.unrepeatable_calls import unrepeatable_calls
from trainwright.world import World

_NOTED = 5  # calls that a manifest names


def observed_inputs(
    observation: Observation | None, code: CodeIdentity, run: RunDir, before: ObservedInputs | None = None
) -> ObservedInputs:
    """Return what was read so far, and how that which a run has read before is now.

    Args:
        observation: What was read in this process; None: nothing was observed.
        code: The code of the run: the sources of its modules are not listed again.
        run: The run: what is in its folder of runs is no input.
        before: What the run has read at its beginning, if it has begun before.
    """
    here, seen = Path.cwd(), observation or Observation(hash_of)
    before = before or ObservedInputs()
    sources = module_files(code)
    beginning = f"{run.path.absolute().parent.parent}{os.sep}"
    files = {name: state_of(_absolute(name, here), hash_of, state) for name, state in before.files.items()}
    files |= {
        _recorded(name, here): state
        for name, state in list(seen.files.items())
        if os.path.realpath(name) not in sources and not name.startswith(beginning)
    }
    variables = {name: state and variable_state(name, seen.began) for name, state in before.variables.items()}
    return ObservedInputs(
        files=files,
        variables=variables | seen.variables,
        unseen=list(dict.fromkeys([*before.unseen, *seen.unseen])),
    )


def with_later_inputs(manifest: Manifest, imported: Collection[str], run: RunDir) -> Manifest:
    """Return the manifest with what the user's code has imported and read since it was made.

    Args:
        manifest: The manifest; it is returned itself where nothing is new.
        imported: The modules that were imported before the run imported anything.
        run: The run.
    """
    code = with_later_imports(manifest.code, imported)
    now, known = observed_inputs(current(), code, run), manifest.observed
    # Of a folder, the names of today count: files of the run's own may be among them.
    contents = {
        name: state
        for name, state in known.files.items()
        if state != THERE and not (name.endswith("/") and name in now.files)
    }
    files = {**known.files, **now.files, **contents}
    here = Path.cwd()
    observed = ObservedInputs(  # without files that were missing, and that the run has made since then
        files={
            name: state
            for name, state in files.items()
            if state != MISSING or not os.path.lexists(_absolute(name, here))
        },
        variables=now.variables | known.variables,
        unseen=list(dict.fromkeys([*known.unseen, *now.unseen])),
    )
    if code is manifest.code and observed == known:
        return manifest
    return manifest.model_copy(update={"code": code, "observed": observed})


def gather_inputs(world: World) -> None:
    """Let the main process know what the user's code has read in all of them; a collective call."""
    if world.size == 1:
        return
    observation = current()
    found = world.to_main(None if observation is None else observation.news())
    if world.is_main and observation is not None:
        observation.adopt([one for one in found[1:] if one is not None])


def note_unrepeatable(code: CodeIdentity) -> None:
    """Note where the modules of a run read the clock, or draw random numbers without a seed."""
    if (observation := current()) is not None:
        observation.unseen |= dict.fromkeys(unrepeatable_calls(code)[:_NOTED])


def unseen_reason() -> str | None:
    """Return what the user's code uses that cannot be observed, as the reason of a tier; None if nothing."""
    observation = current()
    if observation is None or not observation.unseen:
        return None
    first, *others = observation.unseen
    more = f" and {len(others)} more" if others else ""
    return f"the code uses {first}{more}, which cannot be observed"


def _recorded(name: str, here: Path) -> str:
    """Return a path as a run records it: relative where it lies in the working directory."""
    beginning = f"{here}{os.sep}"
    return "./" if name == beginning else name.removeprefix(beginning)


def _absolute(name: str, here: Path) -> str:
    return f"{here}{os.sep}" if name == "./" else os.path.join(here, name)  # noqa: PTH118 - keeps a last slash
