"""How a prompt becomes ids: special tokens, truncation, the chat template's options, bad words, and their limits."""

from __future__ import annotations

from typing import Any

import pytest
import tokenizers
from tokenizers import processors

from callboard.actors import bad_words, prompt_encoder
from callboard.actors.prompt_encoder import EncodedPrompt, PromptEncoder
from callboard.errors import InvalidRequest
from callboard.mailbox.messages.requests import (
    AS_IT_IS,
    ChatMessage,
    ChatPrompt,
    Generate,
    Prompt,
    PromptOptions,
    TextPrompt,
    TokenPrompt,
)
from callboard.mailbox.messages.sampling import SamplingParams
from callboard.tests.actors.tokenizer_rig import TokenizerRig
from callboard.text import ChatTemplate, Tokenizer
from callboard.topology.boards import MAX_SAMPLING_ENTRIES

BOS, A, B, C, SPACE, END = range(6)
AB_CHAT = ChatPrompt((ChatMessage("user", "a"), ChatMessage("assistant", "b")))


def make_tokenizer(template: str | None = None) -> Tokenizer:
    """One token a letter, and one that the tokenizer puts before a text."""
    names = ["<bos>", "a", "b", "c", "Ġ", "<end>"]
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({name: i for i, name in enumerate(names)}, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(["<bos>", "<end>"])
    backend.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", BOS)])
    chat_template = None if template is None else ChatTemplate(template, {"eos_token": "<end>"})
    return Tokenizer(backend, bos_token_id=BOS, eos_token_ids=(END,), chat_template=chat_template, where="test")


CHAT = (
    "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ opening or 'c' }}{% endif %}"
)


def encode(
    prompt: Prompt, options: PromptOptions = AS_IT_IS, max_model_len: int = 10, num_choices: int = 1, **sampling: Any
) -> EncodedPrompt:
    params = SamplingParams(**({"seed": 1} | sampling))
    generate = Generate("r", 1, "f", "t", "s", prompt, params, 0, num_choices=num_choices, options=options)
    return PromptEncoder(make_tokenizer(CHAT), max_model_len).encode(generate)


def ids_of(prompt: Prompt, max_model_len: int = 10, max_tokens: int | None = None, **options: Any) -> list[int]:
    return encode(prompt, PromptOptions(**options), max_model_len, max_tokens=max_tokens).token_ids


def refusal(*args: Any, **more: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        encode(*args, **more)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    ("adds", "text", "chat"),
    [
        (None, [BOS, A, B], [A, END, B, END, C]),
        (True, [BOS, A, B], [BOS, A, END, B, END, C]),
        (False, [A, B], [A, END, B, END, C]),
    ],
)
def test_special_tokens_are_added_to_text_and_to_chat_if_asked_for(
    adds: bool | None, text: list[int], chat: list[int]
) -> None:
    assert ids_of(TextPrompt("ab"), add_special_tokens=adds) == text
    assert ids_of(AB_CHAT, add_special_tokens=adds) == chat
    assert ids_of(TokenPrompt([A, B]), add_special_tokens=adds) == [A, B]


def test_options_of_the_template() -> None:
    assert ids_of(AB_CHAT, add_generation_prompt=False) == [A, END, B, END]
    assert ids_of(AB_CHAT, add_generation_prompt=False, continue_final_message=True) == [A, END, B]
    assert ids_of(AB_CHAT, template_kwargs=b'{"opening": "abc"}') == [A, END, B, END, A, B, C]
    assert refusal(AB_CHAT, PromptOptions(continue_final_message=True)).param == "continue_final_message"
    assert refusal(AB_CHAT, PromptOptions(template_kwargs=b'{"messages": []}')).param == "chat_template_kwargs"
    assert refusal(AB_CHAT, PromptOptions(template_kwargs=b'{"eos_token": ""}')).param == "chat_template_kwargs"


@pytest.mark.parametrize(
    ("num_kept", "max_tokens", "expected"),
    [
        (None, None, [BOS, A, B, C, A]),
        (5, None, [BOS, A, B, C, A]),
        (4, None, [A, B, C, A]),
        (1, None, [A]),
        (99, None, [BOS, A, B, C, A]),
        (-1, None, [BOS, A, B, C, A]),
        (-1, 5, [BOS, A, B, C, A]),
        (-1, 6, [A, B, C, A]),
        (-1, 9, [A]),
    ],
)
def test_the_last_tokens_are_kept(num_kept: int | None, max_tokens: int | None, expected: list[int]) -> None:
    given = {"truncate_prompt_tokens": num_kept, "max_tokens": max_tokens}
    assert ids_of(TextPrompt("abca"), **given) == expected
    assert ids_of(TokenPrompt([BOS, A, B, C, A]), **given) == expected


def test_of_a_chat_too() -> None:
    assert ids_of(AB_CHAT, truncate_prompt_tokens=3, add_special_tokens=True) == [B, END, C]
    assert ids_of(AB_CHAT, truncate_prompt_tokens=-1, max_tokens=6) == [END, B, END, C]


def test_minus_one_makes_any_prompt_fit() -> None:
    for length in (9, 10, 11, 200):
        for max_tokens in (None, 1, 3, 9):
            ids = ids_of(TokenPrompt([A] * length), max_tokens=max_tokens, truncate_prompt_tokens=-1)
            assert len(ids) == min(length, 10 - (max_tokens or 1))


@pytest.mark.parametrize(
    ("num_kept", "max_tokens", "words", "param"),
    [
        (0, None, "no tokens", "prompt"),
        (-2, None, "truncate_prompt_tokens is -2", "truncate_prompt_tokens"),
        (10, None, "prompt has 10 tokens", "prompt"),
        (6, 5, "prompt has 6 tokens and max_tokens is 5", "max_tokens"),
        (-1, 10, "no tokens", "prompt"),
    ],
)
def test_what_cannot_be_truncated_or_does_not_fit_then(
    num_kept: int, max_tokens: int | None, words: str, param: str
) -> None:
    error = refusal(TokenPrompt([A] * 30), PromptOptions(truncate_prompt_tokens=num_kept), max_tokens=max_tokens)
    assert words in error.message and error.param == param


def test_a_text_that_is_truncated_is_read_within_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_encoder, "MAX_CHARS", 400)
    options = PromptOptions(truncate_prompt_tokens=3)
    assert encode(TextPrompt("b" * 399 + "a"), options).token_ids == [B, B, A]
    error = refusal(TextPrompt("b" * 401), options)
    assert "401 characters, the limit is 400" in error.message
    assert (error.param, error.code) == ("prompt", "context_length_exceeded")
    # It may fit as it is, so it is read, as it would be without the option.
    assert encode(TextPrompt("b" * 401), options, max_model_len=500).token_ids == [B, B, B]
    assert refusal(TextPrompt("b" * 80)).message.startswith("prompt has 80 characters, which are at least")


# Prompt details


@pytest.mark.parametrize(
    ("prompt", "options", "text"),
    [
        (TextPrompt("ab"), AS_IT_IS, "ab"),
        (TextPrompt("ab"), PromptOptions(truncate_prompt_tokens=3), "ab"),
        (TextPrompt("ab"), PromptOptions(truncate_prompt_tokens=2), "ab"),
        (TextPrompt("abc"), PromptOptions(truncate_prompt_tokens=2), "bc"),
        (TokenPrompt([BOS, A, END]), AS_IT_IS, "<bos>a<end>"),
        (AB_CHAT, AS_IT_IS, "a<end>b<end>c"),
    ],
)
def test_the_text_of_a_prompt(prompt: Prompt, options: PromptOptions, text: str) -> None:
    assert encode(prompt, options, prompt_logprobs=0).text == text
    assert encode(prompt, options).text is None


def test_so_many_log_probabilities_of_a_prompt_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_encoder, "MAX_PROMPT_LOGPROBS", 24)
    prompt = TokenPrompt([A] * 4)
    encode(prompt, num_choices=2, prompt_logprobs=2)
    encode(prompt, num_choices=3)
    error = refusal(prompt, num_choices=3, prompt_logprobs=2)
    assert "36 log-probabilities, the limit is 24" in error.message and error.param == "prompt_logprobs"


# Bad words


def bad_ids(*words: str, **sampling: Any) -> tuple[tuple[int, ...], ...]:
    made = encode(TokenPrompt([A]), bad_words=words, **sampling).sampling
    assert made.bad_words == ()
    return made.bad_token_ids


def test_a_bad_word_is_kept_off_at_the_beginning_and_behind_a_space() -> None:
    assert bad_ids("ab") == bad_ids("  ab") == ((A, B), (SPACE, A, B))
    assert bad_ids("a", "b", "a") == ((A,), (SPACE, A), (B,), (SPACE, B))
    assert bad_ids(" ") == ((SPACE,), (SPACE, SPACE))
    assert bad_ids("<end>") == ((END,), (SPACE, END))
    assert bad_ids("c", bad_token_ids=((C,), (A, B))) == ((C,), (A, B), (SPACE, C))
    assert bad_ids() == ()


@pytest.mark.parametrize("word", ["", "xyz"])  # no token has these letters
def test_a_bad_word_without_tokens_is_named(word: str) -> None:
    error = refusal(TokenPrompt([A]), bad_words=("a", word))
    assert repr(word) in error.message and error.param == "bad_words"


def test_too_many_ids_are_a_400(monkeypatch: pytest.MonkeyPatch) -> None:
    half = MAX_SAMPLING_ENTRIES // 2
    # "a" * n gives n ids and 1 more behind a space; each sequence counts one more.
    assert len(bad_ids("a" * (half - 2), stop_token_ids=(A,))) == 2
    error = refusal(TokenPrompt([A]), bad_words=("a" * (half - 2),), stop_token_ids=(A, B))
    assert f"hold {MAX_SAMPLING_ENTRIES + 1:,} token ids together" in error.message and error.param == "bad_words"
    biases = tuple((i, 1.0) for i in range(MAX_SAMPLING_ENTRIES))
    encode(TokenPrompt([A]), logit_bias=biases)
    assert refusal(TokenPrompt([A]), logit_bias=biases, stop_token_ids=(A,)).param == "logit_bias"
    monkeypatch.setattr(bad_words, "MAX_CHARS", 5)
    assert "6 characters, the limit is 5" in refusal(TokenPrompt([A]), bad_words=("abc", "abc")).message


async def test_what_is_admitted_has_bad_ids_and_a_priority() -> None:
    rig = TokenizerRig()
    rig.actor.handle(rig.request(bad_words=("ab",), priority=-3, options=PromptOptions(truncate_prompt_tokens=1)))
    await rig.encode()
    (admit,) = rig.sent()
    assert (admit.priority, admit.prompt_token_ids) == (-3, [2])
    assert (admit.sampling.bad_words, admit.sampling.bad_token_ids) == ((), ((4,), (8, 4)))
