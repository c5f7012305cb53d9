"""The way to import XGBoost."""

from __future__ import annotations

from typing import Any

from trainyard.require import require


def xgboost() -> Any:
    """The module, without scikit-learn, which it needs for its estimators only, where nobody can want these."""
    return require("xgboost", "xgboost", spare="sklearn")
