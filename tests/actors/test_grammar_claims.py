"""What a tokenizer tells the grammar actor: as long as a request lives its grammar is wanted."""

from __future__ import annotations

from typing import Any

import msgspec

from callboard.mailbox.messages.grammar import ChoiceFormat, Compile, Constraint, Release
from callboard.mailbox.messages.requests import Abort, Delivered, Finish, Generate, Refused, TokenPrompt, Usage
from callboard.tests.actors.tokenizer_rig import TokenizerRig

YES = ChoiceFormat(("yes",))
KEY = Constraint(YES).key()
WANTED = Compile(KEY, Constraint(YES), "tokenizer", "r")
GIVEN_UP = Release(KEY, "tokenizer")
LENGTH = Finish("length", Usage(2, 9, 0))


def _generate(rig: TokenizerRig, **more: Any) -> Generate:
    message = msgspec.structs.replace(rig.request(**more), output_format=YES)
    rig.actor.handle(message)
    return message


def _said(rig: TokenizerRig) -> list[Any]:
    return rig.to_grammar.receive_all_nowait()


async def test_one_claim_for_all_choices_until_the_last_has_ended() -> None:
    rig = TokenizerRig()
    _generate(rig, num_choices=2, ignore_eos=True)
    assert _said(rig) == []
    await rig.encode()
    assert _said(rig) == [WANTED]
    admits = rig.sent()
    assert [admit.grammar_key for admit in admits] == [KEY, KEY]
    assert not any(admit.sampling.ignore_eos for admit in admits), "the end of the format is the end"
    rig.tokens(0, [1], LENGTH, choice=1)
    assert _said(rig) == []
    rig.tokens(0, [1], LENGTH)
    assert _said(rig) == [GIVEN_UP]
    assert rig.actor._grammars._claims == {}


async def test_a_resumed_request_and_an_aborted_one() -> None:
    rig = TokenizerRig()
    generate = _generate(rig)
    await rig.encode()
    rig.resume(generate, 2, Delivered(0, [1], 1))
    await rig.encode()
    assert _said(rig) == [WANTED, GIVEN_UP, WANTED]
    rig.actor.handle(Abort("r", 2, "client"))
    assert _said(rig) == [GIVEN_UP]


async def test_the_next_life_of_the_grammar_actor_is_told_again() -> None:
    rig = TokenizerRig()
    _generate(rig)
    await rig.encode()
    rig.generate("free")
    await rig.encode()
    rig.actor.gone("grammar")
    assert _said(rig) == [WANTED, WANTED]


async def test_a_prompt_that_cannot_be_served_claims_nothing() -> None:
    rig = TokenizerRig()
    _generate(rig, prompt=TokenPrompt([1] * 40))
    await rig.encode()
    assert isinstance(rig.answer(), Refused) and _said(rig) == []


async def test_without_a_grammar_actor_a_format_is_a_400() -> None:
    rig = TokenizerRig()
    rig.actor._grammars._grammars = {}
    _generate(rig)
    refused = rig.answer()
    assert isinstance(refused, Refused) and refused.status == 400 and "no grammar actor" in refused.message
    assert refused.param is None, "the server knows the field"
    assert rig.sent() == [] and rig.holds_nothing()
