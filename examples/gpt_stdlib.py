"""Train a GPT on the text of Python's standard library, and let it write some Python.

Run it with `python examples/gpt_stdlib.py`: it takes 5 to 10 minutes on 2 cores, downloads nothing, and ends
below 2.2 bits per byte on modules that it has not seen. It needs the extras `torch` and `text`. Interrupt it
when you like: `trainwright resume last` goes on.
"""

from __future__ import annotations

import argparse
import sysconfig
from typing import Any

import trainwright

CONFIG: dict[str, Any] = {
    "experiment": {"name": "gpt-stdlib", "seed": 1},
    "data": {
        "type": "text",
        "path": f"{sysconfig.get_path('stdlib')}/*.py",  # 200 modules, 5 MB
        "length": 128,  # tokens, which are about 400 bytes
        "tokenizer": "bpe",
        "vocab_size": 2048,
    },
    "model": {
        "type": "gpt",
        "hidden_size": 128,
        "num_layers": 4,
        "num_heads": 4,
        "position": "rotary",
        "normalization": "rms",
        "activation": "swiglu",
        "bias": False,
    },
    "training": {
        "max_steps": 1500,
        "batch_size": 16,
        "learning_rate": 3e-3,
        "scheduler": {"type": "cosine", "warmup_steps": 100, "final_lr_ratio": 0.05},
        "weight_decay": 0.1,
        "max_grad_norm": 1.0,
    },
    "evaluation": {"every_n_steps": 150},
    "checkpoint": {"every_n_minutes": 1, "metric": "val_bits_per_byte"},
}


def main() -> None:
    """Train the model, and print a function that it makes up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("overrides", nargs="*", help="as for `trainwright train`: training.max_steps=300")
    run = trainwright.train(CONFIG, parser.parse_args().overrides)
    print(f"{run.metrics['test_bits_per_byte']:.3f} bits per byte of modules that it has not seen")
    print(trainwright.load(run).generate("def read_", max_tokens=120, temperature=0.8, top_k=50))


if __name__ == "__main__":
    main()
