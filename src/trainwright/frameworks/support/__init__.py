"""Plans, definitions, optimizer options and state in arrays, which framework adapters share."""
