"""Commits, restarts and traffic of many processes, simulated: `python benchmarks/scale.py`.

The processes train, save, fail and begin again, event by event. Every assumption is an argument.
`--measure` starts real processes on this machine instead, and times how they find each other and agree.
docs/scale.md explains the tables.
"""

from __future__ import annotations

import argparse
import heapq
import math
import multiprocessing
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from harness import machine, table

HOUR = 3600.0
# Requests of a commit in a store, beside a put and a delete for each file of the framework's state: the
# loop's state, the manifest and the journal; the log. `tests/test_scale.py` counts them.
COMMIT = {"list": 3, "put": 3, "put_if_absent": 1, "delete": 3}
BEAT = {"put": 1, "list": 1}  # every 15 s, by the main process alone
BEAT_SECONDS = 15.0
LISTED = 1000  # keys that one request of a list returns
PART_BYTES = 5 << 20  # of a large object, which is put in parts


@dataclass(frozen=True)
class Cluster:
    """What is assumed; seconds, bytes, and bytes per second."""

    ranks: int = 1000
    ranks_per_node: int = 8
    node_mtbf_hours: float = 4000.0  # Kokolis et al. 2024 count 6.5 failures in 1,000 days of such nodes
    failure_shape: float = 1.0  # of a Weibull distribution; 1: failures come at random
    state_bytes: float = 14e9  # parameters and Adam's moments of 1.2 billion parameters in fp32
    save_seconds: float = 2.0  # that training waits for a save
    files: int = 8  # of a checkpoint: the processes of the main one's machine write a share each
    shards: int = 0  # processes that share the state out and write a part each; 0: all have the whole state
    reads_parts: int = 0  # 1: a machine reads and verifies the parts of its own shards alone; not built
    node_rate: float = 2e9  # to the store and from it
    store_rate: float = 100e9  # of the store in total
    hash_rate: float = 1.5e9  # of SHA-256 in one thread: files are hashed when written, read and restored
    requests_rate: float = 3500.0  # that the store serves: what S3 promises for puts under one prefix
    latency: float = 0.03  # of a request
    detect_seconds: float = 10.0
    start_seconds: float = 60.0  # from a new process to its first step, without what follows
    rendezvous_seconds: float = 0.005  # for each node
    connect_seconds: float = 20e-6  # for each pair of processes, all set up through one store of keys
    spread: float = 0.03  # of step times: the sigma of a log-normal distribution
    gradient_bytes: float = 4.7e9
    bucket_bytes: float = 25 << 20
    link_rate: float = 25e9  # of a process to the others
    message_seconds: float = 5e-6  # of a message of gradients, apart from its bytes
    hop_seconds: float = 30e-6  # of a small message over TCP, by which processes agree

    @property
    def nodes(self) -> int:
        """The number of machines."""
        return math.ceil(self.ranks / self.ranks_per_node)

    @property
    def written(self) -> int:
        """The number of files of the framework's state: each shard writes its weights and its moments."""
        return 2 * min(self.shards, self.ranks) if self.shards else self.files

    @property
    def restored_bytes(self) -> float:
        """The bytes that a machine reads when the processes begin again."""
        share = self.ranks_per_node / min(self.shards, self.ranks) if self.shards and self.reads_parts else 1
        return self.state_bytes * min(1, share)

    @property
    def write_rate(self) -> float:
        """The bytes per second of a checkpoint: of the machines that write, which share their bandwidth."""
        savers = min(self.shards, self.ranks) if self.shards else self.files
        machines = math.ceil(savers / self.ranks_per_node) if self.shards else 1
        return min(savers * self.hash_rate, machines * self.node_rate, self.store_rate)

    @property
    def mtbf(self) -> float:
        """Mean seconds between two failures of the run."""
        return self.node_mtbf_hours * HOUR / self.nodes

    @property
    def write_seconds(self) -> float:
        """From a save to its commit: the savers send their parts, and the store serves the requests."""
        served = requests_per_commit(self) / self.requests_rate
        sent = self.state_bytes / self.write_rate
        return max(sent, served) + sum(COMMIT.values()) * self.latency

    @property
    def restart_seconds(self) -> float:
        """From a failure to the next step: the main process verifies the files, every machine reads all."""
        read = self.restored_bytes / min(self.node_rate, self.store_rate / self.nodes)
        files = 2 * self.ranks_per_node if self.shards and self.reads_parts else self.written
        gets = self.nodes * (files + 2) / self.requests_rate
        hashed = 2 * self.state_bytes / (self.shards if self.reads_parts else 1) / self.hash_rate
        return self.detect_seconds + self.start_seconds + self.joining_seconds + hashed + max(read, gets)

    @property
    def joining_seconds(self) -> float:
        """To find each other: agents in turn, then each process with each other one."""
        return self.rendezvous_seconds * self.nodes + self.connect_seconds * self.ranks * (self.ranks - 1) / 2

    @property
    def messages(self) -> int:
        """Messages that a process sends in a step: a part of each bucket to each other one, and its sum."""
        return 2 * (self.ranks - 1) * math.ceil(self.gradient_bytes / self.bucket_bytes)

    @property
    def transfer_seconds(self) -> float:
        """The bytes of these messages: as many as those of a ring."""
        return 2 * self.gradient_bytes * (self.ranks - 1) / self.ranks / self.link_rate

    @property
    def agreement_seconds(self) -> float:
        """To agree: the sizes of all small values, then the values, go around a ring."""
        return 2 * (self.ranks - 1) * self.hop_seconds

    @property
    def slowdown(self) -> float:
        """Mean of the slowest of all processes in a step, in times of the median one."""
        return slowest(self.ranks, self.spread)


def young(save: float, mtbf: float) -> float:
    """Return the interval of Young (1974), in seconds."""
    return math.sqrt(2 * save * mtbf)


def daly(save: float, mtbf: float) -> float:
    """Return the interval of Daly (2006, equation 37), in seconds."""
    half = save / (2 * mtbf)
    if half >= 1:
        return mtbf
    return young(save, mtbf) * (1 + math.sqrt(half) / 3 + half / 9) - save


def expected_overhead(interval: float, cluster: Cluster) -> float:
    """Return the time beyond training, as a share of it, where writes take no time (Daly 2006, eq. 13)."""
    mtbf = cluster.mtbf
    wall = (
        mtbf * math.exp(cluster.restart_seconds / mtbf) * math.expm1((interval + cluster.save_seconds) / mtbf)
    )
    return wall / interval - 1


def slowest(count: int, spread: float, points: int = 2000) -> float:
    """Return the mean of the greatest of some log-normal step times, in times of their median."""
    normal = statistics.NormalDist()
    quantiles = ((i + 0.5) / points for i in range(points))
    return statistics.fmean(math.exp(spread * normal.inv_cdf(u ** (1 / count))) for u in quantiles)


# -- the simulation


@dataclass
class Usage:
    """Where the time of a simulated run went, in seconds, and what happened."""

    trained: float = 0.0
    saving: float = 0.0
    restarting: float = 0.0
    lost: float = 0.0
    commits: int = 0
    replaced: int = 0
    failures: int = 0

    @property
    def overhead(self) -> float:
        """Time beyond training, as a share of it."""
        return (self.saving + self.restarting + self.lost) / self.trained


class Simulation:
    """One run: it trains for an interval, waits for a save, which is then written while it trains on.

    A save that waits to be written is replaced by a newer one. A failure loses what was trained since the
    newest checkpoint that was committed, at whatever moment it comes, in a restart, too.
    """

    def __init__(self, cluster: Cluster, interval: float, seed: int) -> None:
        self.cluster, self.interval = cluster, interval
        self.usage = Usage()
        self._random = random.Random(seed)
        self._write, self._restart = cluster.write_seconds, cluster.restart_seconds
        self._scale = cluster.mtbf / math.gamma(1 + 1 / cluster.failure_shape)
        self._events: list[tuple[float, int, str, int]] = []
        self._count = self._life = 0
        self._now = self._at = self._began = 0.0  # time; position, and when the stretch from there began
        self._committed = 0.0
        self._writing: float | None = None  # the position that is being written
        self._waiting: float | None = None

    def run(self, seconds: float) -> Usage:
        """Simulate until so much is trained and saved."""
        usage = self.usage
        self._fail_later()
        self._train()
        while self._at < seconds:
            self._now, _, kind, life = heapq.heappop(self._events)
            if kind == "failure":
                self._fail()
            elif life == self._life:  # else a failure came before
                getattr(self, f"_{kind}")()
        usage.trained = self._at
        usage.lost = self._now - usage.trained - usage.saving - usage.restarting
        return usage

    def _later(self, seconds: float, kind: str) -> None:
        self._count += 1
        heapq.heappush(self._events, (self._now + seconds, self._count, kind, self._life))

    def _fail_later(self) -> None:
        self._later(self._random.weibullvariate(self._scale, self.cluster.failure_shape), "failure")

    def _train(self) -> None:
        self._is_restarting, self._began = False, self._now
        self._later(self.interval, "save")

    def _save(self) -> None:
        self._at += self.interval
        self._save_began = self._now
        self._later(self.cluster.save_seconds, "saved")

    def _saved(self) -> None:
        self.usage.saving += self._now - self._save_began
        if self._waiting is not None:
            self.usage.replaced += 1
        self._waiting = self._at
        self._start_writing()
        self._train()

    def _start_writing(self) -> None:
        if self._writing is None and self._waiting is not None:
            self._writing, self._waiting = self._waiting, None
            self._later(self._write, "written")

    def _written(self) -> None:
        assert self._writing is not None
        self._committed, self._writing = self._writing, None
        self.usage.commits += 1
        self._start_writing()

    def _fail(self) -> None:
        usage = self.usage
        usage.failures += 1
        if self._is_restarting:
            usage.restarting += self._now - self._began
        self._life += 1
        self._at, self._writing, self._waiting = self._committed, None, None
        self._is_restarting, self._began = True, self._now
        self._later(self._restart, "restarted")
        self._fail_later()

    def _restarted(self) -> None:
        self.usage.restarting += self._now - self._began
        self._train()


def simulate(cluster: Cluster, interval: float, hours: float, seed: int = 0) -> Usage:
    """Simulate a run of so many hours of training; the same failures come for the same seed."""
    return Simulation(cluster, interval, seed).run(hours * HOUR)


_MOST_SAVES = 30_000
FACTORS = (0.25, 0.5, 0.7, 0.85, 1.0, 1.2, 1.4, 2.0, 4.0)


def scan(cluster: Cluster, failures: int, seed: int = 0) -> dict[float, float]:
    """Return the simulated overhead at some multiples of Daly's interval, of about so many failures each.

    Where failures are rare, there are fewer, as all the saves between them take time to simulate.
    """
    best = daly(cluster.save_seconds, cluster.mtbf)
    hours = min(failures * cluster.mtbf, _MOST_SAVES * best) / HOUR
    return {factor: simulate(cluster, factor * best, hours, seed).overhead for factor in FACTORS}


# -- what the tables show


def requests_per_commit(cluster: Cluster, in_store: int = 0) -> int:
    """Return the requests of a commit: new files in parts, old ones deleted, and what is counted above."""
    files = cluster.written
    parts = max(files, math.ceil(cluster.state_bytes / PART_BYTES))
    pages = math.ceil(max(1, in_store or 3 * files) / LISTED) - 1  # further pages of the longest list
    return parts + files + sum(COMMIT.values()) + pages


def rows_of(clusters: Sequence[Cluster], failures: int) -> Iterator[list[str]]:
    """Yield the rows of the table, one for each quantity."""
    columns = [_column(cluster, failures) for cluster in clusters]
    for name in columns[0]:
        yield [name, *(column[name] for column in columns)]


def _column(cluster: Cluster, failures: int) -> dict[str, str]:
    save, mtbf = cluster.save_seconds, cluster.mtbf
    interval = max(daly(save, mtbf), cluster.write_seconds)
    usage = simulate(cluster, interval, min(failures * mtbf, _MOST_SAVES * interval) / HOUR)
    overheads = scan(cluster, failures)
    best = min(overheads, key=overheads.__getitem__)
    per_hour = HOUR / (interval + save)
    month = 30 * 24 * HOUR
    return {
        "machines": f"{cluster.nodes:,}",
        "hours between two failures": f"{mtbf / HOUR:,.1f}",
        "restarts in 30 days": f"{month / mtbf:,.0f}",
        "seconds to find each other": f"{cluster.joining_seconds:,.1f}",
        "seconds from failure to next step": f"{cluster.restart_seconds:,.0f}",
        "seconds from save to commit": f"{cluster.write_seconds:,.1f}",
        "interval by Young, minutes": f"{young(save, mtbf) / 60:,.1f}",
        "interval by Daly, minutes": f"{daly(save, mtbf) / 60:,.1f}",
        "best interval in the simulation, minutes": f"{best * daly(save, mtbf) / 60:,.1f}",
        "overhead there": f"{overheads[best]:.2%}",
        "overhead at Daly's interval": f"{overheads[1.0]:.2%}",
        "of it saves": f"{usage.saving / usage.trained:.2%}",
        "of it lost work": f"{usage.lost / usage.trained:.2%}",
        "of it restarts": f"{usage.restarting / usage.trained:.2%}",
        "commits per hour": f"{per_hour:,.1f}",
        "GB written per hour": f"{per_hour * cluster.state_bytes / 1e9:,.0f}",
        "requests of a commit": f"{requests_per_commit(cluster):,}",
        "requests per hour, heartbeats included": f"{_requests_per_hour(cluster, per_hour):,.0f}",
        "GB read at a restart": f"{cluster.nodes * cluster.restored_bytes / 1e9:,.0f}",
        "messages of a process in a step": f"{cluster.messages:,}",
        "seconds of these messages": f"{cluster.messages * cluster.message_seconds:,.2f}",
        "seconds of their bytes": f"{cluster.transfer_seconds:,.2f}",
        "seconds to agree": f"{cluster.agreement_seconds:,.3f}",
        "seconds between two agreements": f"{max(0.5, 50 * cluster.agreement_seconds):,.1f}",
        "slowest of all in a step": f"{cluster.slowdown:.3f}x",
    }


def _requests_per_hour(cluster: Cluster, commits: float) -> float:
    return commits * requests_per_commit(cluster) + HOUR / BEAT_SECONDS * sum(BEAT.values())


# -- what is measured


def _join(rank: int, size: int, folder: str, times: int, answers: Any) -> None:
    """Join the processes, agree some times, and put the seconds of both into `answers`."""
    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.FileStore(f"{folder}/{size}", size)  # type: ignore[attr-defined]
    began = time.perf_counter()
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    joined = time.perf_counter() - began
    values, seconds = [None] * size, []
    for _ in range(times):
        began = time.perf_counter()
        dist.all_gather_object(values, (None, None, rank, None, False, None, 0.0))
        seconds.append(time.perf_counter() - began)
    answers.put((joined, statistics.median(seconds)))
    dist.destroy_process_group()


def measure(sizes: Sequence[int], times: int = 30) -> str:
    """Return a table of how long processes of this machine take to find each other, and to agree."""
    import torch  # forked, so that it is imported once

    torch.set_num_threads(1)
    context, rows = multiprocessing.get_context("fork"), []
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            answers = context.Queue()
            arguments = [(rank, size, folder, times, answers) for rank in range(size)]
            processes = [context.Process(target=_join, args=one) for one in arguments]
            for process in processes:
                process.start()
            measured = [answers.get(timeout=300) for _ in processes]
            for process in processes:
                process.join()
            joined, agreed = (max(values) for values in zip(*measured, strict=True))
            rows.append([str(size), f"{joined:.2f} s", f"{1000 * agreed:.2f} ms"])
    return table(["processes", "find each other", "agree"], rows)


def main() -> None:
    """Print the tables; each assumption is an option."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", help="numbers of processes")
    parser.add_argument("--failures", type=int, default=1500, help="simulated failures of each interval")
    parser.add_argument("--measure", action="store_true", help="time real processes on this machine")
    for field in fields(Cluster):
        if field.name != "ranks":
            name = f"--{field.name.replace('_', '-')}"
            parser.add_argument(name, type=type(field.default), default=field.default)
    arguments = vars(parser.parse_args())
    if arguments["measure"]:
        print(machine(), measure(arguments["sizes"] or [2, 4, 8, 16, 32]), sep="\n\n")
        return
    assumed = Cluster(**{name: value for name, value in arguments.items() if name in Cluster.__annotations__})
    clusters = [replace(assumed, ranks=size) for size in arguments["sizes"] or [100, 1000, 10_000]]
    print("Assumed:", ", ".join(f"{one.name} {getattr(assumed, one.name):g}" for one in fields(Cluster)[1:]))
    print()
    rows = rows_of(clusters, arguments["failures"])
    print(table(["", *(f"{cluster.ranks:,} processes" for cluster in clusters)], list(rows)))


if __name__ == "__main__":
    main()
