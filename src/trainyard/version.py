"""The version of Trainyard."""

VERSION = "0.1.0"
