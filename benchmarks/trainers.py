"""The GPT example and a CNN on a folder of images, against a loop by hand, Lightning and HF Trainer.

`python benchmarks/trainers.py [gpt] [images]`: all jobs of a case train the same module on the same data in a
random order, with fused AdamW and one thread; two workers decode images, crop, flip and normalize them. Peers
are at their leanest: no logger, checkpoints or progress bar. Trainwright also journals every loss and writes
a checkpoint and a report. Each job runs in its own process and notes the time every 10 steps; its rate is
that of the median interval. Jobs take turns, and ratios are taken within each round.

It needs `pip install lightning transformers accelerate` beside what all benchmarks need.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tokens
from harness import ONE_THREAD, interval_of, machine, table, temporary_folder
from PIL import Image

INTERVAL, RATE, DECAY = 10, 3e-4, 0.1
SIDE, CROP, BATCH, WORKERS, CLASSES = 72, 64, 32, 2, 10
IMAGES = 2_000
MEAN, STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
GPT_CONFIG = tokens.CONFIG
IMAGES_CONFIG = """\
experiment: {{name: images, seed: 1}}
data:
  type: image_folder
  train_path: pictures
  transforms:
    - {{type: random_crop, size: {crop}}}
    - horizontal_flip
    - {{type: normalize, mean: [0.5, 0.5, 0.5], std: [0.25, 0.25, 0.25]}}
  workers: {workers}
model: {{type: cnn, filters: [32, 64], hidden: [64]}}
training: {{max_steps: {steps}, batch_size: {batch}, learning_rate: 3e-4, weight_decay: 0.1, threads: 1}}
evaluation: {{every_n_steps: 1000000}}
checkpoint: {{every_n_minutes: null, save_top_k: 0}}
logging: {{every_n_steps: {interval}}}
tracking: []
"""


class Job(NamedTuple):
    """What a peer trains: a module, its loss, the data, the rows of a batch, and the workers that read."""

    module: Any
    loss: Callable[[Any, Any], Any]  # of the outputs and the targets
    data: Any  # map-style, of (input, target)
    batch: int
    workers: int


class Clock:
    """Notes the time at every tenth step."""

    def __init__(self) -> None:
        self._steps = 0
        self._times: list[float] = []

    def tick(self) -> None:
        """Count a step."""
        self._steps += 1
        if self._steps % INTERVAL == 0:
            self._times.append(time.time())

    def write(self) -> None:
        """Write the times to where the harness looks for them."""
        Path("times.txt").write_text(" ".join(map(str, self._times)))


def main() -> None:
    """Run the jobs in interleaved rounds and print the table; with `--job`, be one of the peers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=[], metavar="CASE", help="gpt, images; default: both")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=300, help="steps of each run")
    parser.add_argument("--size", choices=tokens.SIZES, default="small", help="of the GPT")
    parser.add_argument("--job", choices=PEERS, help="run as this peer, in the folder of the data")
    given = parser.parse_args()
    cases = given.cases or list(CASES)
    if unknown := set(cases) - set(CASES):
        parser.error(f"there is no case {unknown.pop()}; there are: {', '.join(CASES)}")
    if given.job:
        as_peer(given.job, CASES[cases[0]](given.size), given.steps)
        return
    print(machine())
    rows = [row for case in cases for row in measured(case, given)]
    print(table(["training", "trainer", "ms per step", "best", "theirs / ours", "spread"], rows))


def measured(case: str, given: argparse.Namespace) -> list[list[str]]:
    """Return the rows of the table for a case."""
    seconds: dict[str, list[float]] = {job: [] for job in ("trainwright", *PEERS)}
    with temporary_folder() as folder:
        prepare(case, folder, given)
        for number in range(given.rounds):
            for job in list(seconds) if number % 2 else list(seconds)[::-1]:
                took = interval_of(command(job, case, given), folder, ONE_THREAD)
                seconds[job].append(took / INTERVAL)
            print(f"{case}: round {number + 1} of {given.rounds} done", file=sys.stderr)
    rows = []
    for job, values in seconds.items():
        ratios = [theirs / ours for theirs, ours in zip(values, seconds["trainwright"], strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        shown = f"{statistics.median(values) * 1e3:.2f}", f"{min(values) * 1e3:.2f}"
        rows.append([case, job, *shown, f"{statistics.median(ratios):.3f}x", f"{low:.3f} to {high:.3f}"])
    return rows


def prepare(case: str, folder: Path, given: argparse.Namespace) -> None:
    """Write the data and the config of a case."""
    if case == "gpt":
        tokens.write_text(folder / "text.txt")
        hidden, layers, heads = tokens.SIZES[given.size]
        sizes = {"hidden": hidden, "layers": layers, "heads": heads, "length": tokens.LENGTH}
        config = GPT_CONFIG.format(**sizes, batch=tokens.BATCH, steps=given.steps, interval=INTERVAL)
    else:
        write_images(folder / "pictures")
        config = IMAGES_CONFIG.format(
            crop=CROP, workers=WORKERS, batch=BATCH, steps=given.steps, interval=INTERVAL
        )
    (folder / "config.yaml").write_text(config)


def command(job: str, case: str, given: argparse.Namespace) -> list[str]:
    """Return the command of a job."""
    if job == "trainwright":
        return [sys.executable, "-m", "trainwright", "train", "config.yaml", "--quiet"]
    options = ["--job", job, "--steps", str(given.steps), "--size", given.size]
    return [sys.executable, __file__, case, *options]


def write_images(folder: Path) -> None:
    """Write JPEG files of smooth colors, in a folder for each class."""
    draw = np.random.default_rng(0)
    for number in range(IMAGES):
        small = Image.fromarray(draw.integers(0, 256, (6, 6, 3), dtype=np.uint8))
        path = folder / str(number % CLASSES) / f"{number:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        small.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(path, quality=90)


class Pictures:
    """The images as a data set that PyTorch's DataLoader reads."""

    def __init__(self, folder: Path) -> None:
        self._files = sorted(folder.glob("*/*.jpg"))

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, i: int) -> tuple[Any, int]:
        import torch

        file = self._files[i]
        with Image.open(file) as image:
            pixels = np.asarray(image.convert("RGB"))  # (SIDE, SIDE, 3)
        top, left, flip = torch.randint(SIDE - CROP + 1, (3,)).tolist()
        cut = pixels[top : top + CROP, left : left + CROP]
        cut = cut[:, ::-1] if flip % 2 else cut
        channels = torch.from_numpy(np.ascontiguousarray(cut.transpose(2, 0, 1))).float().div_(255)
        mean, std = (torch.tensor(one)[:, None, None] for one in (MEAN, STD))
        return channels.sub_(mean).div_(std), int(file.parent.name)


def gpt_job(size: str) -> Job:
    """Return the job of the language model: windows of a tensor in memory."""
    import torch
    from torch.nn import functional
    from torch.utils.data import TensorDataset

    from trainwright.frameworks.torch.models.gpt import Gpt

    text = np.fromfile("text.txt", np.uint8)[: int(tokens.TEXT_BYTES * 0.98)]
    rows = (len(text) - 1) // tokens.LENGTH
    windows = (
        torch.from_numpy(text[start : start + rows * tokens.LENGTH].reshape(rows, -1).astype(np.int64))
        for start in (0, 1)
    )  # (rows, LENGTH) each

    def loss(logits: Any, labels: Any) -> Any:
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

    return Job(Gpt(256, tokens.LENGTH, *tokens.SIZES[size]), loss, TensorDataset(*windows), tokens.BATCH, 0)


def images_job(_: str) -> Job:
    """Return the job of the images."""
    from torch.nn import functional

    from trainwright.frameworks.torch.models.cnn import Cnn

    model = Cnn((3, CROP, CROP), CLASSES)
    return Job(model, functional.cross_entropy, Pictures(Path("pictures")), BATCH, WORKERS)


def as_peer(name: str, job: Job, steps: int) -> None:
    """Train as a peer, and note the times."""
    import torch

    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(1)
    clock = Clock()

    def counted(outputs: Any, targets: Any) -> Any:
        clock.tick()
        return job.loss(outputs, targets)

    PEERS[name](job._replace(loss=counted), steps)
    clock.write()


def loader(job: Job) -> Any:
    """Return the data as shuffled batches."""
    from torch.utils.data import DataLoader

    return DataLoader(
        job.data, job.batch, shuffle=True, drop_last=True, num_workers=job.workers,
        persistent_workers=job.workers > 0,
    )  # fmt: skip


def adamw(module: Any) -> Any:
    """Return the optimizer."""
    import torch

    return torch.optim.AdamW(module.parameters(), lr=RATE, weight_decay=DECAY, fused=True)


def by_hand(job: Job, steps: int) -> None:
    """Train with a loop over a DataLoader, or over rows by index where all are in memory."""
    optimizer, losses = adamw(job.module), []
    for inputs, targets in itertools.islice(endless(job), steps):
        loss = job.loss(job.module(inputs), targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())


def endless(job: Job) -> Iterator[Any]:
    """Yield the batches of one epoch after the other."""
    import torch

    batches = loader(job) if job.workers else None
    while True:
        if batches is not None:
            yield from batches
            continue
        inputs, labels = job.data.tensors
        for ids in torch.randperm(len(inputs)).split(job.batch):
            if len(ids) == job.batch:
                yield inputs[ids], labels[ids]


def lightning(job: Job, steps: int) -> None:
    """Train with Lightning."""
    import lightning as L

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = job.module

        def training_step(self, batch: Any, _: int) -> Any:
            return job.loss(self.model(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return adamw(self.model)

    trainer = L.Trainer(max_steps=steps, max_epochs=-1, accelerator="cpu", devices=1, barebones=True)
    trainer.fit(Module(), loader(job))


def hf_trainer(job: Job, steps: int) -> None:
    """Train with the Trainer of Hugging Face Transformers."""
    import torch
    from transformers import Trainer, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = job.module

        def forward(self, features: Any, labels: Any) -> dict[str, Any]:
            outputs = self.model(features)
            return {"loss": job.loss(outputs, labels), "logits": outputs}

    def collate(rows: list[Any]) -> dict[str, Any]:
        features, labels = zip(*rows, strict=True)
        return {"features": torch.stack(features), "labels": torch.as_tensor(np.stack(labels))}

    arguments = TrainingArguments(
        "hf", max_steps=steps, per_device_train_batch_size=job.batch, learning_rate=RATE, weight_decay=DECAY,
        optim="adamw_torch_fused", lr_scheduler_type="constant", max_grad_norm=0.0, use_cpu=True,
        disable_tqdm=True, report_to="none", save_strategy="no", logging_strategy="no",
        dataloader_pin_memory=False, dataloader_num_workers=job.workers, dataloader_drop_last=True,
        dataloader_persistent_workers=job.workers > 0,
    )  # fmt: skip
    Trainer(Model(), arguments, data_collator=collate, train_dataset=job.data).train()


CASES: dict[str, Callable[[str], Job]] = {"gpt": gpt_job, "images": images_job}
PEERS: dict[str, Callable[[Job, int], None]] = {
    "by hand": by_hand,
    "lightning": lightning,
    "hf trainer": hf_trainer,
}

if __name__ == "__main__":
    main()
