"""50 epochs of a Keras model through `trainyard train`, against `model.fit`: `python benchmarks/keras_fit.py`.

Both train the same MLP on the same rows of digits (1,437 to learn from, in batches of 32, new order in each epoch), and
evaluate the validation rows after each epoch. Trainyard does besides what it always does: journal, best model, a checkpoint and
a report at the end. Each job runs as a process of its own for 1 epoch and for 50; the difference is the loop without start-up.
"""

from __future__ import annotations

import argparse
import sys

from harness import ONE_THREAD, Cost, machine, median, run, table, workplace

JOBS = ("fit", "trainyard")
EPOCHS = 50
CONFIG = """\
experiment: {name: keras, seed: 1}
data: {type: digits, split: {val: 0.1, test: 0.1}}
model: {type: keras_mlp, hidden: [256, 128], dropout: 0.1, backend: BACKEND}
training: {batch_size: 32, weight_decay: 0.01, threads: THREADS}
checkpoint: {every_n_minutes: null}
tracking: []
"""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--backend", choices=("tensorflow", "torch", "jax"), default="tensorflow")
    options.add_argument("--fit", type=int, metavar="EPOCHS", help="be the peer: train with model.fit")
    given = options.parse_args()
    if given.fit:
        fit(given.fit, given.threads)
        return
    print(machine())
    costs: dict[tuple[str, int], list[Cost]] = {(job, epochs): [] for job in JOBS for epochs in (1, EPOCHS)}
    environment = {**ONE_THREAD, "KERAS_BACKEND": given.backend, "NPROC": str(given.threads)}
    with workplace() as folder:
        config = CONFIG.replace("THREADS", str(given.threads)).replace("BACKEND", given.backend)
        (folder / "config.yaml").write_text(config)
        for number in range(given.rounds):
            for (job, epochs), some in costs.items():
                some.append(run(command(job, epochs, given.threads), folder, environment))
            print(f"round {number + 1} of {given.rounds} done", file=sys.stderr)
    report(costs)


def fit(epochs: int, threads: int) -> None:
    """The shortest script for the same job: the backend is that of the environment."""
    import keras
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    from sklearn.preprocessing import StandardScaler

    if keras.config.backend() == "tensorflow":
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(threads)
    elif keras.config.backend() == "torch":
        import torch

        torch.set_num_threads(threads)
    keras.utils.set_random_seed(1)
    x, y = load_digits(return_X_y=True)
    x, _, y, _ = train_test_split(x, y, test_size=0.1, stratify=y, random_state=0)
    x, x_val, y, y_val = train_test_split(x, y, test_size=1 / 9, stratify=y, random_state=0)
    scaler = StandardScaler().fit(x)
    layers = keras.layers
    model = keras.Sequential([
        keras.Input((64,)), layers.Dense(256, "relu"), layers.Dropout(0.1), layers.Dense(128, "relu"), layers.Dropout(0.1),
        layers.Dense(10),
    ])  # fmt: skip
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.AdamW(1e-3, weight_decay=0.01), loss=loss, metrics=["accuracy"])
    x, x_val = (scaler.transform(some).astype("float32") for some in (x, x_val))
    model.fit(x, y, batch_size=32, epochs=epochs, shuffle=True, validation_data=(x_val, y_val), verbose=0)


def command(job: str, epochs: int, threads: int) -> list[str]:
    if job == "fit":
        return [sys.executable, __file__, "--fit", str(epochs), "--threads", str(threads)]
    return [sys.executable, "-m", "trainyard", "train", "config.yaml", f"training.epochs={epochs}"]


def report(costs: dict[tuple[str, int], list[Cost]]) -> None:
    """By the least disturbed runs, and by the median of the rounds' own ratios."""
    rows = []
    for name, seconds in (("whole process", whole), ("loop", loop)):
        base, mine = (seconds(costs, job) for job in JOBS)
        ratios = [ours / theirs for ours, theirs in zip(mine, base, strict=True)]
        rows.append(
            [
                name,
                f"{min(base):.2f}",
                f"{min(mine):.2f}",
                f"{min(mine) / min(base):.2f}x",
                f"{median(ratios):.2f}x",
            ]
        )
    print(table(["50 epochs, seconds", "fit", "trainyard", "ratio of minima", "median ratio"], rows))


def whole(costs: dict[tuple[str, int], list[Cost]], job: str) -> list[float]:
    return [cost.wall for cost in costs[job, EPOCHS]]


def loop(costs: dict[tuple[str, int], list[Cost]], job: str) -> list[float]:
    return [long.wall - short.wall for short, long in zip(costs[job, 1], costs[job, EPOCHS], strict=True)]


if __name__ == "__main__":
    main()
