"""A real terminal for tests: a tmux server of its own, with one shell that runs a command."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.waiting import wait_until

PROMPT = "ready$ "


@dataclass(frozen=True)
class Terminal:
    """`socket` is the tmux server's. The shell stays when its command ends."""

    socket: Path

    def tmux(self, *arguments: str) -> str:
        """Run a tmux command; what it prints."""
        done = subprocess.run(
            [shutil.which("tmux") or "tmux", "-S", str(self.socket), *arguments],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
        return done.stdout

    def press(self, *keys: str) -> None:
        """Send keys by tmux' names, or characters."""
        self.tmux("send-keys", "-t", "t", *keys)

    def type(self, text: str) -> None:
        """Send text as it stands."""
        self.tmux("send-keys", "-t", "t", "-l", text)

    def run(self, arguments: Sequence[str]) -> None:
        """Type a command into the shell, which says `ended CODE` behind it."""
        self.type(shlex.join(arguments) + '; echo "ended $?"')
        self.press("Enter")

    @property
    def lines(self) -> list[str]:
        """What stands on the screen."""
        return self.tmux("capture-pane", "-p", "-t", "t").split("\n")

    @property
    def screen(self) -> str:
        return "\n".join(self.lines)

    @property
    def is_alternate(self) -> bool:
        return self.tmux("display-message", "-p", "-t", "t", "#{alternate_on}").strip() == "1"

    @property
    def shows_cursor(self) -> bool:
        return self.tmux("display-message", "-p", "-t", "t", "#{cursor_flag}").strip() == "1"

    @property
    def modes(self) -> str:
        """The terminal's settings, as stty prints them."""
        tty = self.tmux("display-message", "-p", "-t", "t", "#{pane_tty}").strip()
        return subprocess.run(["stty", "-g", "-F", tty], capture_output=True, text=True, check=True).stdout

    def resize(self, columns: int, lines: int) -> None:
        self.tmux("resize-window", "-t", "t", "-x", str(columns), "-y", str(lines))

    def wait_for(self, text: str, timeout_s: float = 20) -> None:
        """Return once `text` stands on the screen; fail with the screen."""
        self.wait(lambda: text in self.screen, what=text, timeout_s=timeout_s)

    def wait(self, condition: Callable[[], bool], *, what: str, timeout_s: float = 20) -> None:
        try:
            wait_until(condition, timeout_s=timeout_s)
        except AssertionError:
            raise AssertionError(f"still not: {what}; the screen is\n{self.screen}") from None


@contextmanager
def terminal(directory: Path, env: dict[str, str], columns: int = 80, lines: int = 24) -> Iterator[Terminal]:
    """A shell in `directory` on a terminal of this size; gone afterwards."""
    shell = Terminal(directory / "tmux.sock")
    variables = {**env, "TERM": "xterm-256color", "PS1": PROMPT}
    subprocess.run(
        [
            *(shutil.which("tmux") or "tmux", "-S", str(shell.socket), "-f", "/dev/null"),
            *("new-session", "-d", "-s", "t", "-x", str(columns), "-y", str(lines), "-c", str(directory)),
            *(
                "env",
                "-i",
                *(f"{name}={value}" for name, value in variables.items()),
                "bash",
                "--norc",
                "--noprofile",
            ),
        ],
        env=variables,
        timeout=20,
        check=True,
    )
    try:
        shell.wait_for(PROMPT.strip())
        yield shell
    finally:
        subprocess.run(
            [shutil.which("tmux") or "tmux", "-S", str(shell.socket), "kill-server"],
            capture_output=True,
            timeout=20,
            check=False,
        )
