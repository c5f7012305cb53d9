"""Tables: columns and their kinds, targets, preparation, splitting, checks."""
