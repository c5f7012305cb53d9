"""Train small models by hand on a mesh of processes, with split layers; the digest of the whole weights."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional

from trainwright.frameworks.torch.models.gpt import Gpt
from trainwright.frameworks.torch.parallel.tensor.parallelize import parallelize
from trainwright.frameworks.torch.parallel.tensor.plans import plan_of
from trainwright.frameworks.torch.parallel.tensor.slices import Slices

VOCABULARY, LENGTH, ROWS, STEPS = 53, 15, 6, 4
LLAMA = {"position": "rotary", "normalization": "rms", "activation": "swiglu", "bias": False}


def ids(step: int) -> Tensor:
    return torch.randint(0, VOCABULARY, (ROWS, LENGTH), generator=torch.Generator().manual_seed(step))


def gpt(**options: Any) -> Gpt:
    return Gpt(VOCABULARY, LENGTH, 40, 2, 4, 0.1, **options)


MODELS: Mapping[str, Callable[[], nn.Module]] = {
    "gpt": gpt,
    "llama": lambda: gpt(**LLAMA, intermediate_size=92),
}


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def own(tensor: Tensor) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def digest(tensors: Mapping[str, Tensor]) -> str:
    hashed = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        hashed.update(name.encode() + whole(tensor.detach()).contiguous().numpy().tobytes())
    return hashed.hexdigest()


def train(name: str, slices: Slices, *, bf16: bool = False) -> str:
    """Train a model, and return the digest of its weights, and of the losses."""
    torch.manual_seed(0)
    model = MODELS[name]().train()
    parallelize(model, plan_of(model), slices)
    parameters = [one for one in model.parameters() if one.requires_grad]
    blocks = [own(one.detach()).requires_grad_() for one in parameters]
    optimizer = torch.optim.AdamW(blocks, 1e-2, foreach=False, fused=False)
    losses = []
    for step in range(STEPS):
        torch.manual_seed(step)
        tokens = ids(step)
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            logits = model(tokens)
        loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        for block, parameter in zip(blocks, parameters, strict=True):
            block.grad, parameter.grad = own(parameter.grad), None
        optimizer.step()
        losses.append(loss.detach())
    return digest({**dict(model.named_parameters()), "losses": torch.stack(losses)})


if __name__ == "__main__":
    torch.set_num_threads(1)
    name, virtual, size, bf16 = sys.argv[1], int(sys.argv[2]), int(os.environ["WORLD_SIZE"]), len(sys.argv) > 3
    mesh = None
    if size > 1:
        dist.init_process_group("gloo")
        mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("tensor",))
    print(train(name, Slices(virtual, mesh), bf16=bf16))
