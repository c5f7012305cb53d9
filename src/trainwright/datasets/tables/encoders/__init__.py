"""Encoders, which turn the columns of a table into features: one file per kind of column."""
