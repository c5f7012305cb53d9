"""The two runs that are compared: what each computed, and what differs between them."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from trainwright.errors import InputError
from trainwright.integrations.foreign import refuse_foreign_run
from trainwright.records.manifest import Manifest
from trainwright.records.result import Result
from trainwright.records.run_dir import RunDir
from trainwright.runs.workdir import working_directory
from trainwright.studies.why import code
from trainwright.studies.why.factors import (
    CODE,
    ConfigTree,
    Factor,
    factors_of,
    is_valid_with,
    merge_invalid,
)


@dataclass(frozen=True)
class Side:
    """One of the two runs."""

    run: RunDir
    manifest: Manifest
    result: Result
    tree: ConfigTree

    @staticmethod
    def of(run: RunDir, *, trust: bool = False) -> Side:
        """Read a run, which the user may trust.

        Raises:
            InputError: It is not a function of its config, data, code and seed alone; or its config leads
                outside, and it is neither own nor trusted.
        """
        refuse_foreign_run(run, "explain the difference of")
        if (status := run.status()) != "completed":
            raise InputError(f"run {run.id} is {status}; only completed runs can be compared in this way")
        manifest = run.require_manifest()
        if manifest.objects:
            raise InputError(
                f"{manifest.objects_in_words()}; name them in its config, to have its differences substituted"
            )
        if manifest.initial is not None:
            raise InputError(
                f"run {run.id} starts from the state of run {manifest.initial.run_id}; only runs that start "
                "from the beginning can be compared in this way"
            )
        tree = ConfigTree.of(run, working_directory(run), trust=trust)
        return Side(run, manifest, run.require_result(), tree)

    @property
    def folder(self) -> Path:
        """The folder that the run was started in."""
        return working_directory(self.run)

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return int(self.tree.values["experiment"]["seed"])


def changes_between(before: Side, after: Side, folders: Collection[Path]) -> tuple[list[Factor], list[str]]:
    """Return the changes from one run to the other that can be made, and what cannot be changed, in words.

    Args:
        before: The first run.
        after: The second run.
        folders: The folders of the user's own project. Git is asked nowhere else: it runs programs that a
            repository's settings name.

    Raises:
        InputError: The code differs, and is in another folder.
    """
    same_data = before.manifest.data.hash == after.manifest.data.hash
    factors = factors_of(before.tree, after.tree, same_data=same_data)
    notes = []
    if code.differs(before.manifest, after.manifest):
        if before.folder not in folders:
            raise InputError(
                f"the code of run {before.run.id} is in {before.folder}: start from there, or give --trust"
            )
        reason = code.why_not(before.manifest, after.manifest, before.folder)
        if reason is None:
            factors.append(Factor(CODE, (), _commit(before), _commit(after)))
        else:
            notes.append(f"code: {reason}; all runs use the code in {before.folder} as it is now")
    return merge_invalid(factors, is_valid_with(before.tree, after.tree)), notes


def _commit(side: Side) -> str:
    git = side.manifest.code.git
    return git.commit[:12] if git is not None else ""


def metric_between(before: Side, after: Side, wanted: str | None) -> str:
    """Return the metric to explain: of the test split, and no loss, unless there is nothing else.

    Raises:
        InputError: The runs do not both have it.
    """
    values = before.result.metrics, after.result.metrics
    common = [name for name in values[0] if all(math.isfinite(one.get(name, math.nan)) for one in values)]
    names = [wanted, f"test_{wanted}", f"val_{wanted}"] if wanted else sorted(common, key=_rank)
    chosen = next((name for name in names if name in common), None)
    if chosen is None:
        have = f"they have {', '.join(common)}" if common else "they have none in common"
        raise InputError(f"--metric: {wanted or 'a metric'} is not in both runs as a number; {have}")
    return chosen


def _rank(name: str) -> tuple[bool, bool]:
    return not name.startswith("test_"), name.endswith("_loss")


def seeds_between(before: Side, after: Side, count: int) -> list[int]:
    """Return the seeds to repeat runs with: the two runs' own, then those that follow."""
    seeds = dict.fromkeys([before.seed, after.seed, *(before.seed + index for index in range(1, count + 1))])
    return [seed for seed in seeds if seed < 2**63][:count]
