"""Templates for models whose files have none, in the format that they were trained with.

DeepSeek publishes V4 with Python code instead of a template. A conversation is

    <BOS>system, tools<｜User｜>..<｜Assistant｜><think>..</think>.. calls<EOS>
    <｜User｜><tool_result>..</tool_result><tool_result>..</tool_result><｜Assistant｜>..

without line ends between turns; `</think>` alone opens a reply that does not think. Reasoning of
earlier turns stays only where there are tools.
"""

from collections.abc import Collection

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

DEEPSEEK_V4 = """{%- set thinks = thinking is not defined or thinking %}
{%- set last = namespace(user=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set last.user = loop.index0 %}{% endif %}
{%- endfor %}
{{- bos_token }}
{%- if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}
{%- if tools %}
{{- '\n\n' if messages[0].role == 'system' }}
{{- '## Tools\n\nTools can be called with a block of this form:\n\n' }}
{{- '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="$TOOL_NAME">\n' }}
{{- '<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE' }}
{{- '</｜DSML｜parameter>\n...\n</｜DSML｜invoke>\n...\n</｜DSML｜tool_calls>\n\n' }}
{{- 'A text stands there as it is, with string="true"; any other value as JSON, with ' }}
{{- 'string="false".\n\n### Available Tool Schemas\n' }}
{%- for tool in tools %}{{ '\n' + (tool.function | tojson) }}{% endfor %}
{%- endif %}
{%- for m in messages %}
{%- if m.role == 'system' and not loop.first %}{{ m.content }}
{%- elif m.role == 'user' %}{{ '<｜User｜>' + m.content }}
{%- elif m.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<｜User｜>' }}{% endif %}
{{- '<tool_result>' + m.content + '</tool_result>' }}
{%- elif m.role == 'assistant' %}
{{- '<｜Assistant｜>' }}
{%- if thinks and (tools or loop.index0 > last.user) %}{{ '<think>' + (m.reasoning_content or '') }}
{%- endif %}
{{- '</think>' + (m.content or '') }}
{%- if m.tool_calls %}
{{- '\n\n<｜DSML｜tool_calls>\n' }}
{%- for call in m.tool_calls %}
{{- '<｜DSML｜invoke name="' + call.function.name + '">\n' }}
{%- for key, value in call.function.arguments.items() %}
{{- '<｜DSML｜parameter name="' + key + '" string="' }}
{{- ('true' if value is string else 'false') + '">' }}
{{- (value if value is string else value | tojson) + '</｜DSML｜parameter>\n' }}
{%- endfor %}{{ '</｜DSML｜invoke>\n' }}
{%- endfor %}{{ '</｜DSML｜tool_calls>' }}
{%- endif %}
{{- eos_token }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<｜Assistant｜>' + ('<think>' if thinks else '</think>') }}
{%- endif %}"""


def own_template(architecture: str, tokens: Collection[str]) -> tuple[str, str] | None:
    """The template for a file of that architecture which has none, and what it is called; None
    where the special `tokens` are not those of a format that is known."""
    if architecture == "deepseek4" and {"<｜User｜>", "<｜Assistant｜>", "｜DSML｜"} <= set(tokens):
        return DEEPSEEK_V4, "DeepSeek V4's format"
    if {"<|im_start|>", "<|im_end|>"} <= set(tokens):
        return CHATML, "ChatML"
    return None
