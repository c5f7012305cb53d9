"""The processes of an attempt: starting and joining them, the lease, and what is undone at the end."""
