-- The snapshots that unfinished runs still need: they are not to be evicted.
return needed_snapshots()
