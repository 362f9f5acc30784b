"""Submit a run, follow it, collect its results."""

from swarmkv.producer.handle import RunHandle
from swarmkv.producer.producer import Producer
from swarmkv.producer.sync import SyncProducer, SyncRunHandle
from swarmkv.protocol.messages import BranchReport, BranchSpec, DeadBranch, RunReport, Sampling

__all__ = [
    "BranchReport",
    "BranchSpec",
    "DeadBranch",
    "Producer",
    "RunHandle",
    "RunReport",
    "Sampling",
    "SyncProducer",
    "SyncRunHandle",
]
