"""Models that are computed in slices end with the same bits on 1, 2 and 4 processes, and with FSDP2 on 2 x 2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tensor_models import KINDS

pytestmark = pytest.mark.services
TESTS = Path(__file__).parents[1]
BUILT_IN = ("gpt", "llama", "features", "text", "sequence", "checkpointed", "vocabulary", "own")
HUGGING_FACE = (*(f"hf_{kind}" for kind in KINDS), "hf_vocabulary", "lora", "lora_gpt2", "lora_bert")
SIZES = (1, 2, 4)


@pytest.fixture(scope="module")
def digest(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Return what gives the digest of a case, in which all four processes agree."""
    models = [
        f"{name}/{rest}"
        for name in (*BUILT_IN, *HUGGING_FACE)
        for rest in (*(f"4/{size}{kind}" for size in SIZES for kind in ("", "/bf16")), *HALVES)
    ]
    others = [f"{name}/4/{size}" for name in ("sums", "meta") for size in SIZES]
    cases = [*models, *others, "blocks/2/2x2", "gpt/2/1", "gpt/2/2"]
    store = tmp_path_factory.mktemp("tensor") / "store"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS)}
    processes = [
        subprocess.Popen(
            [sys.executable, TESTS / "tensor_models.py", store, str(rank), *cases],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(4)
    ]
    ended = [process.communicate(timeout=500) for process in processes]
    for process, (_, errors) in zip(processes, ended, strict=True):
        assert process.returncode == 0, errors[-3000:]
    found = [dict(json.loads(line) for line in out.splitlines()) for out, _ in ended]

    def of(case: str) -> str:
        digests = {some[case] for some in found}
        assert len(digests) == 1, f"{case}: the processes differ"
        return digests.pop()

    return of


HALVES = ("2/1/halves", "2/2x2/halves")


@pytest.mark.parametrize("kind", ["", "/bf16"])
@pytest.mark.parametrize("name", [*BUILT_IN, *HUGGING_FACE])
def test_one_digest_on_any_number_of_processes(digest: Callable[[str], str], name: str, kind: str) -> None:
    assert len({digest(f"{name}/4/{size}{kind}") for size in SIZES}) == 1


@pytest.mark.parametrize("name", [*BUILT_IN, *HUGGING_FACE])
def test_one_digest_with_fsdp2(digest: Callable[[str], str], name: str) -> None:
    """Two processes compute a half of each batch, with two slices on two processes each."""
    assert len({digest(f"{name}/{rest}") for rest in HALVES}) == 1


def test_bits_depend_on_the_number_of_slices_alone(digest: Callable[[str], str]) -> None:
    assert digest("gpt/2/1") == digest("gpt/2/2") != digest("gpt/4/1")


def test_activations_that_are_computed_again_are_the_same(digest: Callable[[str], str]) -> None:
    assert digest("checkpointed/4/2") == digest("gpt/4/1")


def test_sums_are_those_of_one_tree(digest: Callable[[str], str]) -> None:
    assert len({digest(f"sums/4/{size}") for size in SIZES}) == 1


def test_blocks_make_up_the_whole(digest: Callable[[str], str]) -> None:
    """A model on meta gets its blocks later; those of FSDP2's shards are what checkpoints take them for."""
    assert len({*(digest(f"meta/4/{size}") for size in SIZES), digest("blocks/2/2x2")}) == 1
