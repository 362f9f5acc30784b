"""Watching the queues: what Redis says of runs, workers and snapshots, as a page, as metrics, and in a terminal."""
