"""Samples per second of shards, against `webdataset` and `datasets`: `python benchmarks/streams.py`.

One process reads shuffled batches, and decodes the same fields: PNG images of 32 x 32 and their classes from
tar files; rows of 64 floats and a class from Parquet files. Trainwright shuffles all samples; webdataset the
shards and a buffer of 1,000 samples; datasets all rows, or the shards and a buffer where it streams. The
index of the shards (ours) and the Arrow copy (ours, datasets') are made before. Last, the time until the
first batch from the middle of 1,000,000 rows: ours computes the order.

It needs `pip install webdataset datasets` beside what all benchmarks need.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from harness import machine, table, temporary_folder
from PIL import Image

from trainwright.config import load
from trainwright.datasets.base import Draw, SampleSplit
from trainwright.order import SampleOrder
from trainwright.runs.catalog import Catalog
from trainwright.runs.wiring import load_data

SHARDS, BATCH, SEED = 8, 256, 1
Batches = Callable[[int], Iterator[Any]]  # of an epoch


def main() -> None:
    """Run the readers in interleaved rounds and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--images", type=int, default=8_000)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--middle", type=int, default=1_000_000, help="rows of the stream that is resumed")
    arguments = parser.parse_args()
    print(machine())
    with temporary_folder() as folder:
        os.environ.update(TRAINWRIGHT_CACHE=str(folder / "cache"), HF_HOME=str(folder / "hub"))
        os.environ["HF_HUB_OFFLINE"] = "1"
        os.chdir(folder)
        write_images(arguments.images)
        write_rows("rows", arguments.rows)
        rows = [
            *compared("PNG images in tar files", images(), arguments.images, arguments.rounds),
            *compared("rows in Parquet files", parquet(), arguments.rows, arguments.rounds),
        ]
        print(table(["shards", "reader", "samples/s", "best", "ours / theirs", "spread"], rows))
        write_rows("many", arguments.middle)
        begun = time.perf_counter()
        batches = ours("many-*.parquet", arguments.middle, type="parquet", streaming=True)
        opened = time.perf_counter()
        next(batches(0, arguments.middle // 2))
        first = time.perf_counter()
        print(
            f"\n{arguments.middle:,} rows: the first batch from the middle {first - opened:.3f} s after the "
            f"shards were opened; opening them took {opened - begun:.1f} s with the copy to Arrow",
        )


def compared(name: str, readers: dict[str, Batches], count: int, rounds: int) -> list[list[str]]:
    """Return the rows of the table for the readers of one kind of shards; ours is the first."""
    rates: dict[str, list[float]] = {reader: [] for reader in readers}
    for number in range(rounds):
        order = list(readers) if number % 2 else list(readers)[::-1]
        for reader in order:
            begun, seen = time.perf_counter(), 0
            for batch in readers[reader](number):
                seen += len(batch)
            assert seen == count, f"{reader} gave {seen} of {count} samples"
            rates[reader].append(count / (time.perf_counter() - begun))
        print(f"{name}: round {number + 1} of {rounds} done", file=sys.stderr)
    own = next(iter(rates.values()))
    rows = []
    for reader, values in rates.items():
        ratios = [mine / theirs for mine, theirs in zip(own, values, strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4) if rounds > 1 else ratios * 3
        shown = f"{statistics.median(values):,.0f}", f"{max(values):,.0f}"
        rows.append([name, reader, *shown, f"{statistics.median(ratios):.2f}x", f"{low:.2f} to {high:.2f}"])
    return rows


def images() -> dict[str, Batches]:
    """Return the readers of the tar files."""
    import webdataset as wds

    urls = sorted(map(str, Path.cwd().glob("images-*.tar")))

    def theirs(epoch: int) -> Iterator[Any]:
        stream = wds.WebDataset(urls, shardshuffle=SHARDS, seed=epoch, empty_check=False).shuffle(1000)
        for pixels, _ in stream.decode("torchrgb8").to_tuple("png", "cls").batched(BATCH):
            yield pixels

    own = ours("images-*.tar", None, type="webdataset", target="cls", images="torchrgb8")
    return {"trainwright": own, "webdataset": theirs}


def parquet() -> dict[str, Batches]:
    """Return the readers of the Parquet files."""
    import datasets

    files = sorted(map(str, Path.cwd().glob("rows-*.parquet")))
    datasets.disable_progress_bars()
    mapped = datasets.load_dataset("parquet", data_files=files, split="train").with_format("numpy")

    def shuffled(epoch: int) -> Iterator[Any]:
        for batch in mapped.shuffle(seed=epoch).iter(batch_size=BATCH):
            yield batch["values"]

    streamed = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)

    def buffered(epoch: int) -> Iterator[Any]:
        stream = streamed.with_format("numpy").shuffle(seed=epoch, buffer_size=1000)
        for batch in stream.iter(batch_size=BATCH):
            yield batch["values"]

    own = ours("rows-*.parquet", None, type="parquet", streaming=True)
    return {"trainwright": own, "datasets": shuffled, "datasets, streaming": buffered}


def ours(pattern: str, count: int | None, **data: Any) -> Any:
    """Return our batches of an epoch, from a sample on."""
    section = {"train_path": pattern, "val_path": pattern, "target": "label", **data}
    config = load({"data": section, "model": {"type": "mlp"}}, adapters=Catalog()).config
    split = load_data(config).splits["train"]
    assert isinstance(split, SampleSplit)
    order = SampleOrder(count or len(split), BATCH, SEED)

    def batches(epoch: int, start: int = 0) -> Iterator[Any]:
        first = epoch * order.steps_per_epoch
        for step in range(first + start // BATCH, first + order.steps_per_epoch):
            batch = split.read(order.batch(step), Draw(SEED, epoch))
            yield batch["features"]

    return batches


def write_images(count: int) -> None:
    """Write tar files of PNG images and their classes."""
    draw = np.random.default_rng(0)
    for shard in range(SHARDS):
        with tarfile.open(f"images-{shard:03d}.tar", "w") as tar:
            for number in range(shard, count, SHARDS):
                smooth = np.kron(
                    draw.integers(0, 256, (8, 8, 3), dtype=np.uint8), np.ones((4, 4, 1), np.uint8)
                )
                png = io.BytesIO()
                Image.fromarray(smooth).save(png, "png")
                for name, content in (("png", png.getvalue()), ("cls", str(number % 10).encode())):
                    entry = tarfile.TarInfo(f"{number:07d}.{name}")
                    entry.size = len(content)
                    tar.addfile(entry, io.BytesIO(content))


def write_rows(name: str, count: int) -> None:
    """Write Parquet files of rows with 64 floats and a class."""
    draw = np.random.default_rng(0)
    for shard in range(SHARDS):
        rows = len(range(shard, count, SHARDS))
        values = draw.standard_normal((rows, 64), dtype=np.float32)
        columns = {
            "values": pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), 64),
            "label": pa.array(draw.integers(0, 10, rows)),
        }
        pq.write_table(pa.table(columns), f"{name}-{shard:03d}.parquet", row_group_size=10_000)


if __name__ == "__main__":
    main()
