"""How models mark the reasoning in an answer: a row of data each.

| style | an answer |
|---|---|
| `think` (Qwen 3, DeepSeek R1 and V3.1, GLM 4.5, Kimi K2 Thinking) | `<think>\\nreasoning\\n</think>\\n\\ncontent` |
| `mistral` (Magistral) | `[THINK]reasoning[/THINK]content` |
| `harmony` (gpt-oss) | `<\\|channel\\|>analysis<\\|message\\|>reasoning<\\|end\\|>`, then other channels' messages |
"""

from __future__ import annotations

from typing import Literal

import msgspec

State = Literal["closed", "open", "may_open"]
"""Of the reasoning where the answer begins: the prompt has closed it (or the model has none), the prompt has opened it,
or the model may open it itself."""


class Tags(msgspec.Struct, frozen=True, tag=True):
    """One reasoning section between two markers, at the beginning of the answer."""

    name: str
    begin: str
    end: str
    template_signs: tuple[str, ...]
    """The style is recognised by a chat template in which all of them stand."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Tokens of their own: a detokenizer that skips special tokens must keep these."""
        return (self.begin, self.end)

    @property
    def content_begin(self) -> str:
        """What stands before the content where there is reasoning; a grammar for the content starts behind it."""
        return self.end


class Channels(msgspec.Struct, frozen=True, tag=True):
    """Messages with a channel each; one with a recipient is a tool call."""

    name: str
    reasoning_channels: tuple[str, ...]
    markers: tuple[str, ...]
    content_begin: str
    template_signs: tuple[str, ...]


Style = Tags | Channels

THINK = Tags("think", "<think>", "</think>", ("</think>",))
MISTRAL = Tags("mistral", "[THINK]", "[/THINK]", ("[THINK]", "[/THINK]"))
HARMONY = Channels(
    name="harmony",
    reasoning_channels=("analysis",),
    markers=("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"),
    content_begin="<|channel|>final<|message|>",
    template_signs=("<|channel|>", "analysis"),
)

STYLES: dict[str, Style] = {style.name: style for style in (HARMONY, MISTRAL, THINK)}


def detect_reasoning(template: str) -> str | None:
    """The name of the first style whose signs stand in the text of a chat template; None: the model does not reason."""
    for style in STYLES.values():
        if all(sign in template for sign in style.template_signs):
            return style.name
    return None


def reasoning_state(style: Style, prompt_text: str, *, continued: str = "") -> State:
    """The state in which a rendered prompt leaves the reasoning.

    `continued`: the content of the last message if the answer goes on in it; the prompt ends with it.
    """
    before = prompt_text.removesuffix(continued) if continued else prompt_text
    match style:
        case Tags():
            return _state_of_tags(style, before.rstrip(), continued)
        case Channels():
            return _state_of_channels(style, prompt_text)


def _state_of_tags(style: Tags, prompt: str, continued: str) -> State:
    """Only the end of the prompt counts: messages before may speak of the markers."""
    begin, end = continued.rfind(style.begin), continued.rfind(style.end)
    if begin != end:
        return "open" if begin > end else "closed"
    if prompt.endswith(style.begin):
        return "open"
    return "closed" if continued.strip() or prompt.endswith(style.end) else "may_open"


def _state_of_channels(style: Channels, prompt: str) -> State:
    """By the channel of the last message if it is begun."""
    _, _, message = prompt.rpartition("<|start|>")
    head, is_begun, _ = message.partition("<|message|>")
    if not is_begun:
        return "may_open"
    _, _, channel = head.rpartition("<|channel|>")
    return "open" if channel.split(maxsplit=1)[:1] in [[name] for name in style.reasoning_channels] else "closed"
