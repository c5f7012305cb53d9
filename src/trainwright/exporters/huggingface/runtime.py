"""Compute logits with a folder for `from_pretrained`, by transformers; adapters also need peft.

python reader.py verify                    # compares the model with its certificate
"""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers

from trainwright.exporters.certificates.reader import Arrays, Model, main


def open_artifact(path: Path) -> Model:
    """Return a function from tokens and masks, (rows, length), to logits, (rows, classes)."""
    logging: Any = transformers.utils.logging
    logging.disable_progress_bar()
    model = (open_adapters(path) if (path / "base.json").exists() else open_model(path)).eval()

    def predict(feeds: Arrays) -> dict[str, Any]:
        with torch.no_grad():
            logits = model(**{name: torch.from_numpy(value) for name, value in feeds.items()}).logits
        found = logits.float().numpy()
        return {"logits": found[:, -1] if found.ndim == 3 else found}

    return predict


def open_model(path: Path) -> Any:
    """Return the model in a folder, of the class that its configuration names."""
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    return getattr(transformers, config["architectures"][0]).from_pretrained(path)


def open_adapters(path: Path) -> Any:
    """Return a model with the adapters in a folder; the model is where it was in the training."""
    about = json.loads((path / "base.json").read_text(encoding="utf-8"))
    adapters = json.loads((path / "adapter_config.json").read_text(encoding="utf-8"))
    kind = getattr(transformers, about["class"])
    config = kind.config_class.from_dict(about["config"])
    base = kind.from_pretrained(adapters["base_model_name_or_path"], config=config)
    return importlib.import_module("peft").PeftModel.from_pretrained(base, path)


if __name__ == "__main__":
    main(sys.argv[1:], open_artifact)
