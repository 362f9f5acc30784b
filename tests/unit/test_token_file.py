"""A token that is made once and kept."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from swarmkv.cli.token_file import kept_token
from swarmkv.monitor.web.access import MIN_SECRET_CHARS
from swarmkv.protocol.errors import ConfigError


def test_a_token_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "token"
    token = kept_token(path)
    assert len(token) >= MIN_SECRET_CHARS
    assert kept_token(path) == token
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_processes_that_start_at_once_get_the_same_token(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        assert len(set(pool.map(kept_token, [tmp_path / "token"] * 64))) == 1


def test_a_token_that_somebody_wrote_is_taken_without_its_line_end(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text("mine\n")
    assert kept_token(path) == "mine"


@pytest.mark.parametrize(("text", "mode", "problem"), [("", 0o600, "is empty"), ("mine", 0o644, "chmod 600")])
def test_a_file_that_is_empty_or_open_to_others_is_refused(
    tmp_path: Path, text: str, mode: int, problem: str
) -> None:
    path = tmp_path / "token"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(ConfigError) as caught:
        kept_token(path)
    assert problem in str(caught.value) + caught.value.hint


def test_a_place_where_no_file_can_be_is_named_with_the_setting(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be used") as caught:
        kept_token(tmp_path / "file" / "token")
    assert "SWARMKV_MONITOR_TOKEN_FILE" in caught.value.hint
