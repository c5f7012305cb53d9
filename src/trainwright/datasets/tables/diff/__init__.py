"""The differences of two tables: columns, rows, cells, and the distributions of columns."""
