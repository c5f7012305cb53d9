"""Servers of trained models."""
