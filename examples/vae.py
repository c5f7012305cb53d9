"""Train a variational autoencoder on images of digits, and let it draw some.

Run it with `python examples/vae.py`: it takes seconds. The data have no target, and the model returns its
loss; what it returns besides is what `predict` gives.
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

import trainwright

CONFIG = {
    "experiment": {"name": "vae", "seed": 1},
    "data": {"target": None},
    "training": {"epochs": 40, "batch_size": 64, "learning_rate": 3e-3, "loss": "model"},
}


class Vae(nn.Module):
    """Kingma and Welling: "Auto-encoding variational Bayes", 2013."""

    def __init__(self, code: int = 8) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2 * code))
        self.decode = nn.Sequential(nn.Linear(code, 64), nn.ReLU(), nn.Linear(64, 64))

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Return the loss, and for each image, (rows, 64), another one and its code."""
        mean, log_var = self.encode(images).chunk(2, dim=1)  # (rows, code) each
        code = mean + torch.randn_like(mean) * (log_var / 2).exp() if self.training else mean
        drawn = self.decode(code)  # (rows, 64) logits
        surprise = functional.binary_cross_entropy_with_logits(drawn, images, reduction="none").sum(1)
        divergence = (log_var.exp() + mean**2 - 1 - log_var).sum(1) / 2
        return {"loss": (surprise + divergence).mean(), "image": drawn.sigmoid(), "code": mean}


def main() -> None:
    """Train, rebuild images that the model has not seen, and draw new ones."""
    images = (load_digits().data / 16).astype(np.float32)  # (1797, 64), from 0 to 1
    torch.manual_seed(0)
    model = Vae()
    run = trainwright.train(CONFIG, data=(images[:1400], images[1400:]), model=model)
    rebuilt = trainwright.load(run, model=Vae()).outputs(
        images[1400:]
    )  # an array with the fields image and code
    error = np.abs(rebuilt["image"] - images[1400:]).mean()
    print(f"{run.metrics['val_loss']:.1f} nats; the rebuilt pixels differ by {error:.3f} in the mean")
    with torch.no_grad():
        drawn = model.decode(torch.randn(3, 8, generator=torch.Generator().manual_seed(0))).sigmoid()
    for image in drawn.reshape(3, 8, 8):
        print("\n".join("".join(" .:#"[int(pixel * 3.99)] * 2 for pixel in row) for row in image.tolist()))


if __name__ == "__main__":
    main()
