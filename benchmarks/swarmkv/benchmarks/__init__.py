"""What `swarmkv bench` runs: each measurement returns one JSON document, tables and charts are made of that."""
