"""Plans, definitions, estimators, optimizer options and state in arrays, which framework adapters share."""
