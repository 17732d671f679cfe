"""Chat formats for tests: one vocabulary, and templates with the habits that real ones have."""

from collections.abc import Sequence
from pathlib import Path

from ds4tui.chat.rendering import CHATML
from ds4tui.engine.tokenizer import Tokenizer
from tests.engine.vocabularies import CONTROL, USER_DEFINED, tokenizer_of

SPECIALS = (
    ("<|im_start|>", CONTROL),
    ("<|im_end|>", CONTROL),
    ("<|user|>", CONTROL),
    ("<|assistant|>", CONTROL),
    ("<|system|>", CONTROL),
    ("<|tool|>", CONTROL),
    ("<|end|>", CONTROL),
    ("<s>", CONTROL),
    ("</s>", CONTROL),
    ("[INST]", CONTROL),
    ("[/INST]", CONTROL),
    ("¤", CONTROL),
    ("<|im_start|>¤", CONTROL),
    ("<think>", USER_DEFINED),  # in some templates below
    ("</think>", USER_DEFINED),
    ("<b>", USER_DEFINED),  # in none
    ("\n\n", USER_DEFINED),
    ("|>!", USER_DEFINED),  # in none, but it could end a control token
)
ID = {text: 257 + number for number, (text, _) in enumerate(SPECIALS)}


def tokenizer(folder: Path, **keys: object) -> Tokenizer:
    keys = {"bos_token_id": ID["<s>"], "eos_token_id": ID["</s>"], **keys}
    return tokenizer_of(folder, *SPECIALS, **keys)


def roles(*turns: str) -> str:
    """A template that writes a piece for each message, then opens the reply."""
    return "{% for m in messages %}" + "".join(turns) + "{% endfor %}"


ASSISTANT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"

DEFAULT_SYSTEM = (
    "{% for message in messages %}"
    "{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' ~ message.role ~ '\n' ~ message.content ~ '<|im_end|>' ~ '\n' }}"
    "{% endfor %}" + ASSISTANT
)

TRIMMING = """{{ bos_token }}
{%- for message in messages %}
    {%- if message['role'] == 'system' %}
        {{- '<|system|>' + message['content'] | trim + '<|end|>' }}
    {%- else %}
        {{- '<|' + message['role'] + '|>\n\n' + message['content'].strip() + '<|end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>\n\n' }}
{%- endif %}"""

ASSEMBLED = (
    roles("{{ '<|' ~ m['role'] ~ '|>\n' ~ m['content'] ~ '<|end|>\n' }}")
    + "{{ '<|assistant|>\n' }}"
)

# No words of its own between what two people say.
BARE = roles("{{ m.content }}") + "<|assistant|>"

# Own words that are pieces of control tokens, right beside what people say.
TEMPTING = roles("<|im_{{ m.content }}|>{{ m.content }}|><{{ m.content }}>") + "<|assistant|>"

CUTTING = (
    roles(
        "<|user|>{{ m.content | replace('_', '') | replace('\n', '') }}",
        "{{ m.content.split('x') | join('') }}{{ m.content[3:] }}<|end|>",
    )
    + "<|assistant|>"
)

TAGGED = (
    roles(
        "{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]{% else %}",
        "<think></think>{{ m.content }}</s>{% endif %}",
    )
    + ""
)

# Stable ones: a turn's rendering begins with the one before it.
STABLE = {
    "chatml": CHATML,
    "default system": DEFAULT_SYSTEM,
    "trimming": TRIMMING,
    "assembled": ASSEMBLED,
}
ALL = {**STABLE, "bare": BARE, "tempting": TEMPTING, "cutting": CUTTING, "tagged": TAGGED}

# The last question ends with an open thought, earlier ones with a closed one.
UNSTABLE = (
    roles(
        "<|{{ m.role }}|>{{ m.content }}",
        "{% if m.role == 'user' %}{{ '<think>' if loop.last else '</think>' }}{% endif %}",
    )
    + "<|assistant|>"
)

ALTERNATING = """{% for m in messages %}
{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Roles must alternate user and assistant.') }}
{% endif %}
<|{{ m.role }}|>{{ m.content }}
{% endfor %}
<|assistant|>"""


def controls(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    return [i for i in ids if tokenizer.is_control(i)]
