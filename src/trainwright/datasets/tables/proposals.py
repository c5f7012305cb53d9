"""Propose the sections `model` and `training` for a table: what the frameworks propose, and the metrics."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from trainwright import plugins
from trainwright.types import Proposal, TableShape

_RARE = 0.1  # accuracy says little where a class has a smaller share of the rows
_REASONS = {"patience": "evaluations without improvement"}

Sections = dict[str, Any]


def proposals(shape: TableShape, *, installed: bool = False) -> Mapping[str, Proposal]:
    """Return what the frameworks propose for a table, by the name of the model.

    Args:
        shape: The table.
        installed: Leave out the frameworks whose library is not installed.
    """
    return {
        model: proposal
        for _, framework in plugins.adapters("framework")
        if not installed or all(find_spec(module) is not None for module in framework.library.modules)
        for model, proposal in framework.advice.proposals(shape).items()
    }


def default_model(shape: TableShape) -> str:
    """Return the model to propose: boosted trees of the first library that is installed, else a network."""
    return (_ranked(shape, installed=True) or _ranked(shape))[0]


def _ranked(shape: TableShape, *, installed: bool = False) -> list[str]:
    """Return the models that may be proposed by default, the best first."""
    ranks = {model: one.default_rank for model, one in proposals(shape, installed=installed).items()}
    known = {model: rank for model, rank in ranks.items() if rank is not None}
    return sorted(known, key=known.__getitem__)


def candidates(shape: TableShape) -> list[str]:
    """Return the installed models to compare: the default one, then others, the most different ones first."""
    ranks = {model: one.comparison_rank for model, one in proposals(shape, installed=True).items()}
    compared = {model: rank for model, rank in ranks.items() if rank is not None}
    models = [*_ranked(shape, installed=True)[:1], *sorted(compared, key=compared.__getitem__)]
    return list(dict.fromkeys(models))


def sections(model: str, shape: TableShape) -> Sections:
    """Return the sections `model`, `training` and `evaluation` of a config.

    Args:
        model: A name for `model.type`; one that has no proposal gets the defaults of its framework.
        shape: The table.
    """
    proposed = proposals(shape).get(model, Proposal({}))
    metrics = _metrics(shape)
    evaluation = {**({"metrics": metrics} if metrics else {}), **proposed.evaluation}
    return {
        "model": {"type": model, **proposed.model},
        **({"training": dict(proposed.training)} if proposed.training else {}),
        **({"evaluation": evaluation} if evaluation else {}),
    }


def reasons(model: str, shape: TableShape) -> Mapping[str, str]:
    """Return the reasons for what is proposed, by its key, for comments in the config."""
    return {**_REASONS, **proposals(shape).get(model, Proposal({})).reasons}


def metric_of(shape: TableShape) -> str:
    """Return the metric to compare models by."""
    if shape.several == "labels":
        return "log_loss"
    if not shape.classes:
        return "r2"
    if _is_imbalanced(shape):
        return "average_precision"
    return "roc_auc" if shape.classes == 2 else "log_loss"


def _metrics(shape: TableShape) -> list[str]:
    """Return the metrics that say most about a model; none where the defaults do."""
    if _is_imbalanced(shape):
        return ["average_precision", "roc_auc", "f1"]
    return ["accuracy", "roc_auc", "f1"] if shape.classes == 2 else []


def _is_imbalanced(shape: TableShape) -> bool:
    """Return whether one of two classes is rare."""
    return shape.classes == 2 and shape.rarest < _RARE
