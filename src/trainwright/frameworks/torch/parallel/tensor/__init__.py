"""Exact tensor parallelism: layers that are always computed in the same slices, on any number of processes.

A plan says which layers are split (`plan`, `plans`); `parallelize` splits them; `region` computes what lies
between two of them; `slices` has the sums over slices and processes.
"""
