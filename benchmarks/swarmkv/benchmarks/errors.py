"""What a benchmark raises beside the errors of the parts that it runs."""

from __future__ import annotations

from swarmkv.protocol.errors import SwarmkvError


class BenchFailed(SwarmkvError):
    """A measurement could not be taken, or a peer gave no answer."""

    code = "bench_failed"
