"""How fast snapshots go out of and into the KV cache, against how fast this machine copies memory."""
