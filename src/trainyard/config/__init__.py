"""The schema of a config, and its loading."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainyard.config.adapters import Adapters
from trainyard.config.load import load
from trainyard.config.overrides import Overrides
from trainyard.config.resolved import Resolved, flatten
from trainyard.config.schema import RunConfig
from trainyard.config.tree import Source

Config = Path | str | Mapping[str, Any]  # a YAML file, or its content as a mapping

__all__ = ["Adapters", "Config", "Overrides", "Resolved", "RunConfig", "Source", "flatten", "load"]
