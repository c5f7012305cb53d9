"""The processes of an attempt: where they compute, how they start, join and stop, and what they undo."""
