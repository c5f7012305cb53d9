import json
from pathlib import Path

import trainwright
from trainwright.digest import sha256_file
from trainwright.records.run_dir import RunDir
from trainwright.runs.wiring import run_checkpoints
from trainwright.storage.sizes import size_of, sizes_of

CONFIG = {"data": {"type": "iris"}, "model": {"type": "decision_tree"}, "training": {"threads": 1}}


def test_a_model_of_one_step_is_on_the_disk_once(tmp_path: Path) -> None:
    run = trainwright.train(CONFIG, runs_dir=tmp_path)
    kept, best = (next(run.path.glob(f"{kind}/*/weights.safetensors")) for kind in ("checkpoints", "best"))
    assert kept.stat().st_ino == best.stat().st_ino
    checkpoints = run_checkpoints(RunDir(run.path))
    assert checkpoints.newest()[1] == []
    sizes = sizes_of(run.path)
    assert sum(sizes.values()) == size_of(run.path) > 0
    assert sizes["checkpoints"] >= kept.stat().st_size
    assert sizes["best models"] < kept.stat().st_size
    assert sizes["journal"] > 0
    checkpoints.resume.delete(kept.parent.name)
    checkpoints.best.load(best.parent.name)


def test_a_model_of_one_step_is_in_a_store_once(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    run = trainwright.train(CONFIG, runs_dir=url)
    objects = [path for path in (tmp_path / "store").rglob("*weights.safetensors") if path.is_file()]
    assert len({sha256_file(path) for path in objects}) == len(objects) == 1
    assert trainwright.evaluate(run, runs_dir=url) == {
        name: value for name, value in run.metrics.items() if name.startswith("test_")
    }
    entry = json.loads(max((tmp_path / "store" / "log").rglob("0*")).read_text())
    assert sum(name.endswith("weights.safetensors") for name in entry["files"]) == 2
