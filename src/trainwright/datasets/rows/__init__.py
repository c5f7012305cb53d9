"""Tables, targets, preparation, splitting, checks and objects, which the adapters of data sets share."""
