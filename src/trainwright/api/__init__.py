"""The verbs of Trainwright, as the command line and notebooks use them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainwright.api.certificates import verify_certificate
    from trainwright.api.checking import check_data
    from trainwright.api.compressing import compress
    from trainwright.api.configs import check, init, schema
    from trainwright.api.data import data_add, data_delete, data_gc, data_get, data_log, data_show
    from trainwright.api.differences import data_diff, why
    from trainwright.api.exporting import export
    from trainwright.api.forking import fork
    from trainwright.api.housekeeping import clean, delete, get, list_runs, summaries, sync
    from trainwright.api.monitoring import alert_rules, drift, monitor, reference
    from trainwright.api.planning import plan
    from trainwright.api.predicting import generate, predict, predict_chunks, predict_file
    from trainwright.api.results import compare, evaluate, explain, load, report
    from trainwright.api.retraining import retrain
    from trainwright.api.studies import (
        benchmark,
        cross_validate,
        reproduce_study,
        resume_study,
        suggest_tuning,
        tune,
        work_study,
    )
    from trainwright.api.training import reproduce, resume, stop, train
    from trainwright.api.working import create, work
    from trainwright.errors import Interrupted
    from trainwright.runs.run import Run

__all__ = [
    "Interrupted",
    "Run",
    "alert_rules",
    "benchmark",
    "check",
    "check_data",
    "clean",
    "compare",
    "compress",
    "create",
    "cross_validate",
    "data_add",
    "data_delete",
    "data_diff",
    "data_gc",
    "data_get",
    "data_log",
    "data_show",
    "delete",
    "drift",
    "evaluate",
    "explain",
    "export",
    "fork",
    "generate",
    "get",
    "init",
    "list_runs",
    "load",
    "monitor",
    "plan",
    "predict",
    "predict_chunks",
    "predict_file",
    "reference",
    "report",
    "reproduce",
    "reproduce_study",
    "resume",
    "resume_study",
    "retrain",
    "schema",
    "stop",
    "suggest_tuning",
    "summaries",
    "sync",
    "train",
    "tune",
    "verify_certificate",
    "why",
    "work",
    "work_study",
]

# A verb's module is imported when the verb is first used: a list of runs needs nothing that trains.
_VERBS = {
    "certificates": ("verify_certificate",),
    "checking": ("check_data",),
    "compressing": ("compress",),
    "configs": ("check", "init", "schema"),
    "data": ("data_add", "data_delete", "data_gc", "data_get", "data_log", "data_show"),
    "differences": ("data_diff", "why"),
    "exporting": ("export",),
    "forking": ("fork",),
    "housekeeping": ("clean", "delete", "get", "list_runs", "summaries", "sync"),
    "monitoring": ("alert_rules", "drift", "monitor", "reference"),
    "planning": ("plan",),
    "predicting": ("generate", "predict", "predict_chunks", "predict_file"),
    "results": ("compare", "evaluate", "explain", "load", "report"),
    "retraining": ("retrain",),
    "studies": (
        "benchmark",
        "cross_validate",
        "reproduce_study",
        "resume_study",
        "suggest_tuning",
        "tune",
        "work_study",
    ),
    "training": ("reproduce", "resume", "stop", "train"),
    "working": ("create", "work"),
}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name == "Run":
        from trainwright.runs.run import Run

        return Run
    if name == "Interrupted":
        from trainwright.errors import Interrupted

        return Interrupted
    module = next((module for module, verbs in _VERBS.items() if name in verbs), None)
    if module is None:
        raise AttributeError(f"module 'trainwright.api' has no attribute {name!r}")
    return getattr(import_module(f"trainwright.api.{module}"), name)
