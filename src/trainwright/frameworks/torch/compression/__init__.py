"""Compressed modules: layers with fewer bits, fewer weights or fewer channels."""
