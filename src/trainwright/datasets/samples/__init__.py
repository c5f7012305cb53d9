"""Samples of any format: arrays, objects, map-style data sets, shards, files and their hashes, weights."""
