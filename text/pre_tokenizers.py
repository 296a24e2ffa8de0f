"""How families of byte-level BPE tokenizers split a text before they merge, by the names of GGUF's tokenizer.ggml.pre.

A rule is a sequence of regular expressions (Oniguruma's dialect); each is searched in the pieces that those before it
have left, and every match becomes a piece of its own. The expressions are those in the models' own tokenizer.json or
tiktoken code; which name stands for which rule is llama.cpp's convention
(https://github.com/ggml-org/llama.cpp/blob/master/src/llama-vocab.cpp).
"""

from __future__ import annotations

from typing import NamedTuple

from tokenizers import Regex, normalizers, pre_tokenizers

_CONTRACTIONS = "'(?i:s|t|re|ve|m|ll|d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""Radford et al. 2019."""

LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
"""That of GPT-4's cl100k_base: up to three digits."""

QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
"""The same with digits one by one."""

QWEN3_5 = QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")
"""Marks belong to their letters."""

_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_WORDS = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+CONTRACTION|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*CONTRACTION"
    rf"|DIGITS| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
GPT4O = _CASED_WORDS.replace("CONTRACTION", f"(?:{_CONTRACTIONS})?").replace("DIGITS", r"\p{N}{1,3}")
"""o200k_base: a word ends where small letters do."""
TEKKEN = _CASED_WORDS.replace("CONTRACTION", "").replace("DIGITS", r"\p{N}")
"""Mistral's."""

_CASED_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377"
    "\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556"
    "\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"
    "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    "\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc"
    "\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
    "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b"
    "\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
)
"""Of the scripts with capital letters, those that DeepSeek LLM's expression lists."""
_CJK_AND_MORE = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"

DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_CASED_LETTERS}]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    _CJK_AND_MORE,
    r"\p{N}+",
)
DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK_AND_MORE, r"\p{N}")
DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    rf"|{_SPACES}",
)

FALCON = (r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]")
DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]")
"""What files of llama.cpp's first BPE conversions were run with."""
SINGLE_DIGITS = (r"\p{N}", GPT2)


class SplitRule(NamedTuple):
    """What happens to a text before its pieces are merged, and what follows from the family."""

    splits: tuple[str, ...]
    composes: bool = False
    """The text is brought into Unicode's NFC form first."""
    ignores_merges: bool = False
    """A piece that is a token is that token, whatever the merges say."""
    adds_bos: bool = False
    """Files that do not say whether texts begin with BOS mean that they do."""


_LLAMA3_RULE = SplitRule((LLAMA3,), ignores_merges=True, adds_bos=True)
_QWEN2_RULE = SplitRule((QWEN2,), composes=True)
_GPT2_RULE = SplitRule((GPT2,))
_SINGLE_DIGITS_RULE = SplitRule(SINGLE_DIGITS)

SPLIT_RULES: dict[str, SplitRule] = {
    "default": SplitRule(DEFAULT),
    "gpt-2": _GPT2_RULE,
    "phi-2": _GPT2_RULE,
    "exaone4": _GPT2_RULE,
    "olmo": SplitRule((GPT2,), composes=True),
    "mpt": SplitRule((GPT2,), composes=True),
    "smollm": _SINGLE_DIGITS_RULE,
    "starcoder": _SINGLE_DIGITS_RULE,
    "refact": _SINGLE_DIGITS_RULE,
    "codeshell": _SINGLE_DIGITS_RULE,
    "command-r": SplitRule(SINGLE_DIGITS, composes=True),
    "falcon": SplitRule(FALCON),
    "llama-bpe": _LLAMA3_RULE,
    "llama3": _LLAMA3_RULE,
    "llama-v3": _LLAMA3_RULE,
    "falcon3": _LLAMA3_RULE,
    "pixtral": _LLAMA3_RULE,
    "dbrx": SplitRule((LLAMA3,)),
    "smaug-bpe": SplitRule((LLAMA3,)),
    "chatglm-bpe": SplitRule((LLAMA3,)),
    "glm4": SplitRule((LLAMA3,)),
    "qwen2": _QWEN2_RULE,
    "deepseek-r1-qwen": _QWEN2_RULE,
    "stablelm2": _QWEN2_RULE,
    "qwen35": SplitRule((QWEN3_5,), composes=True),
    "gpt-4o": SplitRule((GPT4O,)),
    "llama4": SplitRule((GPT4O,)),
    "tekken": SplitRule((TEKKEN,), ignores_merges=True, adds_bos=True),
    "deepseek-llm": SplitRule(DEEPSEEK_LLM),
    "deepseek-coder": SplitRule(DEEPSEEK_CODER),
    "deepseek-v3": SplitRule(DEEPSEEK_V3),
}
"""tokenizer.ggml.pre -> rule."""


def split_pre_tokenizer(rule: SplitRule) -> pre_tokenizers.PreTokenizer:
    """The rule's splits, then bytes as characters; the package does the two in one step where GPT-2's is the last."""
    splits_last = rule.splits[-1] == GPT2
    splits = rule.splits[:-1] if splits_last else rule.splits
    steps: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Split(Regex(split), behavior="isolated") for split in splits
    ]
    return pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=splits_last)])


def split_normalizer(rule: SplitRule) -> normalizers.Normalizer | None:
    """The rule's normalizer, None if texts stay as they are."""
    return normalizers.NFC() if rule.composes else None
