"""The config: its schema, and loading it."""

from trainyard.config.adapters import Adapters
from trainyard.config.load import load
from trainyard.config.resolved import Resolved, flatten
from trainyard.config.schema import RunConfig
from trainyard.config.tree import Source

__all__ = ["Adapters", "Resolved", "RunConfig", "Source", "flatten", "load"]
