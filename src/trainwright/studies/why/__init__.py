"""The reasons why two runs differ: which of their differences moved a metric."""
