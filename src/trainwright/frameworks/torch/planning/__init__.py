"""Estimates of memory and communication on a mesh, from shapes alone: no device and no process is needed.

`model` makes the model without memory and records the passes of a microbatch (`trace`), whose moments are
played again (`memory`), in the stages of a process (`stages`), with what the strategy of a mesh adds to them.
`estimate` finds the meshes that are possible, what they send, and which are best.
"""
