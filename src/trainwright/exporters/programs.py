"""Modules of PyTorch as what torch's own exporters take: a program, for any number of rows."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from typing import TYPE_CHECKING, Any

from trainwright.errors import InputError
from trainwright.inference.predictor import Predictor

if TYPE_CHECKING:
    import torch


def module_of(predictor: Predictor) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """Return a run's module on the CPU, from inputs to predictions, and two rows of zeros as inputs."""
    import torch

    model: Any = predictor.trained_model
    samples = {
        name: torch.zeros(2, *spec.shape, dtype=getattr(torch, spec.dtype))
        for name, spec in predictor.info.inputs.items()
    }
    return model.predicting.cpu(), samples


def program_of(predictor: Predictor, form: str) -> torch.export.ExportedProgram:
    """Return a run's module as a program of torch.export.

    Raises:
        InputError: torch cannot export it.
    """
    import torch

    module, samples = module_of(predictor)
    rows = torch.export.Dim("rows", min=1)
    with exporting(form):
        return torch.export.export(
            module, tuple(samples.values()), dynamic_shapes=tuple({0: rows} for _ in samples)
        )


@contextmanager
def exporting(form: str, nearest: str = "mlflow") -> Iterator[None]:
    """Silence torch's exporters, and turn what they raise into an error for people.

    Raises:
        InputError: torch cannot export the module.
    """
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    except Exception as error:
        lines = [line for line in str(error).strip().splitlines() if line.strip()]
        raise InputError(
            f"torch cannot export this model with --format {form}; export it with --format {nearest}\n"
            f"  {lines[0] if lines else type(error).__name__}"
        ) from error
    finally:
        logging.disable(disabled)
