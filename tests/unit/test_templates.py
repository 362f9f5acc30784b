"""Templates, as text: where system text, document and prompt go, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmkv.protocol.errors import InvalidInput, ModelError
from swarmkv.workers.engine.templates import DEFAULT_PLAIN, Side, Slot, template_of
from tests.tiny_models import CHATML

LLAMA2 = """{% if messages[0]['role'] == 'system' %}
{% set system = '<<SYS>>\\n' + messages[0]['content'] + '\\n<</SYS>>\\n\\n' %}
{% set messages = messages[1:] %}
{% else %}{% set system = '' %}{% endif %}
{% for message in messages %}
{{ bos_token + '[INST] ' + system + message['content'] | trim + ' [/INST]' }}
{% endfor %}"""
GEMMA2 = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}
{{ raise_exception('System role not supported') }}{% endif %}
{% for message in messages %}
{% if message['role'] == 'assistant' %}{% continue %}{% endif %}
{{ '<start_of_turn>' + message['role'] + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}
{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"""
IGNORES_SYSTEM = "{% for m in messages if m.role == 'user' %}<u>{{ m.content }}</u>{% endfor %}"
DATED = "{{ strftime_now('%d %b %Y') }} {{ messages[-1]['content'] }}"


def written(side: Side) -> str:
    """A side with its slots spelled out."""
    return "".join(f"[{part.name}]" if isinstance(part, Slot) else part for part in side)


def test_a_chat_template_puts_system_text_and_document_in_the_prefix_and_the_prompt_behind() -> None:
    template = template_of(CHATML, "", None)
    user = "<|im_start|>user\n[DOCUMENT]"
    assert written(template.bare_prefix) == user
    assert written(template.system_prefix) == f"<|im_start|>system\n[SYSTEM]<|im_end|>\n{user}"
    assert written(template.suffix) == "\n\n[PROMPT]<|im_end|>\n<|im_start|>assistant\n"


def test_a_system_text_inside_the_first_user_turn_stays_there() -> None:
    template = template_of(LLAMA2, "<s>", None)
    assert written(template.bare_prefix) == "[INST] [DOCUMENT]"
    assert written(template.system_prefix) == "[INST] <<SYS>>\n[SYSTEM]\n<</SYS>>\n\n[DOCUMENT]"
    assert written(template.suffix) == "\n\n[PROMPT] [/INST]\n"


@pytest.mark.parametrize("source", [GEMMA2, IGNORES_SYSTEM])
def test_a_template_that_refuses_or_ignores_the_system_role_gets_it_in_front_of_the_document(
    source: str,
) -> None:
    template = template_of(source, "<bos>", None)
    assert written(template.system_prefix).endswith("[SYSTEM]\n\n[DOCUMENT]")
    bare = written(template.bare_prefix)
    assert written(template.system_prefix).replace("[SYSTEM]\n\n", "") == bare


def test_a_system_turn_that_changes_what_follows_the_document_is_not_used() -> None:
    source = "{% for m in messages %}<{{ m.content }}>{% endfor %}{{ messages | length }}"
    template = template_of(source, "", None)
    assert written(template.system_prefix) == "<[SYSTEM]\n\n[DOCUMENT]"
    assert written(template.suffix) == "\n\n[PROMPT]>1"


def test_bos_text_at_the_head_is_taken_off_and_remembered() -> None:
    assert template_of(GEMMA2, "<bos>", None).emits_bos
    assert not written(template_of(GEMMA2, "<bos>", None).bare_prefix).startswith("<bos>")
    assert not template_of(CHATML, "<bos>", None).emits_bos
    assert template_of(None, "<s>", "<s>{document}{prompt}").emits_bos


def test_a_base_model_gets_the_plain_template_and_a_users_own_replaces_any_other() -> None:
    plain = template_of(None, "", None)
    assert written(plain.bare_prefix) == "[DOCUMENT]"
    assert written(plain.system_prefix) == "[SYSTEM]\n\n[DOCUMENT]"
    assert written(plain.suffix) == "\n\nQuestion: [PROMPT]\nAnswer:"
    own = template_of(CHATML, "", '{"text": "{document}", "ask": {{prompt}}}')
    assert written(own.bare_prefix) == '{"text": "[DOCUMENT]'
    assert written(own.suffix) == '", "ask": {[PROMPT]}}'


@pytest.mark.parametrize(
    "override",
    ["", "{document}", "{prompt}", "{prompt}{document}", "{document}{document}{prompt}", "{ document }"],
)
def test_a_template_without_its_two_places_in_order_is_refused_with_the_rule(override: str) -> None:
    with pytest.raises(InvalidInput, match=r"\{document\} once and, behind it, \{prompt\} once"):
        template_of(None, "", override)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% for m in messages %}", "cannot be read"),
        ("{{ messages[0]['content'] + missing }}", "'missing' is undefined"),
        ("{{ raise_exception('only tools') }}", "only tools"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("hello", "does not keep the user's text"),
        ("{{ messages[0]['content'] | upper }}", "does not keep the user's text"),
        ("{{ messages[0]['content'] * 2 }}", "does not keep the user's text"),
    ],
)
def test_a_chat_template_that_cannot_be_used_is_an_error_with_reason_and_remedy(source: str, reason: str) -> None:
    with pytest.raises(ModelError, match=reason) as error:
        template_of(source, "", None)
    assert "Set a template" in error.value.hint


def test_a_template_renders_the_same_on_every_day() -> None:
    assert written(template_of(DATED, "", None).bare_prefix) == "26 Jul 2024 [DOCUMENT]"


def test_generation_marks_and_json_of_transformers_are_understood() -> None:
    source = "{{ {'é': 1} | tojson }}{% generation %}{{ messages[0].content }}{% endgeneration %}"
    assert written(template_of(source, "", None).bare_prefix) == '{"é": 1}[DOCUMENT]'


def test_the_digest_of_a_template_is_stable_and_tells_templates_apart() -> None:
    digests = [
        template_of(CHATML, "", None).digest,
        template_of(LLAMA2, "", None).digest,
        template_of(None, "", None).digest,
        template_of(None, "", "{document} {prompt}").digest,
        template_of(None, "", CHATML + "{document}{prompt}").digest,
    ]
    assert len(set(digests)) == len(digests)
    assert template_of(None, "", DEFAULT_PLAIN).digest == template_of(None, "", None).digest
    assert template_of(CHATML, "", None).digest == digests[0]


short = st.text("ab\n", max_size=3)


@given(one=st.tuples(st.none() | short, short), two=st.tuples(st.none() | short, short))
def test_prefixes_share_a_digest_only_if_system_text_and_document_are_equal(
    one: tuple[str | None, str], two: tuple[str | None, str]
) -> None:
    template = template_of(None, "", None)
    same = template.prefix_digest(*one) == template.prefix_digest(*two)
    assert same is (one == two)


def test_text_that_moves_between_template_and_system_text_changes_the_prefix_digest() -> None:
    in_template = template_of(None, "", "Read: \n\n{document}\n{prompt}")
    in_system = template_of(None, "", "{document}\n{prompt}")
    assert in_template.prefix_digest(None, "d") != in_system.prefix_digest("Read: ", "d")
