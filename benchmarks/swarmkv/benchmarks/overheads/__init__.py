"""What stands beside the engine: Python in a step, two workers on the same cores, a restart."""
