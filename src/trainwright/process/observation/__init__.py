"""Observe what the user's code reads while the process works on a run: files, folders, environment variables.

An audit hook (PEP 578) sees each file that Python opens. What raises no event is replaced while a run is
observed: `stat`, `lstat`, `access`, `readlink` and `open` of `os`, `Thread.start`, `BaseProcess.start` of
`multiprocessing`, and the class of `os.environ` and `os.environb`; a finder is added to `sys.meta_path`.
Native code raises no event either where it opens a file: the readers of well-known libraries are wrapped
(`native_readers.py`). Hook and wrappers are added once in a process, and sleep outside of `observing`.

A read is the user's if a function of theirs, or a library that it calls, makes it (`call_origins.py`); what
Trainwright reads by itself, and what libraries read when they are imported, is not. The traces are verifying
ones: what was read is noted with its content (Mokhov, Mitchell and Peyton Jones, "Build systems à la carte",
2018).
"""
