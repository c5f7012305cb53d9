"""This process: its clock, environment variables, global generators, and the code that it has imported."""
