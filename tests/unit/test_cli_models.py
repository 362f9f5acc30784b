"""The option --model."""

from __future__ import annotations

import pytest

from swarmkv.cli.models import ModelChoice, parse_alias, parse_model, parse_models
from swarmkv.protocol.errors import ConfigError


@pytest.mark.parametrize(
    ("value", "alias", "ref"),
    [
        ("demo", "default", "demo"),
        ("legal=demo", "legal", "demo"),
        ("/models/a.gguf", "default", "/models/a.gguf"),
        ("./a=b.gguf", "default", "./a=b.gguf"),
        ("legal=./a=b.gguf", "legal", "./a=b.gguf"),
        ("hf://owner/repo/file.gguf", "default", "hf://owner/repo/file.gguf"),
        ("code=hf://owner/repo/file.gguf", "code", "hf://owner/repo/file.gguf"),
    ],
)
def test_the_alias_is_what_stands_before_the_equals_sign(value: str, alias: str, ref: str) -> None:
    assert parse_model(value) == ModelChoice(alias, ref)


@pytest.mark.parametrize("value", ["", "=a.gguf", "legal="])
def test_half_a_model_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="names no"):
        parse_model(value)


def test_an_alias_given_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="'default' 2 times"):
        parse_models(["a.gguf", "b.gguf"])


@pytest.mark.parametrize(
    ("value", "alias"),
    [
        ("legal", "legal"),
        ("legal=a.gguf", "legal"),
        ("demo", "default"),
        ("a.gguf", "default"),
        ("hf://o/r/f.gguf", "default"),
    ],
)
def test_enqueue_takes_the_same_option_and_means_the_alias(value: str, alias: str) -> None:
    assert parse_alias(value) == alias


@pytest.mark.parametrize("value", ["a\x1b[31m=b", "a b=c", "a b", "a\x1b[31m", "-x", "x" * 65, "hf:x"])
def test_what_can_be_no_alias_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="is no alias"):
        parse_alias(value)


def test_an_empty_alias_is_refused() -> None:
    with pytest.raises(ConfigError, match="names no model"):
        parse_alias("")


def test_a_bad_alias_of_a_model_to_load_is_refused_and_not_taken_for_a_path() -> None:
    with pytest.raises(ConfigError, match="'a b' is no alias"):
        parse_model("a b=c.gguf")
    assert parse_model("./a b=c.gguf") == ModelChoice("default", "./a b=c.gguf")
