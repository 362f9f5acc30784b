"""One document, many prompts, through every scheme that people would use: the same token ids, taking turns."""
