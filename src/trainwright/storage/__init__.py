"""The home of a run: its log, its lock and lease, uploads to its store, copies of it, the index of many."""
