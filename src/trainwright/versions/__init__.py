"""Versions of data: what names the content of a file or folder exactly, so that a run can have it again."""
