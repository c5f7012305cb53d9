"""50 epochs of a Keras model with `trainwright train`, against `model.fit`: `python benchmarks/keras_fit.py`.

Both train the same MLP on the same rows of digits (1,437 training rows in batches of 32, in a new order each
epoch) and evaluate the validation rows after each epoch. Trainwright also writes its journal and best model,
and at the end a checkpoint and a report. Each job runs in its own process for 1 epoch and for 50 epochs; the
difference is the loop without start-up.
"""

from __future__ import annotations

import argparse
import sys

from harness import ONE_THREAD, Cost, machine, median, run, table, temporary_folder

JOBS = ("fit", "trainwright")
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
    """Run both sides in interleaved rounds and print the table; with `--fit`, be the peer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--backend", choices=("tensorflow", "torch", "jax"), default="tensorflow")
    parser.add_argument("--fit", type=int, metavar="EPOCHS", help="run as the peer: train with model.fit")
    arguments = parser.parse_args()
    if arguments.fit:
        fit(arguments.fit, arguments.threads)
        return
    print(machine())
    costs: dict[tuple[str, int], list[Cost]] = {(job, epochs): [] for job in JOBS for epochs in (1, EPOCHS)}
    environment = {**ONE_THREAD, "KERAS_BACKEND": arguments.backend, "NPROC": str(arguments.threads)}
    with temporary_folder() as folder:
        config = CONFIG.replace("THREADS", str(arguments.threads)).replace("BACKEND", arguments.backend)
        (folder / "config.yaml").write_text(config)
        for number in range(arguments.rounds):
            for (job, epochs), runs in costs.items():
                runs.append(run(command(job, epochs, arguments.threads), folder, environment))
            print(f"round {number + 1} of {arguments.rounds} done", file=sys.stderr)
    report(costs)


def fit(epochs: int, threads: int) -> None:
    """Train with `model.fit`, in the shortest way; KERAS_BACKEND sets the backend."""
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
        keras.Input((64,)), layers.Dense(256, "relu"), layers.Dropout(0.1),
        layers.Dense(128, "relu"), layers.Dropout(0.1), layers.Dense(10),
    ])  # fmt: skip
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.AdamW(1e-3, weight_decay=0.01), loss=loss, metrics=["accuracy"])
    x, x_val = (scaler.transform(rows).astype("float32") for rows in (x, x_val))
    model.fit(x, y, batch_size=32, epochs=epochs, shuffle=True, validation_data=(x_val, y_val), verbose=0)


def command(job: str, epochs: int, threads: int) -> list[str]:
    """Return the command line of a job."""
    if job == "fit":
        return [sys.executable, __file__, "--fit", str(epochs), "--threads", str(threads)]
    return [sys.executable, "-m", "trainwright", "train", "config.yaml", f"training.epochs={epochs}"]


def report(costs: dict[tuple[str, int], list[Cost]]) -> None:
    """Print minima (the least disturbed runs), their ratios, and the median ratios within rounds."""
    rows = []
    for name, seconds in (("whole process", whole_process), ("loop", loop)):
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
    print(table(["50 epochs, seconds", "fit", "trainwright", "ratio of minima", "median ratio"], rows))


def whole_process(costs: dict[tuple[str, int], list[Cost]], job: str) -> list[float]:
    """Return the seconds of the whole_process process, for each round."""
    return [cost.wall for cost in costs[job, EPOCHS]]


def loop(costs: dict[tuple[str, int], list[Cost]], job: str) -> list[float]:
    """Return the seconds of 49 epochs without start-up, for each round."""
    return [long.wall - short.wall for short, long in zip(costs[job, 1], costs[job, EPOCHS], strict=True)]


if __name__ == "__main__":
    main()
