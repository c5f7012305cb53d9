"""The estimates of a config: on its own mesh, and on the best other ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from trainwright.config.distributed import power_of_two
from trainwright.errors import InputError, ModelError
from trainwright.frameworks.base import LearnerInputs
from trainwright.frameworks.torch.parallel.automatic import memory_here, shards_for
from trainwright.frameworks.torch.parallel.pipeline.schedule import schedule, undivided
from trainwright.frameworks.torch.planning.memory import Chunk, Share, Spread, memory_of
from trainwright.frameworks.torch.planning.model import Shape, Sliced, Subject
from trainwright.frameworks.torch.planning.stages import Place, chunk_at, places_of, shapes_at
from trainwright.frameworks.torch.planning.trace import Trace
from trainwright.frameworks.torch.process import device_of
from trainwright.records.mesh_estimate import Machines, MeshEstimate, MeshPlan
from trainwright.world import Mesh

_OTHERS = 3
_NAMES = ("ddp", "fsdp", "hsdp", "auto")


def plan(
    inputs: LearnerInputs, machines: Machines, *, is_free: bool, refusals: Sequence[str] = ()
) -> MeshPlan:
    """Return the estimates of a config.

    Args:
        inputs: What a learner would be built from.
        machines: The processes, and their machines.
        is_free: Whether the virtual mesh follows the mesh, since the config says nothing of it.
        refusals: Why the config cannot train in so many processes; another mesh is then proposed.

    Raises:
        InputError: The config's own mesh is impossible, and there are no `refusals`, or no other mesh.
    """
    return Planner(inputs, machines, is_free=is_free, refusals=refusals).plan()


class Planner:
    """Estimates meshes for a model; see `plan`."""

    def __init__(
        self, inputs: LearnerInputs, machines: Machines, *, is_free: bool, refusals: Sequence[str] = ()
    ) -> None:
        self._config = inputs.config
        self._device = device_of(inputs.config.training.device)
        # What is offloaded lies in other memory, unless that of this machine is all there is.
        self._offloads = inputs.config.distributed.offload and (
            machines.memory is not None or self._device.type != "cpu"
        )
        if machines.memory is None:
            machines = replace(machines, memory=float(memory_here(self._device, machines.per_machine)))
        assert machines.memory is not None
        self._machines, self._memory = machines, machines.memory
        self._is_free, self._refusals = is_free, refusals
        self._subject = Subject(inputs)
        training = inputs.config.training
        self._batch, self._microbatch = training.batch_size, training.largest_microbatch

    def plan(self) -> MeshPlan:
        """Return the estimates."""
        distributed, machines = self._config.distributed, self._machines
        if distributed.strategy not in _NAMES:
            raise InputError(
                f"distributed.strategy: {distributed.strategy} is a plugin's, whose memory is not known; "
                f"plan knows {', '.join(_NAMES)}"
            )
        own = self._nearest() if self._refusals else self._own()
        others, refused = [], []
        for candidate in self._candidates():
            if own is not None and candidate == own.mesh:
                continue
            try:
                others.append(self.estimate(candidate, self._virtual(candidate)))
            except (InputError, ModelError) as error:
                refused.append(str(error).splitlines()[0])
        others.sort(key=lambda one: (not one.fits, one.seconds if one.fits else one.memory.total))
        refused = list(dict.fromkeys(refused))
        if own is None:
            if not others:
                reasons = "; ".join([*self._refusals, *refused])
                raise InputError(f"no mesh of {machines.processes} processes is possible: {reasons}")
            own = others.pop(0)
        parameters = sum(one.elements for one in self._subject.sliced(1, 1).shapes)
        return MeshPlan(machines, own, others[:_OTHERS], parameters, refused, self._changes(own))

    def _own(self) -> MeshEstimate:
        """Return the estimate of the config's mesh."""
        distributed = self._config.distributed
        mesh = distributed.mesh(self._machines.processes)
        if distributed.strategy == "auto":
            mesh = self._automatic(mesh)
        return self.estimate(mesh, distributed.virtual.sizes)

    def _nearest(self) -> MeshEstimate | None:
        """Return the estimate of the config's mesh on another virtual mesh; None if there is none."""
        try:
            mesh = self._config.distributed.mesh(self._machines.processes)
            samples = mesh.data * mesh.shard
            if samples != power_of_two(samples) or samples > self._batch:
                return None
            return self.estimate(mesh, self._virtual(mesh))
        except InputError:  # or a ModelError
            return None

    def _changes(self, own: MeshEstimate) -> list[str]:
        """Return why the config's own mesh is impossible, and what makes it the proposed one, in words."""
        if not self._refusals:
            return []
        distributed, size = self._config.distributed, self._machines.processes
        asked: dict[str, tuple[object, object]] = {
            "tensor": (distributed.tensor, own.mesh.tensor),
            "pipeline": (distributed.pipeline, own.mesh.pipeline),
        }
        if distributed.strategy != "auto":
            asked["strategy"] = distributed.strategy, own.strategy
        if distributed.shard != "auto" and own.strategy != "ddp":
            asked["shard"] = distributed.shard, own.mesh.shard
        if not self._is_free:
            had, now = distributed.virtual.sizes._asdict(), own.virtual._asdict()
            asked |= {f"virtual.{axis}": (had[axis], now[axis]) for axis in ("data", "tensor", "pipeline")}
        changed = [f"distributed.{key}: {now} (not {had})" for key, (had, now) in asked.items() if had != now]
        proposal = f"with {size} processes, {', '.join(changed)} would be possible"
        return [*self._refusals, *([proposal] if changed else [])]

    def _automatic(self, mesh: Mesh) -> Mesh:
        """Return the mesh that `strategy: auto` chooses."""
        samples = mesh.data * mesh.shard
        count = sum(one.size for one in self._subject.sliced(1, 1).shapes) / (mesh.tensor * mesh.pipeline)
        shard = shards_for(count, self._memory, samples)
        return mesh._replace(data=samples // shard, shard=shard)

    def _candidates(self) -> Iterator[Mesh]:
        """Yield the meshes of so many processes that may be possible."""
        size, per_machine = self._machines.processes, self._machines.per_machine
        tensor = 1
        while tensor <= min(size, per_machine):
            for pipeline in range(1, min(size, max(1, len(self._subject.blocks))) + 1):
                samples, left = divmod(size, tensor * pipeline)
                if left or samples != power_of_two(max(1, samples)) or samples > self._batch:
                    continue
                near = min(samples, max(1, per_machine // tensor))  # processes of one machine
                for shard in sorted({1, near, samples}):
                    yield Mesh(pipeline, samples // shard, shard, tensor)
            tensor *= 2

    def _virtual(self, mesh: Mesh) -> Mesh:
        """Return the virtual mesh on which a mesh would train: the config's, if that is possible."""
        asked, needed = self._config.distributed.virtual.sizes, mesh._replace(data=mesh.data * mesh.shard)
        sizes = {
            axis: want if self._is_free or have % want else have
            for axis in ("pipeline", "data", "tensor")
            if (want := getattr(needed, axis)) and (have := getattr(asked, axis))
        }
        return Mesh(**sizes)

    def estimate(self, mesh: Mesh, virtual: Mesh) -> MeshEstimate:
        """Return the estimate of a mesh.

        Raises:
            ModelError: The model cannot be divided so.
        """
        model = self._subject.sliced(virtual.tensor, mesh.tensor)
        part = -(-self._batch // virtual.data)  # samples of a virtual rank
        rows = min(part, self._microbatch)
        trace, passes = model.trace(rows), -(-part // rows)
        parts = virtual.data // (mesh.data * mesh.shard)
        stages = self._subject.stages(virtual.pipeline)
        places = [[Place(0, len(self._subject.blocks), True)]]
        name: str = self._config.distributed.schedule
        if mesh.shard > 1 or self._config.training.activation_checkpointing:
            name = undivided(name, virtual.pipeline, mesh.pipeline)
        if stages is not None and mesh.pipeline > 1:
            places = places_of(stages, mesh.pipeline, name)
        passed = schedule(name, len(places[0]) * len(places), len(places), parts * passes)
        shapes = [shapes_at(some, model, trace) for some in places]
        memories = []
        for number, some in enumerate(shapes):
            chunks = [Chunk(trace.moments, 0.0)]
            if mesh.pipeline > 1:
                chunks = [chunk_at(place, trace) for place in places[number]]
            # A stage is here the number of one of the places of a process.
            actions = [one._replace(stage=one.stage // len(places)) for one in passed.actions[number]]
            share = Share(some, chunks, actions, parts, passes, model.update, model.buffers)
            memories.append(memory_of(share, self._spread(mesh, virtual)))
        memory = max(memories, key=lambda one: one.total)
        sent = self._sent(mesh, model, trace, places, shapes, rows, parts, passes)
        work = trace.moments[-1].work * parts * passes / mesh.pipeline
        seconds = work / self._machines.speed / (1 - passed.bubble) + self._seconds(mesh, sent)
        return MeshEstimate(
            mesh,
            virtual,
            "ddp" if mesh.shard == 1 else "fsdp" if mesh.data == 1 else "hsdp",
            memory,
            memories.index(memory),
            memory.total <= self._memory,
            sent,
            passed.bubble,
            seconds,
            not self._is_free and virtual != self._config.distributed.virtual.sizes,
        )

    def _spread(self, mesh: Mesh, virtual: Mesh) -> Spread:
        return Spread(
            mesh.data,
            mesh.shard,
            mesh.pipeline > 1,
            self._config.distributed.exact,
            fills=virtual.size > 1 and self._device.type == "cpu",
            averages=self._config.training.ema is not None,
            offloads=self._offloads,
            reshards=self._config.distributed.reshard_after_forward,
        )

    def _sent(
        self,
        mesh: Mesh,
        model: Sliced,
        trace: Trace,
        places: list[list[Place]],
        shapes: list[dict[int, Shape]],
        rows: int,
        parts: int,
        passes: int,
    ) -> dict[str, float]:
        """Return the bytes that the busiest process sends in a step, by axis."""
        sent: dict[str, float] = {}
        state = max(sum(one.size for one in some.values()) for some in shapes)
        trained = max(sum(one.size for one in some.values() if one.is_trained) for some in shapes)
        if mesh.data > 1:  # a reduce-scatter and an all-gather
            sent["data"] = 2 * (mesh.data - 1) / mesh.data * trained / mesh.shard
        if mesh.shard > 1:  # an all-gather or two for each pass, a reduce-scatter for each virtual rank
            gathers = 2 if self._config.distributed.reshard_after_forward else 1
            share = (mesh.shard - 1) / mesh.shard
            sent["shard"] = share * (gathers * parts * passes * state + parts * trained)
        if mesh.tensor > 1:
            most = max(sum(place.end - place.first for place in some) for some in places)
            blocks = most / max(1, len(self._subject.blocks))
            sent["tensor"] = parts * passes * model.sent_for(rows) * blocks
        if mesh.pipeline > 1:  # hidden states, their gradients, and gradients that stages share
            hidden = max(
                sum(
                    (0.0 if place.is_last else trace.hidden[place.end])
                    + (trace.hidden[place.first] if place.first else 0.0)
                    for place in some
                )
                for some in places
            )
            shared = sum(
                shape.size
                for index, shape in enumerate(model.shapes)
                if sum(index in some for some in shapes) > 1
            )
            sent["pipeline"] = parts * passes * hidden + parts * shared
        return sent

    def _seconds(self, mesh: Mesh, sent: dict[str, float]) -> float:
        """Return the time of communication, if nothing is hidden behind computation."""
        machines, seconds, inner = self._machines, 0.0, 1
        for axis in reversed(mesh._fields):  # neighbouring ranks differ along the last axis
            inner *= getattr(mesh, axis)
            is_near = inner <= machines.per_machine
            bandwidth = machines.bandwidth_within if is_near else machines.bandwidth_between
            seconds += sent.get(axis, 0.0) / bandwidth
        return seconds
