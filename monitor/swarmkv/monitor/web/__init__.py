"""The web page: what the queues do, and a few things to do about it."""
