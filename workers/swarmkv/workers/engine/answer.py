"""What one running branch has said so far, and when."""

from __future__ import annotations

from swarmkv.workers.engine.jobs import BranchEnded, BranchJob
from swarmkv.workers.engine.samplers import Greedy, Sampler, is_greedy
from swarmkv.workers.engine.text import TextStream
from swarmkv.workers.engine.tokens import Vocab

MS = 1000.0


class Answer:
    """Sampler, text and clock of one branch; owns the sampler's memory until `close`.

    Times are seconds of a monotonic clock.
    """

    def __init__(self, job: BranchJob, vocab: Vocab, taken_s: float) -> None:
        """Raises InvalidBranch for sampling that the vocabulary does not allow."""
        self.stream = TextStream(job.sampling.stop)
        self.sampler = _sampler_of(job, vocab)
        self.restore_s = 0.0
        self._vocab = vocab
        self._ignore_eos = job.sampling.ignore_eos
        self._taken_s = taken_s
        self._prompt_s = 0.0
        self._first_token_s = 0.0

    def prompt_decoded(self, at_s: float) -> None:
        """Called before each token; the first time counts."""
        self._prompt_s = self._prompt_s or at_s

    def take(self, token: int, at_s: float) -> tuple[str, bool]:
        """The text that a sampled token lets out, and whether it ends the answer."""
        self._first_token_s = self._first_token_s or at_s
        if self._vocab.is_eog(token) and not self._ignore_eos:
            return self.stream.finish(), True
        text = self.stream.push(self._vocab.piece(token))
        return text, self.stream.stopped

    def ended(self, job_id: str, *, is_stopped: bool, generated: int, at_s: float) -> BranchEnded:
        """The last event of the branch."""
        return BranchEnded(
            id=job_id,
            text=self.stream.text,
            finish_reason="stop" if is_stopped else "length",
            generated=generated,
            recomputed=0,  # every branch is a fork of a restored prefix
            restore_ms=self.restore_s * MS,
            prompt_ms=(self._prompt_s - self._taken_s) * MS,
            first_token_ms=(self._first_token_s - self._taken_s) * MS,
            decode_ms=(at_s - self._first_token_s) * MS,
            total_ms=(at_s - self._taken_s) * MS,
        )

    def close(self) -> None:
        """Free the sampler. May be called twice."""
        if isinstance(self.sampler, Sampler):
            self.sampler.close()


def _sampler_of(job: BranchJob, vocab: Vocab) -> Sampler | Greedy:
    if is_greedy(job.sampling):
        return Greedy(vocab, job.sampling)
    sampler = Sampler(vocab, job.sampling)
    sampler.accept(job.prompt)
    return sampler
