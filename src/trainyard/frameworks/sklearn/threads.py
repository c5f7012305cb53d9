"""The numbers of threads of the libraries under scikit-learn, which belong to the whole process."""

from __future__ import annotations

import threading

from trainyard.require import require

# Held by what changes the numbers for a while: with two at once, the one that ends last would set numbers
# again that the other had set. Each step holds it, and so do predictions in which scikit-learn sets them.
SETTING_THREADS = threading.RLock()


def pin_threads(threads: int) -> None:
    """Set the number of threads of BLAS in this process, and of OpenMP in this thread, until it is set again.

    Raises:
        MissingExtraError: scikit-learn or threadpoolctl is not installed.
    """
    require("sklearn", "sklearn")  # which loads the libraries
    controller = require("threadpoolctl", "sklearn").ThreadpoolController()
    with SETTING_THREADS:
        controller.limit(limits=threads)
