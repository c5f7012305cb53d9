"""The framework of a run, of which reports ask what they need to know of its models."""

from __future__ import annotations

from collections.abc import Iterator

from trainwright import plugins
from trainwright.errors import TrainwrightError
from trainwright.frameworks.base import Framework
from trainwright.reports.rundir import RunFiles, part


def framework_of(run: RunFiles) -> type[Framework] | None:
    """Return the framework that trained a run, as far as its records tell; None if that is not known here."""
    for name in _names(run):
        try:
            found: type[Framework] | None = plugins.find("framework", name)
        except TrainwrightError:  # of a plugin that cannot be used
            continue
        if found is not None:
            return found
    return None


def _names(run: RunFiles) -> Iterator[str]:
    """Yield what may be the name of the framework, the surest first."""
    model = part(run.settings, "model")
    if name := model.get("framework"):
        yield str(name)
    if name := plugins.framework_of(str(model.get("type", ""))):
        yield name
    if run.manifest is None:
        return
    yield from (name for name in run.manifest.semantics if name in plugins.names("framework"))
    # The model of another library's trainer, or a class of a plugin's: by the versions that were noted.
    described = run.manifest.environment.framework
    yield from (
        name
        for name, framework in plugins.adapters("framework")
        if any(module in described for module in framework.library.modules)
    )
