"""Four reviewers over one document: prefilled once, answered in one batch.

Run `swarmkv up --model demo` in another terminal first. Usage: python examples/review.py [FILE]
"""

import asyncio
import sys
from pathlib import Path

from swarmkv.producer import BranchSpec, Producer, Sampling

QUESTIONS = {
    "liability": "What is the liability cap?",
    "termination": "With what notice can the licence be ended?",
    "retries": "How many retransmissions are allowed, and do all sections agree?",
    "security": "Which cipher protects a frame?",
}


async def main(path: Path) -> None:
    sampling = Sampling(temperature=0, max_tokens=40)
    branches = [BranchSpec(name=name, prompt=text, sampling=sampling) for name, text in QUESTIONS.items()]
    async with Producer() as producer:
        run = await producer.submit(path.read_text("utf-8"), branches, name=path.name)
        report = await run.results()
    for branch in report.branches:
        print(f"{branch.name}: {branch.text.strip() if branch.error is None else branch.error.message}")
    print(f"{report.prefills_run} prefill, {report.prefill_saved_ms / 1000:.1f} s of prefill avoided")


if __name__ == "__main__":
    sample = Path(__file__).parent.parent / "cli/swarmkv/cli/samples/specification.md"
    asyncio.run(main(Path(sys.argv[1]) if len(sys.argv) > 1 else sample))
