"""Modules of PyTorch as what torch's own exporters take: a program, for any number of rows."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwright.errors import InputError
from trainwright.inference.predictor import Predictor

if TYPE_CHECKING:
    import torch


def module_of(predictor: Predictor, rows: int = 2) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """Return a run's module on the CPU, from inputs to predictions, and rows of zeros as inputs."""
    import torch

    model: Any = predictor.trained_model
    specs = {name: predictor.info.inputs[name] for name in model.input_names}
    samples = {
        name: torch.zeros(rows, *spec.shape, dtype=getattr(torch, spec.dtype)) for name, spec in specs.items()
    }
    return model.predicting.cpu(), samples


def program_of(predictor: Predictor, form: str) -> torch.export.ExportedProgram:
    """Return a run's module as a program of torch.export, for any number of rows.

    Raises:
        InputError: torch cannot export it.
    """
    import torch

    module, samples = module_of(predictor)
    rows = torch.export.Dim("rows", min=1)
    shapes: Any = torch.export.ShapesCollection()
    for sample in samples.values():
        shapes[sample] = {0: rows}
    given = tuple(samples.values())
    with exporting(form):
        try:
            return torch.export.export(module, given, dynamic_shapes=shapes)
        except Exception as error:
            try:  # reading the code also follows Python's own numbers, such as `len(batch)`
                return torch.export.export(module, given, dynamic_shapes=shapes, strict=True)
            except Exception:
                raise error from None


def write_script(predictor: Predictor, path: Path, method: str) -> None:
    """Write a run's module as frozen TorchScript.

    Args:
        predictor: The model of a run.
        path: The file.
        method: `trace` or `script`.

    Raises:
        InputError: torch cannot export it.
    """
    import torch

    module: Any
    module, samples = module_of(predictor)
    with exporting("torchscript", "pt2"), torch.no_grad():
        if method == "script":
            module.module = torch.jit.script(module.module)  # which a trace of what is around it keeps
        traced = torch.jit.trace(module, tuple(samples.values()))
        torch.jit.freeze(traced).save(str(path))


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
