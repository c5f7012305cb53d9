"""The life of a run.

An attempt is a process life of it: `startup` builds everything (by `wiring`, where components are put
together) and restores the newest checkpoint, `attempt` trains, and `outcome` evaluates. `session` writes the
records of that. The folders have what belongs to one subject.
"""
