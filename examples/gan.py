"""A GAN: a training step that updates two networks in turns; killed, it resumes to the same bits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

import trainwright


class Gan(nn.Module):
    """Draw digits that look like those of the data."""

    def __init__(self, noise: int = 16) -> None:
        super().__init__()
        self.noise = noise
        self.generator = nn.Sequential(nn.Linear(noise, 64), nn.ReLU(), nn.Linear(64, 64))
        self.discriminator = nn.Sequential(nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))

    def forward(self, noise: Tensor) -> Tensor:
        """Return digits, (rows, 64), made of noise, (rows, noise)."""
        digits: Tensor = self.generator(noise)
        return digits

    def training_step(self, batch: dict[str, Tensor], step: Any) -> Tensor:
        """Update the discriminator, then the generator."""
        real = batch["features"]  # (rows, 64)
        fake = self(torch.randn(len(real), self.noise))
        loss = softplus(-self.discriminator(real)).mean() + softplus(self.discriminator(fake.detach())).mean()
        step.backward(loss)
        step.update("discriminator")
        deception = softplus(-self.discriminator(fake)).mean()
        step.backward(deception)
        step.update("generator")
        step.log("generator_loss", deception)
        return loss

    def validation_step(self, batch: dict[str, Tensor], step: Any) -> dict[str, Tensor]:  # noqa: ARG002
        """Return how real unseen digits seem, as a loss, and how varied the drawn ones are."""
        drawn = self(torch.randn(100, self.noise))
        judged = softplus(-self.discriminator(batch["features"])).mean()
        return {"loss": judged, "spread": drawn.std(0).mean()}


ADAM = {"type": "adam", "learning_rate": 1e-3, "betas": [0.5, 0.999]}
CONFIG = {
    "experiment": {"name": "gan"},
    "data": {"type": "digits", "target": None, "exclude": "target"},
    "training": {
        "epochs": 10,
        "batch_size": 64,
        "optimizers": {
            "generator": {**ADAM, "match": "generator.*"},
            "discriminator": {**ADAM, "match": "discriminator.*"},
        },
    },
}

if __name__ == "__main__":
    run = trainwright.train(CONFIG, model=Gan())
    print(run.digest, run.result["metrics"])
