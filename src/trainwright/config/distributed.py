"""The section `distributed`: the processes that train, and the mesh that they form."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from trainwright.config.fields import ENDPOINT, PATH_SAFE, RANGE, Section, bits, placement
from trainwright.errors import InputError
from trainwright.world import Mesh

Count = Annotated[int, Field(ge=1)]


class VirtualConfig(Section):
    """The virtual mesh: the parts that a step is computed in, whatever the processes; the bits depend on it.

    `auto` is the mesh of the processes with which the run is created.
    """

    data: Literal["auto"] | int = bits(
        "auto",
        description="parts of each batch, a power of two: gradients are summed over them in the same order; "
        "the axes data and shard of the processes divide it",
    )
    tensor: Literal["auto"] | int = bits(
        "auto", description="slices of each split layer, a power of two; distributed.tensor divides it"
    )
    pipeline: Literal["auto"] | Count = bits(
        "auto", description="stages of the model; distributed.pipeline divides it"
    )

    @field_validator("data", "tensor")
    @classmethod
    def _power_of_two(cls, value: str | int) -> str | int:
        return _checked_power(value)

    @property
    def sizes(self) -> Mesh:
        """The sizes of the axes; `shard` has none of its own.

        The state of a divided parameter is updated with the bits of a whole one.
        """
        assert not isinstance(self.data, str), "config.load resolves auto"
        assert not isinstance(self.tensor, str)
        assert not isinstance(self.pipeline, str)
        return Mesh(pipeline=self.pipeline, data=self.data, tensor=self.tensor)


class PlanConfig(Section):
    """The layers that are computed in slices where `virtual.tensor` is more than 1, by names of modules.

    Models that have a name here, and those of transformers that bring a plan, need neither `colwise` nor
    `rowwise`.
    """

    colwise: list[str] = bits(
        [], description="linear layers of whose outputs each slice has some, such as `layers.*.attention.q`"
    )
    rowwise: list[str] = bits(
        [], description="linear layers of whose inputs each slice has some, such as `layers.*.attention.out`"
    )
    vocabulary: list[str] = bits(
        [],
        description="output layers of whose logits each slice has those of some tokens, such as `head`; for "
        "the loss of language models",
    )
    sequence: list[str] = bits(
        [],
        description="modules that compute slices of the tokens, (rows, length, ...), such as `norm`",
    )
    divided: dict[str, list[str]] = bits(
        {},
        description="whole numbers that modules keep and a slice has a share of, such as "
        "`{layers.*.attention: [num_heads]}`",
    )


class DistributedConfig(Section):
    """The processes that train, and how they communicate; the bits depend on `virtual` alone."""

    enabled: bool = placement(default=False, description="the same as `nproc: auto`, if `nproc` is not given")
    nproc: Literal["auto"] | int | Annotated[str, Field(pattern=RANGE)] = placement(
        default=1,
        description="processes on this machine; auto: one for each GPU; 1..4: begin with as many as the "
        "virtual mesh allows, and continue with fewer after one has died",
    )
    nnodes: int = placement(
        default=1,
        ge=1,
        description="machines that train together, each with `nproc` processes; start the same command once "
        "on each of them",
    )
    rdzv_endpoint: str | None = placement(
        default=None, pattern=ENDPOINT, description="HOST:PORT, a free port of one node: they meet there"
    )
    rdzv_id: str = placement(
        default="trainwright", pattern=PATH_SAFE, description="tells apart runs that meet at one endpoint"
    )
    rdzv_timeout: int = placement(
        default=600, gt=0, description="seconds for which a node waits for the endpoint, and for the others"
    )
    strategy: str = placement(
        default="ddp",
        description="ddp: each process has all parameters of its part of the model; fsdp: the processes "
        "share them out; hsdp: groups of `shard` processes do; auto: chosen by the size of the model "
        "and the memory; or a plugin's name",
    )
    shard: Literal["auto"] | int = placement(
        default="auto",
        description="processes that share parameters, gradients and optimizer state out among them; auto: "
        "all that compute different samples for fsdp, those of a node for hsdp, else 1",
    )
    tensor: int = placement(
        default=1, description="processes that share each layer out, slice by slice; a power of two"
    )
    pipeline: int = placement(
        default=1, ge=1, description="groups of processes that have the layers one after the other, in stages"
    )
    schedule: Literal["1f1b", "gpipe", "interleaved", "zero_bubble"] = placement(
        default="1f1b",
        description="the order of the passes in a pipeline: 1f1b holds the activations of few microbatches, "
        "interleaved gives each process every `pipeline`-th stage of `virtual.pipeline`, and so waits less; "
        "zero_bubble does so too, and makes the gradients of weights while it would wait; gpipe makes all "
        "forward passes first",
    )
    pipeline_split: Literal["measured"] | list[str] = bits(
        [],
        description="names of the blocks with which the second and later stages begin, such as `blocks.4`; "
        "default: the same number of parameters in each stage, as far as possible; measured: the same time, "
        "as measured when the run begins, and recorded",
    )
    wrap: list[str] = placement(
        [],
        description="fsdp, hsdp: names of the modules that are gathered one at a time, such as `layers.*`; "
        "default: the members of each ModuleList, else the whole module",
    )
    min_num_params: Annotated[int, Field(gt=0)] | None = placement(
        None,
        description="fsdp, hsdp: instead of `wrap`, gather modules, inner ones first, that have so many "
        "parameters, without those of modules within them that are gathered by themselves",
    )
    reshard_after_forward: bool = placement(
        default=True,
        description="fsdp, hsdp: false keeps gathered parameters from the forward to the backward pass, "
        "which takes more memory and less communication",
    )
    offload: bool = bits(
        default=False,
        description="true: the optimizer's state is in the memory of the CPU, which makes the updates; "
        "on a GPU that takes less memory and more time",
    )
    exact: bool = bits(
        default=True,
        description="true: the bits do not depend on the mesh; false: sums over processes are those of the "
        "backend, which may be faster, and a run on another mesh, or a resume there, gives other bits",
    )
    max_restarts: int = placement(
        default=3, ge=0, description="how often the processes are started again after one has died"
    )
    backend: Literal["auto", "gloo", "nccl"] = placement(
        default="auto", description="auto: nccl on CUDA, else gloo"
    )
    virtual: VirtualConfig = VirtualConfig()
    plan: PlanConfig | None = Field(
        default=None, description="which layers are split; default: what the model brings"
    )

    @field_validator("nproc", "shard", "tensor")
    @classmethod
    def _not_empty(cls, value: str | int, info: object) -> str | int:
        if getattr(info, "field_name", "") != "nproc":
            return _checked_power(value)
        if value != "auto" and (bounds(value)[0] > bounds(value)[1]):
            raise ValueError(f"the range {value} is empty: give the smaller number first")
        if value != "auto" and bounds(value)[0] < 1:
            raise ValueError(f"{value} processes train nothing: give 1 or more")
        return value

    def mesh(self, size: int) -> Mesh:
        """Return the mesh of `size` processes on all nodes together.

        Raises:
            InputError: So many form none.
        """
        if size == 1:
            return Mesh()  # whatever the config says: it computes what others would share out
        model = self.tensor * self.pipeline
        if size % model:
            raise InputError(
                f"distributed.nproc: {size} processes in all are no multiple of tensor x pipeline "
                f"({self.tensor} x {self.pipeline}); start {_near(size, model)}"
            )
        samples = size // model  # processes, or groups of them, that compute different samples
        shard = self.shard
        if shard == "auto":
            shard = {"fsdp": samples, "hsdp": max(1, samples // self.nnodes)}.get(self.strategy, 1)
        if samples % shard:
            raise InputError(
                f"distributed.shard: {shard} does not divide the {samples} processes that compute different "
                f"samples ({size} / tensor {self.tensor} / pipeline {self.pipeline})"
            )
        return Mesh(self.pipeline, samples // shard, shard, self.tensor)

    def processes(self, most: int | None = None) -> int:
        """Return the number of processes to start on this machine, the only one.

        Args:
            most: The number of processes that are left, if given; the result stays within `nproc`.
        """
        least, greatest = bounds(self.nproc)
        if greatest == 1:
            return 1
        shard = 1 if self.shard == "auto" else self.shard
        unit = self.tensor * self.pipeline * shard
        wanted = greatest if most is None else max(least, min(most, greatest))
        units = max(1, min(wanted, self.virtual.sizes.data // shard * unit) // unit)
        return unit * max(power_of_two(units), power_of_two(2 * -(-least // unit) - 1))


def bounds(nproc: int | str) -> tuple[int, int]:
    """Return the smallest and the greatest number of processes that `distributed.nproc` allows."""
    least, _, greatest = str(nproc).partition("..")
    return int(least), int(greatest or least)


def power_of_two(number: int) -> int:
    """Return the greatest power of two that is at most `number`, which is above 0."""
    return 1 << (number.bit_length() - 1)


def _checked_power(value: str | int) -> str | int:
    if isinstance(value, int) and (value < 1 or value & (value - 1)):
        raise ValueError(f"{value} is not a power of two: 1, 2, 4, 8 ...")
    return value


def _near(size: int, unit: int) -> str:
    """Return the multiples of a number on both sides of a size, in words."""
    return " or ".join(str(one) for one in (size // unit * unit, (size // unit + 1) * unit) if one)
