"""Estimates of memory and communication on a mesh, from shapes alone: no device and no process is needed.

`model` makes the model without memory and records the passes of a microbatch (`trace`), whose moments are
played again (`memory`) as the strategy of a mesh would have them; `meshes` finds the meshes that are possible,
`traffic` what they send, and `estimate` puts these together.
"""
