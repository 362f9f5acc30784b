"""Programs that run with a peer's own Python. Nothing beside them may have a name that such a peer imports."""
