"""Training runs as pure functions of config, data, code, environment, seed and initial weights.

import trainwright

run = trainwright.train("config.yaml", {"training.epochs": 3})
trainwright.load(run).predict(frame)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainwright.process.module_sources import watch
from trainwright.version import VERSION

__version__ = VERSION

__all__ = [
    "Interrupted",
    "Run",
    "__version__",
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
    "sync",
    "train",
    "tune",
    "verify_certificate",
    "why",
    "work",
    "work_study",
]

watch()

if TYPE_CHECKING:
    from trainwright.api import (
        alert_rules,
        benchmark,
        check,
        check_data,
        clean,
        compare,
        compress,
        create,
        cross_validate,
        data_add,
        data_delete,
        data_diff,
        data_gc,
        data_get,
        data_log,
        data_show,
        delete,
        drift,
        evaluate,
        explain,
        export,
        fork,
        generate,
        get,
        init,
        list_runs,
        load,
        monitor,
        plan,
        predict,
        predict_file,
        reference,
        report,
        reproduce,
        reproduce_study,
        resume,
        resume_study,
        retrain,
        schema,
        stop,
        suggest_tuning,
        sync,
        train,
        tune,
        verify_certificate,
        why,
        work,
        work_study,
    )
    from trainwright.errors import Interrupted
    from trainwright.runs.run import Run


# Verbs of other libraries.
_OTHER_VERBS = {
    "fit": "train",
    "run": "train",
    "Trainer": "train",
    "eval": "evaluate",
    "test": "evaluate",
    "score": "evaluate",
    "validate": "evaluate",
    "cross_val_score": "cross_validate",
    "cv": "cross_validate",
    "load_model": "load",
    "save": "export",
    "save_model": "export",
    "infer": "predict",
    "compare_models": "benchmark",
    "runs": "list_runs",
    "search_runs": "list_runs",
    "get_run": "get",
}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    # The verbs are imported when they are first used, so that `import trainwright` costs nothing.
    if name in __all__:
        from trainwright import api

        return getattr(api, name)
    hint = f"; did you mean trainwright.{_OTHER_VERBS[name]}?" if name in _OTHER_VERBS else ""
    raise AttributeError(f"module 'trainwright' has no attribute {name!r}{hint}")
