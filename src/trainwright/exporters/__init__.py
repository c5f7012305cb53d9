"""Exporters: a run's model as an artifact that others open without Trainwright, and its certificate."""
