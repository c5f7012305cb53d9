"""Contract suites for adapters, to be subclassed in the tests of an adapter."""
