"""All that is measured on a GPU, in under 10 minutes: `python benchmarks/gpu.py` prints the tables.

- GPT-2 124M in bf16: tokens per second and model FLOPs utilisation beside the same module in a plain loop
  after nanoGPT's: autocast, fused AdamW, windows of a tensor on the device. Eager, and once compiled.
- A step of a small model, beside a loop by hand, and one that replays a CUDA graph.
- Runs in fp16 and bf16, and of XGBoost, LightGBM, CatBoost and Keras, killed by SIGKILL after a save and
  resumed: whether the digest is that of a run that was not killed.

Without a GPU it ends with exit code 2; `--device cpu` runs it in a tiny size, to see that it works.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from harness import interval_of, machine, table, temporary_folder
from tokens import write_text

INTERVAL, VOCABULARY, SAVE_AT = 10, 50304, 20
SIZES = {"cuda": (768, 12, 12, 1024, 16), "cpu": (64, 2, 2, 64, 4)}  # hidden, layers, heads, length, batch
ROWS, FEATURES, SMALL_BATCH = 4096, 64, 64
PEAK_FLOPS = {"H100": 989e12, "H200": 989e12, "A100": 312e12, "L40S": 362e12}  # of dense bf16, as vendors say
COMMAND = [sys.executable, "-m", "trainwright"]
LIMIT = 240  # seconds, of a run that is killed and resumed
COMMON = """\
evaluation: {every_n_steps: 1000000}
checkpoint: {every_n_minutes: null, save_top_k: 0}
logging: {every_n_steps: 10}
tracking: []
"""
GPT = """\
experiment: {{name: gpt, seed: 1}}
data:
  {{type: text, path: text.txt, length: {length}, split: {{val: 0.01, test: 0.01}},
    tokenizer: vocabulary.json, end_of_text: false}}
model: {{type: gpt, hidden_size: {hidden}, num_layers: {layers}, num_heads: {heads}}}
training:
  {{max_steps: {steps}, batch_size: {batch}, learning_rate: 3e-4, weight_decay: 0.1, precision: bf16,
    device: {device}, compile: {compiled}}}
"""
SMALL = """\
experiment: {{name: small, seed: 1}}
data: {{type: npz, path: small.npz}}
model: {{type: mlp, hidden: [256, 128]}}
training: {{max_steps: {steps}, batch_size: 64, learning_rate: 1e-3, device: {device}}}
"""
KILLED = """\
experiment: {{name: killed, seed: 1}}
data: {{type: digits}}
model: {model}
training: {training}
evaluation: {{every_n_steps: 50}}
checkpoint: {{every_n_steps: {every}, every_n_minutes: null}}
tracking: []
"""
NETWORK = (
    "{{type: cnn, dropout: 0.1}}",
    "{{epochs: 40, batch_size: 32, device: {device}, precision: {precision}}}",
)
TREES = "{{type: {name}, n_estimators: 400, learning_rate: 0.05}}", "{{device: {device}}}"
KERAS = "{{type: mlp, framework: keras}}", "{{epochs: 40, batch_size: 32, device: {device}}}"


Table = tuple[list[str], list[list[str]]]  # the header, and the rows


def main() -> int:
    """Print the tables; return the exit code."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=SIZES, default="cuda")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--steps", type=int, default=60, help="of a GPT; a small model makes 50 times as many"
    )
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS, help="which tables")
    parser.add_argument("--peer", choices=PEERS, help="run as this peer, in the folder of the data")
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        print("there is no GPU here: torch.cuda.is_available() is False", file=sys.stderr)
        return 2
    if given.peer:
        PEERS[given.peer](given.device, given.steps)
        return 0
    name = torch.cuda.get_device_name() if given.device == "cuda" else "no GPU, a tiny size"
    print(f"{machine()}; {name}, torch {torch.__version__}\n", flush=True)
    with temporary_folder() as folder:
        for part in given.only:
            header, rows = PARTS[part](folder, given, name)
            print(table(header, rows), end="\n\n", flush=True)
    return 0


def interleaved(folder: Path, jobs: dict[str, list[str]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds per step of jobs that take turns."""
    seconds: dict[str, list[float]] = {job: [] for job in jobs}
    for number in range(rounds):
        for job in list(jobs) if number % 2 else list(jobs)[::-1]:
            seconds[job].append(interval_of(jobs[job], folder, {}) / INTERVAL)
    return seconds


def peer(name: str, device: str, steps: int) -> list[str]:
    """Return the command of a peer."""
    return [sys.executable, __file__, "--peer", name, "--device", device, "--steps", str(steps)]


def of_gpt(folder: Path, given: argparse.Namespace, device: str) -> Table:
    """Return the table of GPT-2, eager and compiled."""
    write_text(folder / "text.txt")
    write_vocabulary(folder / "vocabulary.json")
    hidden, layers, heads, length, batch = SIZES[given.device]
    sizes = {"hidden": hidden, "layers": layers, "heads": heads, "length": length, "batch": batch}
    rows = []
    for compiled, rounds in ((False, given.rounds), (True, 1)):
        config = f"{'compiled' if compiled else 'eager'}.yaml"
        text = GPT.format(
            **sizes,
            steps=given.steps,
            device=given.device,
            compiled=str(compiled).lower(),
        )
        (folder / config).write_text(text + COMMON)
        loop = peer("gpt-compiled" if compiled else "gpt", given.device, given.steps)
        jobs = {"trainwright": [*COMMAND, "train", config, "--quiet"], "plain loop": loop}
        seconds = interleaved(folder, jobs, rounds)
        for job, values in seconds.items():
            rates = [batch * length / value for value in values]
            ratios = [
                theirs / ours
                for theirs, ours in zip(seconds["plain loop"], seconds["trainwright"], strict=True)
            ]
            share = utilisation(statistics.median(rates), given.device, device)
            shown = [f"{statistics.median(rates):,.0f}", f"{max(rates):,.0f}", share]
            ratio = f"{statistics.median(ratios):.3f}x" if job == "trainwright" else ""
            rows.append([f"{job}, {'compiled' if compiled else 'eager'}", *shown, ratio])
    return ["GPT-2 in bf16", "tokens/s", "best", "MFU", "ours / theirs"], rows


def write_vocabulary(path: Path) -> None:
    """Write a tokenizer of bytes, with as many unused tokens as make the vocabulary of GPT-2."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    names = sorted(pre_tokenizers.ByteLevel.alphabet())
    names += [f"<unused{number}>" for number in range(len(names), VOCABULARY)]
    made = Tokenizer(models.BPE({name: number for number, name in enumerate(names)}, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.save(str(path))


def utilisation(rate: float, kind: str, device: str) -> str:
    """Return the share of the device's FLOPs that the model needs at a rate of tokens per second.

    A token takes 6 FLOPs for each weight and 12 layers x hidden x length for attention (PaLM, appendix B).
    """
    peak = next((flops for name, flops in PEAK_FLOPS.items() if name in device), None)
    hidden, layers, _, length, _ = SIZES[kind]
    weights = 12 * layers * hidden**2 + VOCABULARY * hidden
    return "" if peak is None else f"{rate * (6 * weights + 12 * layers * hidden * length) / peak:.1%}"


def of_small_step(folder: Path, given: argparse.Namespace, _: str) -> Table:
    """Return the table of a small step."""
    draw, steps = np.random.default_rng(0), given.steps * 50
    x, y = draw.normal(size=(ROWS, FEATURES)).astype(np.float32), draw.integers(0, 10, ROWS)
    np.savez(folder / "small.npz", X=x, y=y)
    (folder / "small.yaml").write_text(SMALL.format(steps=steps, device=given.device) + COMMON)
    jobs = {"trainwright": [*COMMAND, "train", "small.yaml", "--quiet"]}
    jobs["loop by hand"] = peer("small", given.device, steps)
    if given.device == "cuda":
        jobs["loop with a CUDA graph"] = peer("small-graph", given.device, steps)
    rows = []
    seconds = interleaved(folder, jobs, given.rounds)
    for job, values in seconds.items():
        ratios = [theirs / ours for theirs, ours in zip(values, seconds["trainwright"], strict=True)]
        shown = f"{statistics.median(values) * 1e6:.0f}", f"{min(values) * 1e6:.0f}"
        rows.append([job, *shown, f"{statistics.median(ratios):.3f}x"])
    return ["a small step", "us", "best", "theirs / ours"], rows


class Clock:
    """Notes the time every few steps, when the device has computed them."""

    def __init__(self, device: str) -> None:
        self._is_gpu = device == "cuda"
        self._times: list[float] = []

    def after(self, step: int) -> None:
        """Note that a step, counted from 0, has been launched."""
        import torch

        if (step + 1) % INTERVAL == 0:
            if self._is_gpu:
                torch.cuda.synchronize()
            self._times.append(time.time())

    def write(self) -> None:
        """Write the times to where the harness looks for them."""
        Path("times.txt").write_text(" ".join(map(str, self._times)))


def gpt_peer(device: str, steps: int, *, compiled: bool = False) -> None:
    """Train the module as nanoGPT does, without its accumulation."""
    import torch
    from torch.nn import functional

    from trainwright.frameworks.torch.models.gpt import Gpt

    hidden, layers, heads, length, batch = SIZES[device]
    torch.manual_seed(1)
    text = torch.from_numpy(np.fromfile("text.txt", np.uint8).astype(np.int64)).to(device)
    with torch.device(device):
        made = Gpt(VOCABULARY, length, hidden, layers, heads)
    model: Any = torch.compile(made) if compiled else made
    optimizer = torch.optim.AdamW(made.parameters(), lr=3e-4, weight_decay=0.1, fused=True)
    span, clock = torch.arange(length + 1, device=device), Clock(device)
    for step in range(steps):
        starts = torch.randint(len(text) - length - 1, (batch,), device=device)
        window = text[starts[:, None] + span]  # (batch, length + 1)
        with torch.autocast(device, torch.bfloat16):
            logits = model(window[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        clock.after(step)
    clock.write()


def small_peer(device: str, steps: int, *, graph: bool = False) -> None:
    """Train a small network on rows that are on the device; with a graph, as torch's documentation says."""
    import torch
    from torch import nn
    from torch.nn.functional import cross_entropy

    torch.manual_seed(1)
    data = np.load("small.npz")
    x, y = (torch.from_numpy(data[name]).to(device) for name in ("X", "y"))
    model = nn.Sequential(
        nn.Linear(FEATURES, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10)
    ).to(device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, weight_decay=0.01, fused=True, capturable=graph
    )
    batch, target = x[:SMALL_BATCH].clone(), y[:SMALL_BATCH].clone()

    def update() -> None:
        optimizer.zero_grad(set_to_none=True)
        cross_entropy(model(batch), target).backward()
        optimizer.step()

    run, clock = captured(update) if graph else update, Clock(device)
    order = torch.randperm(ROWS, device=device)
    for step in range(steps):
        at = step * SMALL_BATCH % ROWS
        if not at:
            order = torch.randperm(ROWS, device=device)
        ids = order[at : at + SMALL_BATCH]
        torch.index_select(x, 0, ids, out=batch)
        torch.index_select(y, 0, ids, out=target)
        run()
        clock.after(step)
    clock.write()


def captured(update: Any) -> Any:
    """Return what replays a step as a CUDA graph."""
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            update()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        update()
    return graph.replay


def of_kills(folder: Path, given: argparse.Namespace, _: str) -> Table:
    """Return the table of runs that are killed and resumed, half a minute each."""
    rows = []
    for job in JOBS:
        rows.append(killed(folder, given.device, job))
        print(*rows[-1], flush=True)
    return ["killed and resumed", "result"], rows


def killed(folder: Path, device: str, job: str) -> list[str]:
    """Train, kill another such run after a save, resume it; return the row of the table."""
    name, (model, training) = job, JOBS[job]
    words = {"device": device, "precision": job, "name": name}
    text = KILLED.format(model=model.format(**words), training=training.format(**words), every=SAVE_AT)
    home = folder / job
    home.mkdir()
    (home / "config.yaml").write_text(text)
    try:
        whole = digest(home, ["train", "config.yaml", "--runs-dir", "whole"], "whole")
        kill_after_save([*COMMAND, "train", "config.yaml", "--runs-dir", "cut"], home)
        resumed = digest(home, ["resume", "last", "--runs-dir", "cut"], "cut")
    except RuntimeError as error:
        return [job, f"not measured: {error}"]
    return [job, "identical" if whole == resumed else f"DIFFERENT: {resumed[:16]}, not {whole[:16]}"]


def digest(home: Path, arguments: Sequence[str], runs: str) -> str:
    """Run a command to its end, and return the digest of the run's weights.

    Raises:
        RuntimeError: It failed.
    """
    made = subprocess.run(
        [*COMMAND, *arguments, "--quiet"],
        cwd=home,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    if made.returncode:
        lines = [line for line in made.stderr.splitlines() if "error" in line] or made.stderr.splitlines()
        raise RuntimeError(lines[-1][:200] if lines else f"exit code {made.returncode}")
    (result,) = (home / runs).glob("*/*/result.json")
    return str(json.loads(result.read_text())["digest"])


def kill_after_save(command: Sequence[str], home: Path) -> None:
    """Start a run, and kill it when it has committed a checkpoint.

    Raises:
        RuntimeError: It ended before.
    """
    process = subprocess.Popen(
        command, cwd=home, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    until = time.monotonic() + LIMIT
    while process.poll() is None and not any((home / "cut").glob("*/*/checkpoints/*/manifest.json")):
        if time.monotonic() > until:
            break
        time.sleep(0.01)
    is_running = process.poll() is None
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, 9)
    process.wait()
    if not is_running:
        raise RuntimeError("it ended before it could be killed")


JOBS = {
    "bf16": NETWORK,
    "fp16": NETWORK,
    "xgboost": TREES,
    "lightgbm": TREES,
    "catboost": TREES,
    "keras": KERAS,
}
PARTS: dict[str, Callable[[Path, argparse.Namespace, str], Table]] = {
    "gpt": of_gpt,
    "small": of_small_step,
    "kills": of_kills,
}
PEERS: dict[str, Callable[[str, int], None]] = {
    "gpt": gpt_peer,
    "gpt-compiled": lambda device, steps: gpt_peer(device, steps, compiled=True),
    "small": small_peer,
    "small-graph": lambda device, steps: small_peer(device, steps, graph=True),
}

if __name__ == "__main__":
    sys.exit(main())
