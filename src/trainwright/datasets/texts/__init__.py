"""Texts: tokenizers, and the preparation of columns of text."""
