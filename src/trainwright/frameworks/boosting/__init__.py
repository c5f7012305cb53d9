"""Parts of adapters for libraries of boosted trees, where a step is a boosting round over all rows."""
