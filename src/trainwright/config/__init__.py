"""The schema of a config, and its loading."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainwright.config.adapters import Adapters
from trainwright.config.load import load
from trainwright.config.overrides import Overrides
from trainwright.config.resolved import Resolved, flatten
from trainwright.config.schema import RunConfig
from trainwright.config.tree import Source

Config = Path | str | Mapping[str, Any]  # a YAML file, or its content as a mapping

__all__ = ["Adapters", "Config", "Overrides", "Resolved", "RunConfig", "Source", "flatten", "load"]
