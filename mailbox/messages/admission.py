"""Messages between tokenizers and the scheduler.

| message     | sender    | receiver  | transport | bound                      | when full                        | when the peer dies            |
|-------------|-----------|-----------|-----------|----------------------------|----------------------------------|-------------------------------|
| Admit       | tokenizer | scheduler | mailbox   | mailbox capacity           | kept and sent when there is room | the frontends resume          |
| Stop        | tokenizer | scheduler | mailbox   | one a request              | kept and sent when there is room | the frontends resume          |
| Abort       | tokenizer | scheduler | mailbox   | one a request              | kept and sent when there is room | the frontends resume          |
| AddInput    | tokenizer | scheduler | mailbox   | one a pause                | kept and sent when there is room | the frontends resume          |
| Explain     | tokenizer | scheduler | mailbox   | one a question             | kept and sent when there is room | asked again                   |
| TokenDeltas | scheduler | tokenizer | mailbox   | one unsent delta a request | later tokens merge into it       | the frontends resume          |
| Refused     | scheduler | tokenizer | mailbox   | one a request              | kept and sent when there is room | the frontends resume          |
| Explanation | scheduler | tokenizer | mailbox   | one a question             | kept and sent when there is room | asked again                   |
"""

from __future__ import annotations

import msgspec

from .requests import Abort, Explain, Explanation, Finish, Refused, TokenLogprobs
from .sampling import SamplingParams


class Admit(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=20):
    """A request as the scheduler sees it: ids only. `tokenizer` is the reply address."""

    request_id: str
    choice: int
    attempt: int
    tokenizer: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    """`max_tokens` is set."""
    eos_token_ids: tuple[int, ...]
    arrival_ns: int
    cache_salt: str = ""
    output_token_ids: list[int] = []
    """Of a resumed request (attempt > 1): the ids that its frontend has. It is exempt from the queue's limits."""
    priority: int = 0
    """Lower is more urgent; used by the priority policy alone."""
    tenant: str = ""
    """Used by the fair policy alone."""
    deadline_ns: int | None = None
    """The request ends with `timeout` then, waiting or running, by the clock of `arrival_ns`."""
    grammar_key: str = ""
    """It waits until this grammar is ready; empty: it has none."""
    num_remote_tokens: int = 0
    """Tokens of the prompt whose keys and values a connector can load, from the beginning on."""
    is_session: bool = False
    """Where it would end it waits for more input, until the last `AddInput`."""
    first_output_index: int = 0
    """Output tokens of a session's earlier turns, which stand in `prompt_token_ids`: positions of its output go on from
    there."""
    is_paused: bool = False
    """A resumed session that waits for input; nothing is told of it until then."""


class Stop(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=21):
    """The tokenizer found a stop string: ends every attempt up to `attempt`. `position`: output index of the last token that counts.

    A streaming session forgets the tokens behind and pauses there; it says so in one row of `pauses`, unless it has
    before in this turn.
    """

    request_id: str
    choice: int
    attempt: int
    position: int


class AddInput(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=23):
    """More input for a streaming session that has paused, behind the output so far. `is_last`: no more comes."""

    request_id: str
    choice: int
    attempt: int
    token_ids: list[int]
    is_last: bool = False


class TokenDeltas(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=22):
    """New tokens of several requests of one tokenizer: parallel lists, one entry a row; `positions` as in `TextDeltas`.

    A row with an entry in `finishes` ends the request; its ids may be empty (an abort).
    """

    request_ids: list[str]
    choices: list[int]
    attempts: list[int]
    positions: list[int]
    token_ids: list[list[int]]
    cached_tokens: list[int]
    """Tokens of the prompt that came from the prefix cache at first admission."""
    finishes: dict[int, Finish] = {}
    logprobs: dict[int, list[TokenLogprobs]] = {}
    prompt_logprobs: dict[int, list[TokenLogprobs]] = {}
    """In the delta with a request's first token, if asked for: one entry for each prompt token but the first."""
    pauses: dict[int, Finish] = {}
    """Row index -> how a turn of a streaming session ended, behind the tokens of the row: one a turn."""


TokenizerToScheduler = Admit | AddInput | Stop | Abort | Explain
SchedulerToTokenizer = TokenDeltas | Refused | Explanation
