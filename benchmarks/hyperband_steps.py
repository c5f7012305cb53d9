"""The training that Hyperband saves: `benchmarks/hyperband_steps.py`.

`--configs` networks of random parameters are trained on digits for 27 epochs, with an evaluation after each.
Searches by the same random parameters, in `--orders` orders, then read these curves: random search trains
every trial to its end; Hyperband goes by the stints of our studies, and trials that go on continue where they
paused. The table has the epochs until an evaluation reaches 95% of the best score of all curves, where a
score is the accuracy above chance.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from harness import machine, table
from sklearn.datasets import load_digits

from trainwright.records.trials import Ending, LoggedStint, LoggedTrial
from trainwright.studies.tuning.pruning import Rungs, hyperband

EPOCHS, FACTOR, CHANCE, SHARE = 27, 3, 0.1, 0.95
Curve = Sequence[float]  # the score after each epoch


def curve_of(draw: random.Random, rows: Sequence[torch.Tensor]) -> Curve:
    """Train a network of random parameters, and return the score after each epoch."""
    train_x, train_y, val_x, val_y = rows
    rate, momentum, decay = 10 ** draw.uniform(-6, 1), draw.uniform(0, 0.99), 10 ** draw.uniform(-6, 0)
    width, dropout, batch = draw.choice([8, 32, 128]), draw.uniform(0, 0.8), draw.choice([16, 64, 256])
    torch.manual_seed(draw.getrandbits(30))
    layers = [
        torch.nn.Linear(64, width),
        torch.nn.ReLU(),
        torch.nn.Dropout(dropout),
        torch.nn.Linear(width, 10),
    ]
    net = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(net.parameters(), rate, momentum=momentum, weight_decay=decay)
    scores = []
    for _ in range(EPOCHS):
        net.train()
        for at in torch.randperm(len(train_x)).split(batch):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(train_x[at]), train_y[at]).backward()
            optimizer.step()
        net.eval()
        with torch.no_grad():
            accuracy = float((net(val_x).argmax(1) == val_y).float().mean())
        scores.append((accuracy - CHANCE) / (1 - CHANCE))
    return scores


def random_search(curves: Sequence[Curve]) -> Iterator[float]:
    """Yield the score after each epoch that random search trains."""
    for curve in curves:
        yield from curve


def hyperband_search(curves: Sequence[Curve]) -> Iterator[float]:
    """Yield the score after each epoch that Hyperband trains, one stint after the other."""
    plan = Rungs.plan(hyperband(1, EPOCHS, FACTOR), [len(curves)], FACTOR, 1, "max")
    trials: list[LoggedTrial] = []
    while (turn := plan.next(trials)) is not None:
        if turn.trial == len(trials):
            trials.append(LoggedTrial(turn.trial, {}, ""))
        trial, until = trials[turn.trial], plan.until(turn.stint)
        before = trial.ending.step if trial.ending and trial.ending.step else 0
        end = until[0] if until else EPOCHS
        seen = curves[turn.trial][:end]
        yield from seen[before:]
        ending = Ending("paused" if until else "completed", max(seen), end)
        trials[turn.trial] = trial._replace(
            stints=(*trial.stints, LoggedStint(turn.stint, ending)), ending=ending
        )


def epochs_until(
    target: float, search: Callable[[Sequence[Curve]], Iterator[float]], curves: Sequence[Curve]
) -> int:
    """Return how many epochs a search trains until it has seen a score."""
    return next(
        (epoch for epoch, score in enumerate(search(curves), 1) if score >= target), len(curves) * EPOCHS
    )


def main() -> None:
    """Train the curves, search, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--configs", type=int, default=200)
    parser.add_argument("--orders", type=int, default=200)
    arguments = parser.parse_args()
    print(machine(), flush=True)
    torch.set_num_threads(1)
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    features, targets = torch.tensor(x[order] / 16, dtype=torch.float32), torch.tensor(y[order])
    rows = [features[:600], targets[:600], features[600:1200], targets[600:1200]]
    draw = random.Random(0)
    curves = [curve_of(draw, rows) for _ in range(arguments.configs)]
    target = SHARE * max(map(max, curves))
    reach = sum(max(curve) >= target for curve in curves)
    took: dict[str, list[int]] = {"random": [], "hyperband": []}
    for _ in range(arguments.orders):
        draw.shuffle(curves)
        took["random"].append(epochs_until(target, random_search, curves))
        took["hyperband"].append(epochs_until(target, hyperband_search, curves))
    means = {name: float(np.mean(values)) for name, values in took.items()}
    print(f"{reach} of {len(curves)} networks reach {target:.3f}")
    cells = [[name, f"{means[name]:.0f}", f"{np.median(values):.0f}"] for name, values in took.items()]
    print(table(["search", "mean epochs", "median"], cells))
    print(f"hyperband / random: {means['hyperband'] / means['random']:.2f}")


if __name__ == "__main__":
    main()
