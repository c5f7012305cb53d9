"""The search quality of studies beside Optuna's own, on cheap objectives: `benchmarks/tuning_quality.py`.

Five objectives, `--seeds` studies each, of `--trials` trials: the best value of Optuna's TPE with its
defaults and one stream of random numbers, and of ours, whose sampler is seeded for each trial, with a horizon
of 1, 2 and 4. Each way is compared with Optuna's by the studies of the same seed: the share of studies that
it wins (ties count half), and the p of the sign test. Values are logarithms of the distance to the minimum.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from harness import machine, table
from scipy.stats import binomtest

from trainwright.samplers.base import Observation, Parameter, Space, exists
from trainwright.samplers.optuna import TpeParams, TpeSampler

Objective = Callable[[Mapping[str, Any]], float]
_LEAST = 1e-12


def _floats(count: int, low: float, high: float) -> Space:
    return [Parameter(f"x{i}", low, high) for i in range(count)]


def _values(params: Mapping[str, Any]) -> np.ndarray:
    return np.array([params[f"x{i}"] for i in range(len(params))])


def sphere(params: Mapping[str, Any]) -> float:
    """Return the squared distance to (1, 1, ...)."""
    return float(((_values(params) - 1) ** 2).sum())


def rosenbrock(params: Mapping[str, Any]) -> float:
    """Return Rosenbrock's valley, in which parameters depend on each other."""
    x = _values(params)
    return float((100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum())


def rastrigin(params: Mapping[str, Any]) -> float:
    """Return Rastrigin's function, which has many local minima."""
    x = _values(params)
    return float(10 * len(x) + (x**2 - 10 * np.cos(2 * math.pi * x)).sum())


def branin(params: Mapping[str, Any]) -> float:
    """Return Branin's function, moved so that its minimum is 0."""
    x, y = _values(params)
    valley = y - 5.1 / (4 * math.pi**2) * x**2 + 5 / math.pi * x - 6
    return float(valley**2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10 - 0.39788735772973816)


def network(params: Mapping[str, Any]) -> float:
    """Return what the error of a network looks like over rate, layers, optimizer and momentum."""
    best_rate = {"adamw": -3.0, "sgd": -1.5}[params["optimizer"]]
    error = 0.1 * (math.log10(params["rate"]) - best_rate) ** 2 + 0.02 * abs(params["layers"] - 3)
    momentum = params.get("momentum")
    return float(error + (0.05 if momentum is None else 0.1 * (momentum - 0.9) ** 2))


NETWORK: Space = [
    Parameter("rate", 1e-5, 1.0, log=True),
    Parameter("layers", 1, 6, integer=True),
    Parameter("optimizer", choices=["adamw", "sgd"]),
    Parameter("momentum", 0.0, 0.99, when={"optimizer": ["sgd"]}),
]
OBJECTIVES: dict[str, tuple[Objective, Space]] = {
    "sphere": (sphere, _floats(5, -5.0, 5.0)),
    "rosenbrock": (rosenbrock, _floats(4, -2.0, 2.0)),
    "rastrigin": (rastrigin, _floats(3, -5.0, 5.0)),
    "branin": (branin, [Parameter("x0", -5.0, 10.0), Parameter("x1", 0.0, 15.0)]),
    "network": (network, NETWORK),
}


def of_optuna(objective: Objective, space: Space, seed: int, trials: int) -> float:
    """Return the best value of Optuna's own study."""

    def suggested(trial: optuna.Trial) -> float:
        params: dict[str, Any] = {}
        for one in space:
            if not exists(one, params):
                continue
            if one.choices is not None:
                params[one.key] = trial.suggest_categorical(one.key, one.choices)
            elif one.integer:
                params[one.key] = trial.suggest_int(one.key, int(one.low), int(one.high), log=one.log)
            else:
                params[one.key] = trial.suggest_float(one.key, one.low, one.high, log=one.log)
        return objective(params)

    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    study.optimize(suggested, n_trials=trials)
    return float(study.best_value)


def of_ours(horizon: int, options: Mapping[str, Any] | None = None) -> Callable[..., float]:
    """Return the function that makes a study of ours with a horizon, and returns the best value."""

    def best(objective: Objective, space: Space, seed: int, trials: int) -> float:
        sampler = TpeSampler(TpeParams(**(options or {})), space, "min", seed)
        done: list[Observation] = []
        for number in range(trials):
            known = [
                one if i <= number - horizon else Observation(one.params, "running")
                for i, one in enumerate(done)
            ]
            params = sampler.propose(number, known)
            done.append(Observation(params, "completed", objective(params)))
        return min(one.value for one in done if one.value is not None)

    return best


WAYS: dict[str, Callable[..., float]] = {
    "Optuna, one stream": of_optuna,
    "ours, horizon 1": of_ours(1),
    "ours, horizon 2": of_ours(2),
    "ours, horizon 4": of_ours(4),
}


def main() -> None:
    """Make the studies and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--ways", nargs="*", default=list(WAYS), help="beside Optuna's: words of their names")
    arguments = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    print(machine(), flush=True)
    first = next(iter(WAYS))
    chosen = [name for name in WAYS if name == first or any(word in name for word in arguments.ways)]
    best: dict[tuple[str, str], list[float]] = {}
    for name, (objective, space) in OBJECTIVES.items():
        for way in chosen:
            values = [WAYS[way](objective, space, seed, arguments.trials) for seed in range(arguments.seeds)]
            best[name, way] = [math.log10(max(value, _LEAST)) for value in values]
            print(f"{name}, {way}: {np.mean(best[name, way]):.3f}", file=sys.stderr, flush=True)
    report(best, chosen)


def report(best: Mapping[tuple[str, str], Sequence[float]], ways: Sequence[str]) -> None:
    """Print the mean logarithm of the distance to the minimum, and the comparison with Optuna."""
    print(table(["objective", *ways], [_means(name, best, ways) for name in OBJECTIVES]))
    print()
    rows = []
    for way in ways[1:]:
        pairs = [
            pair for name in OBJECTIVES for pair in zip(best[name, way], best[name, ways[0]], strict=True)
        ]
        wins, losses = sum(a < b for a, b in pairs), sum(a > b for a, b in pairs)
        p_value = binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
        share = (wins + 0.5 * (len(pairs) - wins - losses)) / len(pairs)
        gap = np.mean([a - b for a, b in pairs])
        rows.append([way, str(len(pairs)), f"{share:.0%}", f"{p_value:.2f}", f"{gap:+.3f}"])
    print(table(["against Optuna", "studies", "won", "p", "mean difference of log10"], rows))


def _means(name: str, best: Mapping[tuple[str, str], Sequence[float]], ways: Sequence[str]) -> list[str]:
    cells = [f"{np.mean(best[name, way]):.2f} ± {np.std(best[name, way]):.2f}" for way in ways]
    return [name, *cells]


if __name__ == "__main__":
    main()
