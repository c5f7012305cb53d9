"""vLLM: a folder of transformers with a language model, served with the protocol of OpenAI's clients."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from trainwright.errors import InputError
from trainwright.servers.base import Package, Server
from trainwright.servers.rendering import render

_GENERATES = ("ForCausalLM", "LMHeadModel")  # the ends of the names of such models of transformers


class VllmServer(Server):
    """The layout of `vllm serve FOLDER`, for language models of transformers."""

    summary = "vLLM: language models of Hugging Face, with the protocol of OpenAI's clients"
    formats: ClassVar[Sequence[str]] = ("huggingface",)
    predicts = False

    def write(self, package: Package, folder: Path) -> str:
        """Write the folder; see `Server.write`.

        Raises:
            InputError: It is no language model.
        """
        artifact = package.copy_artifact(folder / "model")
        config = json.loads((artifact / "config.json").read_text(encoding="utf-8"))
        names = config.get("architectures") or ["a model without a name"]
        if not any(name.endswith(_GENERATES) for name in names):
            raise InputError(
                f"--to vllm takes models that generate text, and this is {', '.join(names)}; there is --to "
                "trainwright"
            )
        render(Path(__file__).with_name("templates"), folder, package, {})
        return "./start.sh"
