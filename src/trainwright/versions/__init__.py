"""Versions of data: exact names for the content of a file or folder, by which a run can fetch it again."""
