"""`python -m swarmkv.cli` is `swarmkv`."""

from swarmkv.cli.main import run

run()
