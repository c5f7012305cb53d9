"""Parts that trackers and what stands on them share."""
