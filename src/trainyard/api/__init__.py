"""The verbs of Trainyard, as the command line and notebooks use them."""

from trainyard.api.configs import check, init, schema
from trainyard.api.differences import why
from trainyard.api.forking import fork
from trainyard.api.housekeeping import clean, get, list_runs, summaries, sync
from trainyard.api.results import (
    compare,
    evaluate,
    explain,
    export,
    load,
    predict,
    predict_chunks,
    predict_file,
    report,
)
from trainyard.api.studies import (
    benchmark,
    cross_validate,
    reproduce_study,
    resume_study,
    suggest_tuning,
    tune,
)
from trainyard.api.training import reproduce, resume, stop, train
from trainyard.api.working import create, work
from trainyard.runs.run import Run

__all__ = [
    "Run",
    "benchmark",
    "check",
    "clean",
    "compare",
    "create",
    "cross_validate",
    "evaluate",
    "explain",
    "export",
    "fork",
    "get",
    "init",
    "list_runs",
    "load",
    "predict",
    "predict_chunks",
    "predict_file",
    "report",
    "reproduce",
    "reproduce_study",
    "resume",
    "resume_study",
    "schema",
    "stop",
    "suggest_tuning",
    "summaries",
    "sync",
    "train",
    "tune",
    "why",
    "work",
]
