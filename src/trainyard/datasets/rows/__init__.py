"""What the adapters of data sets share: tables, targets, preparation, splitting, checks, and rows given as objects."""
