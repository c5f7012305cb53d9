"""Libraries that take seconds to import: not in each process that collects the tests."""

import functools
from collections.abc import Callable
from typing import Any

from trainwright.frameworks.keras.backend import import_keras


class Late:
    """A module that is imported when something of it is first used."""

    def __init__(self, load: Callable[[], Any]) -> None:
        self._load = load

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_", "pytest")):  # what pytest looks for in all that a test module holds
            raise AttributeError(name)
        return getattr(self._load(), name)


@functools.cache
def keras_in_one_thread() -> tuple[Any, Any]:
    """Keras and TensorFlow, with one thread: that can be said once only in a process, before a model is made.

    All tests that use TensorFlow in the process of the tests begin with it, in whatever order they come.
    """
    keras = import_keras("tensorflow")
    import tensorflow

    tensorflow.config.threading.set_intra_op_parallelism_threads(1)
    return keras, tensorflow
