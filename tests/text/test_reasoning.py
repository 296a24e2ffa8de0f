"""Reasoning told from content, over any cut of the text, and tool calls in the content."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.tests.text.tool_call_texts import joined, make_parser
from callboard.text.reasoning import (
    STYLES,
    Content,
    Reasoning,
    State,
    Tags,
    detect_reasoning,
    reasoning_parser,
    reasoning_state,
)
from callboard.text.tool_calls import FAMILIES


def read(style: str, state: State, pieces: Iterable[str], ends_before: tuple[str, ...] = ()) -> tuple[str, str]:
    """All reasoning and all content."""
    parser = reasoning_parser(STYLES[style], state, ends_before=ends_before)
    given_out = [one for piece in pieces for one in parser.feed(piece)] + parser.finish()
    assert all(one.text for one in given_out)
    reasoning = "".join(one.text for one in given_out if isinstance(one, Reasoning))
    return reasoning, "".join(one.text for one in given_out if isinstance(one, Content))


def every_way(style: str, state: State, text: str, ends_before: tuple[str, ...] = ()) -> tuple[str, str]:
    """At once, cut in two everywhere, character by character: all the same."""
    whole = read(style, state, [text], ends_before)
    assert read(style, state, text, ends_before) == whole
    for place in range(1, len(text)):
        assert read(style, state, [text[:place], text[place:]], ends_before) == whole, place
    return whole


@pytest.mark.parametrize(
    ("state", "text", "reasoning", "content"),
    [
        ("may_open", "<think>\nWell: 1 < 2.\n</think>\n\nYes.", "Well: 1 < 2.", "Yes."),
        ("may_open", "\n<think>a</think>b", "a", "b"),
        ("may_open", "<think>\n\n</think>\n\nYes.", "", "Yes."),
        ("may_open", "No tags, <think> only spoken of</think>.", "", "No tags, <think> only spoken of</think>."),
        ("may_open", " \n<thin ice", "", " \n<thin ice"),
        ("may_open", "<think>never ends </thin", "never ends </thin", ""),
        ("may_open", "<thi", "", "<thi"),
        ("may_open", "", "", ""),
        ("open", "Hm.\n</think>\n\nYes.", "Hm.", "Yes."),
        ("open", "<think>\nHm.</think>Yes. </think>", "Hm.", "Yes. </think>"),
        ("open", "Hm, and so on", "Hm, and so on", ""),
        ("open", "</think>Yes.", "", "Yes."),
        ("closed", '{"a": 1}', "", '{"a": 1}'),
        ("closed", "<think>a</think>b", "", "<think>a</think>b"),
        ("closed", " a \n", "", " a \n"),
    ],
)
def test_think_tags(state: State, text: str, reasoning: str, content: str) -> None:
    assert every_way("think", state, text) == (reasoning, content)


def test_mistrals_tags() -> None:
    assert every_way("mistral", "may_open", "[THINK]a[b][/THINK]c") == ("a[b]", "c")


def test_a_tool_call_ends_reasoning_whose_end_marker_was_forgotten() -> None:
    text = 'I call it.\n<tool_call>\n{"name": "run", "arguments": {}}\n</tool_call>'
    expected = ("I call it.", '<tool_call>\n{"name": "run", "arguments": {}}\n</tool_call>')
    assert every_way("think", "open", text, ("<tool_call>",)) == expected
    assert every_way("think", "open", text) == (text, "")


HARMONY_CASES: list[tuple[State, str, str, str]] = [
    (
        "may_open",
        "<|channel|>analysis<|message|>Simple.<|end|><|start|>assistant<|channel|>final<|message|>It is 4.<|return|>",
        "Simple.",
        "It is 4.",
    ),
    ("may_open", "<|channel|>final <|constrain|>json<|message|>{}", "", "{}"),
    ("may_open", "No head at all.", "", "No head at all."),
    ("may_open", "No head <|channel|>final<|message|>then one", "", "No head \nthen one"),
    ("may_open", "<|channel|>ana", "", ""),
    ("may_open", "<|channel|>!<|message|>a", "", "<|channel|>!<|message|>a"),
    ("open", "Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.", "Hm.", "Yes."),
    ("closed", "Yes, <b>.<|return|>", "", "Yes, <b>."),
    (
        "may_open",
        "<|channel|>analysis<|message|>A.<|end|><|start|>assistant<|channel|>analysis<|message|>B.<|end|>"
        "<|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>Done.",
        "A.\nB.",
        "I look.\nDone.",
    ),
    (
        "may_open",
        "<|channel|>analysis<|message|>A.<|end|>"
        "<|start|>assistant to=functions.run<|channel|>commentary json<|message|>{}<|call|>",
        "A.",
        "<|start|>assistant to=functions.run<|channel|>commentary json<|message|>{}<|call|>",
    ),
]


@pytest.mark.parametrize(("state", "text", "reasoning", "content"), HARMONY_CASES)
def test_channels(state: State, text: str, reasoning: str, content: str) -> None:
    assert every_way("harmony", state, text) == (reasoning, content)


def test_harmony_that_ends_anywhere_has_the_beginning_of_the_reasoning() -> None:
    """A marker that is cut off, which a single token cannot be, is text."""
    for state, text, reasoning, _ in HARMONY_CASES:
        for end in range(len(text)):
            begun = read("harmony", state, [text[:end]])[0]
            assert reasoning.startswith(re.sub(r"<\|?[a-z]*\|?$", "", begun))


def brute_force(state: State, text: str) -> tuple[str, str]:
    """Think tags read off the whole text."""
    if state == "closed":
        return "", text
    opened = re.fullmatch(r"\s*<think>\s*(.*)", text, re.DOTALL)
    if opened is None and state == "may_open":
        return "", text
    body = opened[1] if opened is not None else text.lstrip()
    closed = re.fullmatch(r"(.*?)\s*</think>\s*(.*)", body, re.DOTALL)
    return (body, "") if closed is None else (closed[1], closed[2])


pieces_of_text = st.lists(
    st.sampled_from(["<think>", "</think>", "<", "</th", "ink>", "\n", " ", "a", "é<b>"]), max_size=9
)


@settings(deadline=None, max_examples=200)
@given(pieces=pieces_of_text, state=st.sampled_from(["open", "may_open", "closed"]), is_cut_small=st.booleans())
def test_think_tags_equal_brute_force(pieces: list[str], state: State, is_cut_small: bool) -> None:
    text = "".join(pieces)
    assert read("think", state, text if is_cut_small else pieces) == brute_force(state, text)


HEADS = ["<|start|>assistant", "<|channel|>", "analysis", "final", "commentary", " to=functions.run ", "<|message|>"]
harmony_parts = st.sampled_from(
    [*HEADS, "<|constrain|>json", "<|end|>", "<|call|>", "<|return|>", "<|", "{}", "\n", "a"]
)


@settings(deadline=None, max_examples=150)
@given(pieces=st.lists(harmony_parts, max_size=14), state=st.sampled_from(["open", "may_open", "closed"]))
def test_whatever_harmony_writes_its_cut_does_not_matter(pieces: list[str], state: State) -> None:
    whole = read("harmony", state, ["".join(pieces)])
    assert read("harmony", state, pieces) == whole
    assert read("harmony", state, "".join(pieces)) == whole


ANSWERS = {
    "think": "<think>\nI call <it>.\n</think>\n\n",
    "mistral": "[THINK]I call <it>.[/THINK]",
    "harmony": "<|channel|>analysis<|message|>I call <it>.<|end|><|start|>assistant",
}


@pytest.mark.parametrize(
    ("style", "family", "call"),
    [
        ("think", "hermes", '<tool_call>\n{"name": "run", "arguments": {"code": "</think>"}}\n</tool_call>'),
        ("think", "qwen3_coder", "<tool_call>\n<function=run>\n<parameter=code>\n</think>\n</parameter>\n</function>"),
        ("mistral", "mistral_args", '[TOOL_CALLS]run[ARGS]{"code": "</think>"}'),
        (
            "harmony",
            "harmony",
            '<|channel|>commentary to=functions.run <|constrain|>json<|message|>{"code": "</think>"}',
        ),
        ("harmony", "harmony", ' to=functions.run<|channel|>commentary json<|message|>{"code": "</think>"}<|call|>'),
    ],
)
def test_calls_are_in_the_content(style: str, family: str, call: str) -> None:
    text = ANSWERS[style] + call
    for pieces in ([text], list(text), [text[:40], text[40:]]):
        reasoner, caller = reasoning_parser(STYLES[style], "may_open"), make_parser(FAMILIES[family])
        given_out = [one for piece in pieces for one in reasoner.feed(piece)] + reasoner.finish()
        assert "".join(one.text for one in given_out if isinstance(one, Reasoning)) == "I call <it>."
        contents = [one.text for one in given_out if isinstance(one, Content)]
        got = joined([delta for text in contents for delta in caller.feed(text)] + caller.finish())
        assert got.content == ""
        assert got.calls == [("run", '{"code": "</think>"}' if family != "qwen3_coder" else got.calls[0][1])]


@pytest.mark.parametrize(
    ("style", "prompt", "continued", "state"),
    [
        # Qwen 3 with thinking, without, and when thinking only.
        ("think", "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", "", "may_open"),
        ("think", "<|im_start|>assistant\n<think>\n\n</think>\n\n", "", "closed"),
        ("think", "<|im_start|>assistant\n<think>\n", "", "open"),
        # DeepSeek V3.1 closes what was never opened.
        ("think", "<｜User｜>Hi<｜Assistant｜></think>", "", "closed"),
        ("think", "<｜User｜>Hi<｜Assistant｜><think>", "", "open"),
        # GLM 4.5.
        ("think", "<|assistant|>\n<think></think>", "", "closed"),
        # A message that speaks of the markers.
        ("think", "<|im_start|>user\nWhat is <think>?<|im_end|>\n<|im_start|>assistant\n", "", "may_open"),
        # An answer that goes on.
        ("think", "<|im_start|>assistant\nThe sky", "The sky", "closed"),
        ("think", "<|im_start|>assistant\n<think>\nThe", "<think>\nThe", "open"),
        ("think", "<|im_start|>assistant\n<think>a</think>b", "<think>a</think>b", "closed"),
        ("think", "<|im_start|>assistant\n", "", "may_open"),
        ("mistral", "[INST]Hi[/INST]", "", "may_open"),
        ("mistral", "[INST]Hi[/INST][THINK]", "", "open"),
        ("harmony", "<|start|>user<|message|>Hi<|end|><|start|>assistant", "", "may_open"),
        ("harmony", "<|start|>assistant<|channel|>analysis<|message|>", "", "open"),
        ("harmony", "<|start|>assistant<|channel|>final<|message|>The sky", "The sky", "closed"),
        ("harmony", "", "", "may_open"),
    ],
)
def test_the_state_is_read_off_the_end_of_the_prompt(style: str, prompt: str, continued: str, state: State) -> None:
    assert reasoning_state(STYLES[style], prompt, continued=continued) == state


def test_with_thinking_off_an_answer_without_markers_is_content_from_its_first_character() -> None:
    state = reasoning_state(STYLES["think"], "<|im_start|>assistant\n<think>\n\n</think>\n\n")
    parser = reasoning_parser(STYLES["think"], state)
    assert parser.feed("{") == [Content("{")]
    assert every_way("think", state, '{"a": [1, 2]}') == ("", '{"a": [1, 2]}')


@pytest.mark.parametrize(
    ("style", "excerpt"),
    [
        ("think", "{%- if '</think>' in content %}{%- set content = content.split('</think>')[-1] %}{%- endif %}"),
        ("mistral", "{{- '[THINK]' + block['thinking'] + '[/THINK]' }}"),
        ("harmony", "{{- '<|start|>assistant<|channel|>analysis<|message|>' + message.thinking + '<|end|>' }}"),
        (None, "{{ '<|im_start|>' + message['role'] }}"),
    ],
)
def test_a_style_is_recognised_by_the_template(style: str | None, excerpt: str) -> None:
    assert detect_reasoning(excerpt) == style


def test_markers_and_where_content_begins() -> None:
    for style in STYLES.values():
        assert "analysis" not in style.markers and all(style.markers)
        if isinstance(style, Tags):
            assert style.content_begin == style.end == style.markers[1]
    assert STYLES["harmony"].content_begin == "<|channel|>final<|message|>"
