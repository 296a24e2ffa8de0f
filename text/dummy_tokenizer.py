"""A tokenizer for a model that brings none: a token a byte, and a made-up word for every other id.

So any prompt can be sent, its length in tokens is that in bytes, and whatever a model with random weights samples has a
text that can be seen.
"""

from __future__ import annotations

from itertools import islice, product
from string import ascii_lowercase

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from ..checkpoints import Checkpoint, read_shape
from .byte_level import CHARACTER_TO_BYTE
from .chat_template import ChatTemplate
from .tokenizer import Tokenizer

TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
_SPACE = "\u0120"
"""A space in the byte-level alphabet."""


def make_dummy_tokenizer(checkpoint: Checkpoint, chat_template: str | None) -> Tokenizer:
    """For the vocabulary size and the special ids in the checkpoint's config.json.

    `chat_template` replaces the plain one here, an empty one is none.
    """
    shape = read_shape(checkpoint)
    marks = {token_id: f"<|end_{token_id}|>" for token_id in shape.eos_token_ids}
    if shape.bos_token_id is not None:
        marks[shape.bos_token_id] = "<|begin|>"
    bytes_first = sorted(CHARACTER_TO_BYTE, key=lambda character: not 32 <= CHARACTER_TO_BYTE[character] < 127)
    words = (_SPACE + "".join(letters) for size in range(2, 8) for letters in product(ascii_lowercase, repeat=size))
    others = iter([*bytes_first, *islice(words, shape.vocab_size)])
    tokens = [marks[token_id] if token_id in marks else next(others) for token_id in range(shape.vocab_size)]
    backend = tokenizers.Tokenizer(models.BPE({token: token_id for token_id, token in enumerate(tokens)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in marks.values()])
    source = TEMPLATE if chat_template is None else chat_template
    return Tokenizer(
        backend,
        bos_token_id=shape.bos_token_id,
        eos_token_ids=shape.eos_token_ids,
        chat_template=ChatTemplate(source, {}, where="the chat template of a dummy model") if source else None,
        where=checkpoint.path,
    )
