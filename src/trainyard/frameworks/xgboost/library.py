"""The import of XGBoost."""

from __future__ import annotations

from typing import Any

from trainyard.require import require


def xgboost() -> Any:
    """Import and return `xgboost`.

    A process that runs nothing but Trainyard does not import scikit-learn along with it: only XGBoost's
    estimators need it.

    Raises:
        MissingExtraError: XGBoost is not installed.
    """
    return require("xgboost", "xgboost", spare="sklearn")
