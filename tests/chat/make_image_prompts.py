"""What transformers' processors make of tests/chat/image_prompts.py.

    python -m tests.chat.make_image_prompts     needs transformers 5.24.0, as tests/golden/make

Writes image_prompts.npz beside this file: the ids of each model and conversation, of whose
content of texts and images the processors are told part by part.
"""

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image as Pixels
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma3.processing_gemma3 import Gemma3Processor
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor
from transformers.models.qwen2_5_vl.processing_qwen2_5_vl import Qwen2_5_VLProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from ds4tui.chat.messages import Image, Message
from ds4tui.engine.vocabulary import BYTE_CHARACTERS
from tests.chat.image_prompts import CONVERSATIONS, MODELS, RESULT
from tests.chat.sights import SPECIALS
from tests.engine.vision.pictures import CONFIGS
from tests.engine.vocabularies import CONTROL


class OfImages(Qwen2_5_VLProcessor):
    """Without a video processor, which needs torchvision."""

    def check_argument_for_proper_class(self, *given: Any) -> None:
        return


OF_GEMMA = {
    "image_token": "<image_soft_token>",
    "boi_token": "<start_of_image>",
    "eoi_token": "<end_of_image>",
}


def tokenizer(**named: str) -> PreTrainedTokenizerFast:
    """That of tests/chat/sights.py."""
    texts = [*BYTE_CHARACTERS, "th"]
    made = Tokenizer(models.BPE({text: i for i, text in enumerate(texts)}, [("t", "h")]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    for text, kind in SPECIALS:
        token = AddedToken(text, normalized=False, special=kind is CONTROL)
        made.add_special_tokens([token]) if kind is CONTROL else made.add_tokens([token])
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", **named)


def processor(template: str, settings: str) -> Any:
    config = CONFIGS[settings]
    text = tokenizer(**(OF_GEMMA if config.projector == "gemma3" else {}))
    if config.projector == "idefics3":
        pixels = Idefics3ImageProcessorPil(
            size={"longest_edge": config.longest_edge},
            max_image_size={"longest_edge": config.image_side},
        )
        return Idefics3Processor(pixels, text, config.vectors, chat_template=template)
    if config.projector == "gemma3":
        pixels = Gemma3ImageProcessorPil(
            size={"height": config.image_side, "width": config.image_side}
        )
        return Gemma3Processor(pixels, text, template, config.vectors)
    pixels = Qwen2VLImageProcessorPil(
        size={"shortest_edge": config.pixels[0], "longest_edge": config.pixels[1]},
        patch_size=config.patch_side,
        merge_size=config.merge,
    )
    return OfImages(pixels, text, chat_template=template)


def parts(message: Message) -> dict[str, Any]:
    content = [
        {"type": "image", "image": Pixels.open(io.BytesIO(element.data))}
        if isinstance(element, Image)
        else {"type": "text", "text": element}
        for element in message.elements()
    ]
    return {"role": message.role, "content": content if message.images else message.text}


def main() -> None:
    arrays = {}
    for name, (template, settings) in MODELS.items():
        asked = dict(CONVERSATIONS)
        if name == "qwen3vl":
            asked["result"] = RESULT
        for title, messages in asked.items():
            told = [parts(message) for message in messages]
            if name.startswith("smolvlm"):
                for each in told:
                    if isinstance(each["content"], str):
                        each["content"] = [{"type": "text", "text": each["content"]}]
            made = processor(template, settings)
            text = made.apply_chat_template(told, tokenize=False, add_generation_prompt=True)
            images = [p["image"] for m in told for p in m["content"] if p and "image" in p]
            ids = made(text=[text], images=[images])["input_ids"][0]
            arrays[f"{name}/{title}"] = np.array(ids, np.int32)
    np.savez_compressed(Path(__file__).with_name("image_prompts.npz"), **arrays)


if __name__ == "__main__":
    main()
