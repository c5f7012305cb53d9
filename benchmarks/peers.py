"""The same training with each peer in its leanest configuration: `python peers.py NAME EPOCHS`.

1437 rows of the digits data, an MLP with hidden layers of 256 and 128 and dropout 0.1, AdamW (fused), batches
of 32 in a new random order each epoch (45 steps), one thread, no evaluation, no logging, no saving.
Trainwright's own side is in `step.py`: its command line, with journal, MLflow and a final checkpoint.
"""

from __future__ import annotations

import sys
import tempfile
import warnings

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

ROWS, BATCH = 1437, 32
STEPS_PER_EPOCH = -(-ROWS // BATCH)
RATE, DECAY = 1e-3, 0.01


def data() -> tuple[Tensor, Tensor]:
    """Return features (1437, 64) float32 and targets (1437,) int64."""
    x, y = load_digits(return_X_y=True)
    return torch.from_numpy(x[:ROWS]).float() / 16, torch.from_numpy(y[:ROWS])


def network() -> nn.Sequential:
    """Return the layers of Trainwright's `mlp`."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.1),
        nn.Linear(256, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 10),
    )  # fmt: skip


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer."""
    return torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY, fused=True)


def loader() -> DataLoader[tuple[Tensor, ...]]:
    """Return the data as shuffled batches."""
    return DataLoader(TensorDataset(*data()), batch_size=BATCH, shuffle=True)


def hand_written(epochs: int) -> None:
    """Train with the fastest loop that we know: rows are shuffled once per epoch, and batches are views."""
    x, y = data()
    model = network()
    optimizer = adamw(model)
    for _ in range(epochs):
        order = torch.randperm(ROWS)
        features, targets = x[order].split(BATCH), y[order].split(BATCH)
        for batch, target in zip(features, targets, strict=True):
            loss = cross_entropy(model(batch), target)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()


def hand_written_indexed(epochs: int) -> None:
    """Train with a loop that selects the rows of each batch by index."""
    x, y = data()
    model = network()
    optimizer = adamw(model)
    for _ in range(epochs):
        for ids in torch.randperm(ROWS).split(BATCH):
            loss = cross_entropy(model(x.index_select(0, ids)), y.index_select(0, ids))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()


def hand_written_dataloader(epochs: int) -> None:
    """Train with the loop of most tutorials, over a DataLoader."""
    model, batches = network(), loader()
    optimizer = adamw(model)
    for _ in range(epochs):
        for batch, target in batches:
            loss = cross_entropy(model(batch), target)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()


def accelerate(epochs: int) -> None:
    """Train with Hugging Face Accelerate."""
    from accelerate import Accelerator

    runner = Accelerator(cpu=True)
    model = network()
    model, optimizer, batches = runner.prepare(model, adamw(model), loader())
    for _ in range(epochs):
        for batch, target in batches:
            loss = cross_entropy(model(batch), target)
            optimizer.zero_grad(set_to_none=True)
            runner.backward(loss)
            optimizer.step()


def lightning(epochs: int) -> None:
    """Train with Lightning."""
    import lightning as L

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = network()

        def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
            return cross_entropy(self.model(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return adamw(self.model)

    # barebones: no logger, checkpoints, progress bar, summary or sanity checks.
    L.Trainer(max_epochs=epochs, accelerator="cpu", devices=1, barebones=True).fit(Module(), loader())


def skorch(epochs: int) -> None:
    """Train with skorch."""
    from skorch import NeuralNetClassifier

    x, y = data()
    NeuralNetClassifier(
        network(), criterion=nn.CrossEntropyLoss, optimizer=torch.optim.AdamW, optimizer__weight_decay=DECAY,
        optimizer__fused=True, lr=RATE, batch_size=BATCH, max_epochs=epochs, train_split=None,
        callbacks="disable", iterator_train__shuffle=True, verbose=0,
    ).fit(x.numpy(), y.numpy())  # fmt: skip


def hf_trainer(epochs: int) -> None:
    """Train with the Trainer of Hugging Face Transformers."""
    from transformers import Trainer, TrainingArguments

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = network()

        def forward(self, features: Tensor, labels: Tensor) -> dict[str, Tensor]:
            outputs = self.model(features)
            return {"loss": cross_entropy(outputs, labels), "logits": outputs}

    def collate(rows: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        features, labels = zip(*rows, strict=True)
        return {"features": torch.stack(features), "labels": torch.stack(labels)}

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, num_train_epochs=epochs, per_device_train_batch_size=BATCH, learning_rate=RATE,
            weight_decay=DECAY, optim="adamw_torch_fused", lr_scheduler_type="constant", max_grad_norm=0.0,
            use_cpu=True, disable_tqdm=True, report_to="none", save_strategy="no", logging_strategy="no",
            dataloader_pin_memory=False,
        )  # fmt: skip
        Trainer(Model(), arguments, data_collator=collate, train_dataset=TensorDataset(*data())).train()


PEERS = {
    f.__name__: f
    for f in (
        hand_written,
        hand_written_indexed,
        hand_written_dataloader,
        accelerate,
        lightning,
        skorch,
        hf_trainer,
    )
}

if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    PEERS[sys.argv[1]](int(sys.argv[2]))
