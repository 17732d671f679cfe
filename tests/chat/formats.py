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
    ("<tool_call>", CONTROL),  # a mark inside replies that a file calls control
    ("</tool_call>", USER_DEFINED),
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


# --- templates with tools, thinking and forms of content, in the manner of real families ----

# Qwen2.5's manner: Hermes' syntax, arguments as objects.
HERMES = """{%- if tools %}
{{- '<|im_start|>system\n' ~ (messages[0].content if messages[0].role == 'system' else 'Help.') }}
{%- for tool in tools %}{{ '\n' ~ (tool | tojson) }}{% endfor %}
{{- '\n<tool_call>\n{"name": <name>, "arguments": <object>}\n</tool_call><|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\n' ~ messages[0].content ~ '<|im_end|>\n' }}
{%- endif %}
{%- for m in messages %}
{%- if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}
{{- '<|im_start|>' ~ m.role ~ '\n' ~ m.content ~ '<|im_end|>\n' }}
{%- elif m.role == 'assistant' %}
{{- '<|im_start|>assistant' ~ ('\n' ~ m.content if m.content else '') }}
{%- for call in m.tool_calls %}
{{- '\n<tool_call>\n{"name": "' ~ call.function.name ~ '", "arguments": ' }}
{{- (call.function.arguments | tojson) ~ '}\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- elif m.role == 'tool' %}
{{- '<|im_start|>user\n<tool_response>\n' ~ m.content ~ '\n</tool_response><|im_end|>\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

# Qwen3's: reasoning of turns after the last question, thinking that can be switched off.
THINKING = """{%- set ns = namespace(last=0) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}
{%- endfor %}
{%- for m in messages %}
{{- '<|im_start|>' ~ m.role ~ '\n' }}
{%- if m.role == 'assistant' and m.reasoning_content and loop.index0 > ns.last %}
{{- '<think>\n' ~ m.reasoning_content.strip() ~ '\n</think>\n\n' }}
{%- endif %}
{{- m.content ~ '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}
{{- '<think>\n\n</think>\n\n' }}
{%- endif %}
{%- endif %}"""

# Llama 3's: tools by their parts, "parameters", results of a role of their own.
BY_PARTS = """{{- bos_token }}
{%- if tools %}<|system|>
{%- for tool in tools %}
{{- tool.function.name ~ ': ' ~ tool.function.description ~ '\n' }}
{%- for key, schema in tool.function.parameters.properties.items() %}
{{- key ~ ' ' ~ schema.type }}
{{- '!' if key in tool.function.parameters.required else '?' }}
{%- if schema.type == 'string' %} text{% endif %}{{ '\n' }}
{%- endfor %}
{%- endfor %}<|end|>
{%- endif %}
{%- for m in messages %}
{%- if 'tool_calls' in m %}
{%- set call = m.tool_calls[0].function %}
{{- '<|assistant|>{"name": "' ~ call.name ~ '", "parameters": ' ~ (call.arguments | tojson) }}
{{- '}<|end|>' }}
{%- elif m.role == 'tool' %}
{{- '<|tool|>' ~ (m.content | tojson) ~ '<|end|>' }}
{%- else %}
{{- '<|' ~ m.role ~ '|>' ~ (m.content | trim) ~ '<|end|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""

# DeepSeek's: no content beside calls, arguments as text.
BY_TEXT = """{%- for m in messages %}
{%- if m.role == 'assistant' and m.content is none %}
{%- for call in m.tool_calls %}
{{- '<|tool|>' + call.type + '<|end|>' + call.function.name + '\n```json\n' }}
{{- call.function.arguments + '\n```' }}
{%- endfor %}
{%- else %}
{{- '<|' + m.role + '|>' + m.content }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""

# Gemma's: no system turns, the assistant is the model, strictly one after the other.
NO_SYSTEM = """{{- bos_token }}
{%- for m in messages %}
{%- if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate') }}
{%- endif %}
{{- '<|' ~ ('tool' if m.role == 'assistant' else m.role) ~ '|>\n' ~ (m.content | trim) }}
{{- '<|end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}<|tool|>{{ '\n' }}{% endif %}"""

# SmolVLM's: content is a list of parts.
PARTS = """{%- for m in messages %}
{{- '<|' ~ m.role ~ '|>' }}
{%- for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}
{{- '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""

# Qwen3's again: results of one reply share a turn; the reasoning of the newest tool rounds stays.
MERGED_RESULTS = """{%- if tools %}
{{- '<|im_start|>system\n' ~ (messages[0].content ~ '\n' if messages[0].role == 'system' else '') }}
{%- for tool in tools %}{{ (tool | tojson) ~ '\n' }}{% endfor %}
{{- '<tool_call>\n{"name": <name>, "arguments": <object>}\n</tool_call><|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\n' ~ messages[0].content ~ '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(last=messages | length - 1, looking=true) %}
{%- for m in messages[::-1] %}
{%- if ns.looking and m.role == 'user' %}
{%- set ns.looking = false %}{% set ns.last = messages | length - 1 - loop.index0 %}
{%- endif %}
{%- endfor %}
{%- for m in messages %}
{%- if m.role == 'user' or (m.role == 'system' and not loop.first) %}
{{- '<|im_start|>' ~ m.role ~ '\n' ~ m.content ~ '<|im_end|>\n' }}
{%- elif m.role == 'assistant' %}
{{- '<|im_start|>assistant\n' }}
{%- if loop.index0 > ns.last and (loop.last or m.reasoning_content) %}
{{- '<think>\n' ~ (m.reasoning_content or '') ~ '\n</think>\n\n' }}
{%- endif %}
{{- m.content }}
{%- for call in m.tool_calls or [] %}
{%- if m.content or not loop.first %}{{ '\n' }}{% endif %}
{{- '<tool_call>\n{"name": "' ~ call.function.name ~ '", "arguments": ' }}
{%- if call.function.arguments is string %}{{ call.function.arguments }}
{%- else %}{{ call.function.arguments | tojson }}{% endif %}
{{- '}\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- elif m.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
{{- '\n<tool_response>\n' ~ m.content ~ '\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}
{{- '<think>\n\n</think>\n\n' }}
{%- endif %}
{%- endif %}"""

# R1's: the template opens the thought itself, and tells nothing of it later.
OPEN_THOUGHT = """{{- bos_token }}
{%- for m in messages %}
{%- if m.role == 'assistant' %}
{%- set said = m.content.split('</think>')[-1] if '</think>' in m.content else m.content %}
{{- '<|assistant|>' ~ said ~ '</s>' }}
{%- else %}{{ '<|' ~ m.role ~ '|>' ~ m.content }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|><think>\n' }}{% endif %}"""

# Mistral's: what tools there are is told beside the last question.
LATE_TOOLS = """{{- bos_token }}
{%- set questions = messages | selectattr('role', 'equalto', 'user') | list %}
{%- for m in messages %}
{%- if m.role == 'user' %}
{%- if tools and m == questions[-1] %}{{ '[INST]' ~ (tools | tojson) ~ '[/INST]' }}{% endif %}
{{- '[INST] ' ~ m.content ~ '[/INST]' }}
{%- elif m.role == 'tool' %}{{ '<|tool|> ' ~ m.content ~ '<|end|>' }}
{%- elif m.tool_calls %}
{%- for call in m.tool_calls %}
{{- '<tool_call> {"name": "' ~ call.function.name ~ '", "arguments": ' }}
{{- (call.function.arguments | tojson) ~ '}' }}
{%- endfor %}{{ '</s>' }}
{%- elif m.role == 'assistant' %}{{ ' ' ~ m.content ~ '</s>' }}
{%- else %}{{ '<|system|>' ~ m.content ~ '<|end|>' }}
{%- endif %}
{%- endfor %}"""

# Harmony's: a result is told by the name that the call before it had.
NAMED_BY_CALL = """{%- set ns = namespace(name=none) %}
{%- for m in messages %}
{%- if m.role == 'assistant' and m.tool_calls %}
{%- set ns.name = m.tool_calls[0].function.name %}
{{- '<|assistant|>' ~ (m.content or '') ~ '<tool_call>' ~ ns.name ~ ' ' }}
{{- (m.tool_calls[0].function.arguments | tojson) ~ '<|end|>' }}
{%- elif m.role == 'tool' %}
{%- if ns.name is none %}{{ raise_exception('A result without a call.') }}{% endif %}
{{- '<|tool|>' ~ ns.name ~ ' to=assistant ' ~ m.content ~ '<|end|>' }}
{%- else %}{{ '<|' ~ m.role ~ '|>' ~ m.content ~ '<|end|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""

# SmolLM3's: the switch is in the system turn, at the conversation's very beginning.
SWITCH_IN_SYSTEM = (
    "<|system|>{{ '/think' if enable_thinking is not defined or enable_thinking else '/no_think' }}"
    "<|end|>"
    + roles("<|{{ m.role }}|>{{ m.content }}<|end|>")
    + "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

# Llama 3's once more, strict.
ONE_CALL = BY_PARTS.replace(
    "{%- set call =",
    "{%- if m.tool_calls | length > 1 %}{{ raise_exception('One call at once!') }}{% endif %}\n"
    "{%- set call =",
)

# Qwen3.5's: a system text stands at the beginning or nowhere.
SYSTEM_FIRST = (
    roles(
        "{% if m.role == 'system' and not loop.first %}",
        "{{ raise_exception('System message must be at the beginning.') }}{% endif %}",
        "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n",
    )
    + ASSISTANT
)

# A text that goes on where another ended, without a word between them.
SEAMLESS = (
    roles("{{ m.role ~ ': ' ~ m.content ~ ' ' }}")
    + "{% if add_generation_prompt %}assistant:{% endif %}"
)

# All that tests render conversations with.
CORPUS = {
    **ALL,
    "unstable": UNSTABLE,
    "hermes": HERMES,
    "thinking": THINKING,
    "by parts": BY_PARTS,
    "by text": BY_TEXT,
    "no system": NO_SYSTEM,
    "parts": PARTS,
    "merged results": MERGED_RESULTS,
    "open thought": OPEN_THOUGHT,
    "late tools": LATE_TOOLS,
    "named by call": NAMED_BY_CALL,
    "one call": ONE_CALL,
    "system first": SYSTEM_FIRST,
    "switch in system": SWITCH_IN_SYSTEM,
    "seamless": SEAMLESS,
}
