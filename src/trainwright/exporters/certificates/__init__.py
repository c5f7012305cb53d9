"""Certificates of artifacts: the rows that are compared, the comparison, and the reader that verifies it."""
