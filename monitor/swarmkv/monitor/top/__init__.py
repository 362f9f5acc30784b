"""`swarmkv top`: queues, workers, runs and snapshots in a terminal, live."""
