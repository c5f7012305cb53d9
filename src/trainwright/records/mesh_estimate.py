"""Estimates of what a run needs on a mesh of processes: memory, communication and time of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from trainwright.world import Mesh

# NVLink and a network card of 200 Gb/s, in bytes per second; a GPU in 16 bits, in operations per second.
WITHIN, BETWEEN, SPEED = 300e9, 25e9, 200e12


class Memory(NamedTuple):
    """The bytes that tensors take in one process at the fullest moment of a step, by kind.

    Attributes:
        parameters: With those that are gathered for a while.
        gradients: With the sums over virtual ranks that are kept.
        optimizer: The state of the optimizer, and what an update needs besides.
        averages: The average of the weights (`training.ema`).
        activations: What backward passes need, temporary tensors, and the batch.
        communication: Buckets of gradients, and what is sent or received at that moment.
        buffers: The buffers of the module.
    """

    parameters: float = 0
    gradients: float = 0
    optimizer: float = 0
    averages: float = 0
    activations: float = 0
    communication: float = 0
    buffers: float = 0

    @property
    def total(self) -> float:
        """All together."""
        return sum(self)


@dataclass(frozen=True)
class Machines:
    """The processes that a run is to have, and what is assumed of their machines.

    Attributes:
        processes: The number of processes, one for each device.
        memory: The bytes that each of them has; None: its share of this machine's, or of its own GPU here.
        per_machine: The processes of a machine.
        bandwidth_within: Bytes per second that a process sends to others of its machine.
        bandwidth_between: Bytes per second that it sends to those of other machines.
        speed: Floating-point operations per second of a process.
    """

    processes: int
    memory: float | None
    per_machine: int
    bandwidth_within: float
    bandwidth_between: float
    speed: float


@dataclass(frozen=True)
class MeshEstimate:
    """The estimate of a run on one mesh.

    Attributes:
        mesh: The processes along the axes.
        virtual: The virtual mesh, on which the bits depend.
        strategy: How the state is spread.
        memory: That of the process that needs most.
        stage: The place of this process along the axis `pipeline`.
        fits: Whether it has so much.
        sent: The bytes that a process sends in a step along each axis.
        bubble: The share of a step in which a process of the pipeline waits for others.
        seconds: The time of a step: computation, waiting and communication, one after the other.
        has_other_bits: Whether the virtual mesh is another one than the config's.
    """

    mesh: Mesh
    virtual: Mesh
    strategy: str
    memory: Memory
    stage: int
    fits: bool
    sent: Mapping[str, float] = field(default_factory=dict)
    bubble: float = 0.0
    seconds: float = 0.0
    has_other_bits: bool = False

    def lines(self, per_machine: int) -> Mapping[str, int | str | Mapping[str, int]]:
        """Return the section `distributed` of a config for this mesh."""
        size = self.mesh.size
        nnodes = -(-size // per_machine)
        section: dict[str, int | str | Mapping[str, int]] = {"nproc": size // nnodes}
        if nnodes > 1:
            section["nnodes"] = nnodes
        section["strategy"] = self.strategy
        if self.strategy == "hsdp":
            section["shard"] = self.mesh.shard
        for axis in ("tensor", "pipeline"):
            if (count := getattr(self.mesh, axis)) > 1:
                section[axis] = count
        virtual = self.virtual._asdict()
        return {**section, "virtual": {axis: virtual[axis] for axis in ("data", "tensor", "pipeline")}}


@dataclass(frozen=True)
class MeshPlan:
    """The estimates for a config.

    Attributes:
        machines: What was assumed.
        own: The config's own mesh; the nearest one that is possible, if that is not.
        others: Other meshes of as many processes, the best first.
        parameters: The number of parameters of the model.
        refused: Why meshes were left out, in words.
        changes: Why the config's own mesh is impossible, and what makes it `own`, in words; else nothing.
    """

    machines: Machines
    own: MeshEstimate
    others: Sequence[MeshEstimate]
    parameters: int
    refused: Sequence[str] = field(default=())
    changes: Sequence[str] = field(default=())
