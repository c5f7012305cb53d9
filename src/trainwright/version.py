"""The version of Trainwright."""

VERSION = "0.1.0"
