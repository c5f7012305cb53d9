"""Training runs as pure functions of config, data, code, environment, seed and initial weights.

import trainyard

run = trainyard.train("config.yaml", {"training.epochs": 3})
trainyard.load(run).predict(frame)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainyard.module_sources import watch
from trainyard.version import VERSION

__version__ = VERSION

__all__ = [
    "Run",
    "__version__",
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
    "report",
    "reproduce",
    "resume",
    "schema",
    "stop",
    "sync",
    "train",
    "tune",
    "work",
]

watch()

if TYPE_CHECKING:
    from trainyard.api import (
        benchmark,
        check,
        clean,
        compare,
        create,
        cross_validate,
        evaluate,
        explain,
        export,
        fork,
        get,
        init,
        list_runs,
        load,
        predict,
        report,
        reproduce,
        resume,
        schema,
        stop,
        sync,
        train,
        tune,
        work,
    )
    from trainyard.runs.run import Run


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    # The verbs are imported when they are first used, so that `import trainyard` costs nothing.
    if name in __all__:
        from trainyard import api

        return getattr(api, name)
    raise AttributeError(f"module 'trainyard' has no attribute {name!r}")
