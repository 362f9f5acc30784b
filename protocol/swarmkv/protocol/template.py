"""The plain template that users can give: text with a place for the document and, behind it, one for the prompt."""

from __future__ import annotations

from swarmkv.protocol.errors import InvalidInput

DOCUMENT, PROMPT = "{document}", "{prompt}"


def split_template(source: str) -> tuple[str, str, str]:
    """What stands before the document, between, and behind the prompt; other braces are plain text.

    Raises InvalidInput unless each place is there once, in this order.
    """
    head, _, rest = source.partition(DOCUMENT)
    middle, prompt, tail = rest.partition(PROMPT)
    places = source.count(DOCUMENT), source.count(PROMPT)
    if places != (1, 1) or not prompt:
        order = ", in the wrong order" if places == (1, 1) else ""
        raise InvalidInput(
            f"The template has {places[0]} x {DOCUMENT} and {places[1]} x {PROMPT}{order}.",
            hint=f"A template needs {DOCUMENT} once and, behind it, {PROMPT} once.",
        )
    return head, middle, tail
