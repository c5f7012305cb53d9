"""A process that makes models in parts, for the tests of initial weights: `placed_weights.py FOLDER RANK SIZE`.

FOLDER has `models.json`: for each name the type, the options and the data of a model, and maybe the folder from
which its weights are `restored`. The first process writes
`NAME.safetensors`: the whole tensors, put together from the parts that all processes have.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from torch.distributed import barrier, destroy_process_group, init_process_group
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from trainwright.frameworks.torch.initial import InitialWeights, materialise
from trainwright.frameworks.torch.precision import Precision
from trainwright.frameworks.torch.state.training import TrainingState
from trainwright.types import ArraySpec, DataInfo

SEED = 5
CPU = torch.device("cpu")


def info_of(given: dict[str, Any]) -> DataInfo:
    """Return the data of a model."""
    inputs = {name: ArraySpec(tuple(shape), dtype) for name, (shape, dtype) in given["inputs"].items()}
    return DataInfo(given["task"], inputs, given["outputs"])


def whole(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the tensors of a module, also those that no file has."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return {
        name: getattr(one, "full_tensor", lambda one=one: one)().detach().clone() for name, one in tensors
    }


def memory(key: str) -> int:
    """Return the memory of this process, in bytes: `VmRSS`, or its peak `VmHWM`."""
    line = next(one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith(key))
    return int(line.split()[1]) * 1024


def main(folder: Path, rank: int, size: int) -> None:
    """Make each model, in parts."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    init_process_group("gloo", init_method=f"file://{folder / 'rendezvous'}", rank=rank, world_size=size)
    mesh = init_device_mesh("cpu", (size,))
    for name, given in json.loads((folder / "models.json").read_text()).items():
        info = info_of(given)
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before = memory("VmRSS")
        initial = InitialWeights.of(given["type"], given["params"], info, divided=True)
        if initial.why_whole:
            raise AssertionError(f"{name} was made whole: {initial.why_whole}")
        for part in list(initial.module.modules())[::-1]:
            if isinstance(part, nn.ModuleList):
                for block in part:
                    fully_shard(block, mesh=mesh)
        fully_shard(initial.module, mesh=mesh)
        if "restored" in given:
            materialise(initial.module, CPU)
            restored = TrainingState(initial.module, None, Precision("fp32", CPU))
            restored.load(Path(given["restored"]), weights_only=True)
        else:
            initial.fill(CPU, SEED)
        own = sum(one.to_local().nbytes for one in initial.module.parameters())  # type: ignore[attr-defined]
        measured = {"own": own, "grew": memory("VmHWM") - before}
        (folder / f"{name}.{rank}.json").write_text(json.dumps(measured))
        if not given.get("measured"):
            tensors = whole(initial.module)
            if rank == 0:
                save_file(tensors, folder / f"{name}.safetensors")
    barrier()
    destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
