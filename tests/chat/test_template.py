"""Templates see Hugging Face's helpers; what goes wrong in one is named with its line."""

from datetime import datetime
from typing import Any

import pytest

from ds4tui.chat.template import ChatTemplate
from ds4tui.errors import TemplateError

HELLO = [{"role": "user", "content": "hello"}]


def render(source: str, messages: list[dict[str, Any]] = HELLO, **variables: str) -> str:
    return ChatTemplate(source, variables).render(messages)


def test_blocks_leave_no_lines_and_no_indents() -> None:
    source = """{% for m in messages %}
    {% if m.role == 'user' %}
user: {{ m['content'] }}
    {% endif %}
{% endfor %}
"""
    assert render(source) == "user: hello\n"


def test_variables_and_what_is_not_there() -> None:
    source = "{{ bos_token }}|{{ tools }}|{{ tools is none }}|{{ add_generation_prompt }}|{{ no }}"
    assert render(source, bos_token="<s>") == "<s>|None|True|True|"


def test_without_a_generation_prompt() -> None:
    template = ChatTemplate("a{% if add_generation_prompt %}b{% endif %}", {})
    assert template.render(HELLO) == "ab"
    assert template.render(HELLO, add_generation_prompt=False) == "a"


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("{'b': '<é>', 'a': [1, true, none]} | tojson", '{"b": "<é>", "a": [1, true, null]}'),
        ("{'a': 1} | tojson(indent=2)", '{\n  "a": 1\n}'),
        ("'é' | tojson(ensure_ascii=true)", '"\\u00e9"'),
        ("{'b': 1, 'a': 2} | tojson(sort_keys=true)", '{"a": 2, "b": 1}'),
        ("[1, 2] | tojson(separators=(',', ':'))", "[1,2]"),
    ],
)
def test_tojson_is_for_models_not_for_html(expression: str, wanted: str) -> None:
    assert render("{{ " + expression + " }}") == wanted


def test_strftime_now_shows_the_clock_it_is_given() -> None:
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", {})
    assert template.render(HELLO, now=lambda: datetime(2031, 5, 6)) == "06 May 2031"


def test_loop_controls_and_namespaces() -> None:
    source = (
        "{% set ns = namespace(n=0) %}{% for i in range(9) %}{% if i == 2 %}{% continue %}"
        "{% endif %}{% if i == 5 %}{% break %}{% endif %}{% set ns.n = ns.n + i %}{% endfor %}"
        "{{ ns.n }}"
    )
    assert render(source) == "8"


def test_generation_tags_are_taken_for_their_body() -> None:
    source = (
        "{% set x = 1 %}a{% generation %}{{ x }}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}"
    )
    assert render(source) == "a121"


def test_a_refusal_is_in_the_templates_words() -> None:
    with pytest.raises(TemplateError) as caught:
        render("\n\n{{ raise_exception('Only users may speak.') }}")
    assert caught.value.message == (
        "The chat template refuses this conversation: Only users may speak. (line 3)."
    )


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("a\n{{ 1 / 0 }}", "line 2: division by zero"),
        ("\n\n{{ messages[7].content.x }}", "line 3: .*no element 7"),
        ("{{ messages[0].content + 1 }}", "line 1: .*str"),
        ("{{ messages[0].content.nope() }}", "line 1: .*nope"),
        ("{{ 'x' | int(base=99) | nothing_like_it }}", "line 1: No filter named"),
        ("{% for i in range(10000000) %}{% endfor %}", "line 1: Range too big"),
        ("{% macro m() %}{{ m() }}{% endmacro %}\n{{ m() }}", "recursion"),
        ("{{ ''.__class__.__mro__ }}", "line 1: .*unsafe"),
        ("{{ messages.append(1) }}", "line 1: .*unsafe"),
        ("{% include 'x' %}", "line 1"),
        ("{{ ['a'] | tojson(indent='x', separators=3) }}", "line 1"),
        ("{% set x = messages[0] %}\n{{ x | tojson | dictsort }}", "line 2"),
    ],
)
def test_failures_name_the_line(source: str, words: str) -> None:
    with pytest.raises(TemplateError, match=words) as caught:
        render(source)
    assert caught.value.http_status == 400


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("{% if %}", 1),
        ("\n{% for a in b %}", 2),
        ("a\nb {{ 'x }}", 2),
        ("}}{{", 1),
        ("{{ " + "(" * 9000, 0),
    ],
)
def test_wrong_syntax_is_found_before_any_render(source: str, line: int) -> None:
    with pytest.raises(TemplateError, match=f"wrong at line {line}") as caught:
        ChatTemplate(source, {})
    assert caught.value.hint


def test_a_message_cannot_be_code() -> None:
    assert render("{{ messages[0].content }}", [{"role": "user", "content": "{{ 1 + 1 }}"}]) == (
        "{{ 1 + 1 }}"
    )


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        (
            "{% for i in range(99999) %}{% for j in range(99999) %}words{% endfor %}{% endfor %}",
            "without end",
        ),
        ("{{ 'x' * 10 ** 12 }}", "repeats a text too often"),
        ("{{ 10 ** 12 * [messages] }}", "repeats a text too often"),
        ("{{ 10 ** (10 ** 9) }}", "a power is too large"),
        ("{{ '%1000000000d' % 1 }}", "padded too wide"),
    ],
)
def test_what_a_template_writes_has_an_end(source: str, complaint: str) -> None:
    with pytest.raises(TemplateError, match=complaint):
        ChatTemplate(source, {}).render([{"role": "user", "content": "Hi"}])


def test_long_conversations_are_written_whole_more_than_once() -> None:
    turns = [{"role": "user", "content": "word " * 1_000_000}] * 2
    source = "{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}{{ '-' * 80 }}"
    assert len(ChatTemplate(source, {}).render(turns)) == 20_000_080
