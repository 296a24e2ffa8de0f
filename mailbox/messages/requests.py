"""Messages between frontends and tokenizers.

| message    | sender    | receiver  | transport | bound                       | when full                      | when the peer dies             |
|------------|-----------|-----------|-----------|-----------------------------|--------------------------------|--------------------------------|
| Generate   | frontend  | tokenizer | mailbox   | mailbox capacity            | the client gets a 429          | the frontend resumes it        |
| Resume     | frontend  | tokenizer | mailbox   | one a request and death     | kept and sent when there is room | resumed once more              |
| Abort      | frontend  | tokenizer | mailbox   | one a request               | kept and sent when there is room | dropped, the request is gone |
| TextDeltas | tokenizer | frontend  | mailbox   | one unsent delta a request  | later tokens merge into it     | dropped                        |
| Refused    | tokenizer | frontend  | mailbox   | one a request               | kept and sent when there is room | dropped                      |
| Extend     | frontend  | tokenizer | mailbox   | one a pause                 | kept and sent when there is room | the frontend resumes it      |
| Tokenize, Detokenize | frontend | tokenizer | mailbox | mailbox capacity       | the client gets a 429          | asked again, of a living one   |
| Explain    | frontend  | tokenizer | mailbox   | mailbox capacity            | the client gets a 429          | asked again, of a living one   |
| Tokenized, Detokenized, Explanation | tokenizer | frontend | mailbox | one a question       | kept and sent when there is room | dropped                      |

Every message names `(request_id, attempt)`; rows also the choice. A message of another attempt is dropped.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from .grammar import OutputFormat
from .sampling import SamplingParams


class ToolCall(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A call that an earlier assistant message made; `arguments` is the JSON text as the client sent it."""

    id: str
    name: str
    arguments: str


class ChatMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One message of a chat prompt; text parts are already joined into `content`."""

    role: str
    content: str | None
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    """Of an earlier assistant message, if the client sent it back."""


class TextPrompt(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=0):
    """Text to continue."""

    text: str


class TokenPrompt(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1):
    """Token ids to continue, as they are."""

    token_ids: list[int]


class ChatPrompt(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=2):
    """Messages for the model's chat template."""

    messages: tuple[ChatMessage, ...]


Prompt = TextPrompt | TokenPrompt | ChatPrompt


class PromptOptions(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How a prompt becomes token ids."""

    add_special_tokens: bool | None = None
    """Add what the tokenizer puts around a raw text, such as BOS; None: for text yes, for chat no (the template does)."""
    truncate_prompt_tokens: int | None = None
    """Keep only the last so many tokens of the prompt; -1: as many as leave room for `max_tokens`."""
    add_generation_prompt: bool = True
    """Chat: end with what opens an answer."""
    continue_final_message: bool = False
    """Chat: leave the last message open, so that the answer goes on in it."""
    template_kwargs: bytes = b""
    """Chat: a JSON object of further variables for the template; empty: none."""
    tools: bytes = b""
    """Chat: a JSON list of the tools that the template is to tell the model of; empty: none."""


AS_IT_IS = PromptOptions()
"""Every option at its default."""


ReasoningState = Literal["closed", "open", "may_open"]
"""Of the reasoning where an answer begins: the prompt has closed it, the prompt has opened it, the answer may open it."""


class ReasoningMarks(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How the model marks its reasoning: the name of a style in `text.reasoning`, and where a grammar is to wait."""

    style: str
    begin: str
    """Of what is free; empty: whatever the answer begins with is, but behind reasoning that the prompt has closed."""
    end: str
    """Behind it the grammar holds; empty: it holds from the first token."""


class Generate(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=10):
    """A request. `frontend` is the reply address, `tokenizer` and `scheduler` the actors chosen for this attempt."""

    request_id: str
    attempt: int
    frontend: str
    tokenizer: str
    scheduler: str
    prompt: Prompt
    sampling: SamplingParams
    arrival_ns: int
    """CLOCK_MONOTONIC of the frontend's host."""
    cache_salt: str = ""
    """Requests share cached prefixes only with requests of the same salt."""
    returns_prompt: bool = False
    """The first delta of each choice carries the `PromptDetails`; so it does if `sampling.prompt_logprobs` is set."""
    num_choices: int = 1
    """Answers wanted; choice i draws with (seed, i) and is a request of its own below the tokenizer."""
    options: PromptOptions = AS_IT_IS
    priority: int = 0
    """Lower is more urgent; only 0 without the priority policy."""
    tenant: str = ""
    """Whose request it is; used by the fair policy alone."""
    deadline_ns: int | None = None
    """When it ends with `timeout` if it has not ended before, waiting or running, by the clock of `arrival_ns`."""
    is_session: bool = False
    """A streaming session: where it would end it waits for more input instead, until the last `Extend`."""
    output_format: OutputFormat | None = None
    """What each answer has to look like, behind its reasoning if there is any."""
    reasoning: ReasoningMarks | None = None
    """If somebody has to know: the first delta of each choice then says where the prompt has left the reasoning
    (`TextDeltas.reasoning_states`), and a grammar waits for its end."""
    kept_markers: tuple[str, ...] = ()
    """Texts of special tokens that stay in the answer's text, whatever `skip_special_tokens` says: who reads the text
    needs them to find tool calls and reasoning. Those that the vocabulary lacks, or has as plain text, are nothing."""


class Delivered(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a frontend has of one choice that has not ended: the next token's position is len(token_ids)."""

    choice: int
    token_ids: list[int]
    num_chars: int
    """Characters of text; what the ids spell beyond them was held back and is still to come."""


class SessionInput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Input of a streaming session behind its first prompt. `is_last`: no more comes."""

    prompt: TextPrompt | TokenPrompt
    is_last: bool = False


class Resume(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=14):
    """A request that lost an actor on its way goes on from what its frontend has.

    `generate` is the request as it was, with `attempt` raised and the actors chosen anew; choices that are not in
    `delivered` have ended. Of a streaming session `delivered` has the output of all turns, and the characters of the
    present one.
    """

    generate: Generate
    delivered: list[Delivered]
    pauses: list[int] = []
    """Streaming session: output index behind each turn that has ended."""
    inputs: list[SessionInput] = []
    """Streaming session: input i went in at pauses[i]; with a pause more than inputs it is paused."""


class Abort(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=11):
    """Ends every attempt of the request up to `attempt`, an encoding under way included; always goes on to the scheduler."""

    request_id: str
    attempt: int
    reason: str


class Refused(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=12):
    """The request is not served; the fields are those of `RequestError`."""

    request_id: str
    choice: int
    attempt: int
    status: int
    error_type: str
    message: str
    param: str | None = None
    code: str | None = None
    retry_after_s: int | None = None


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Log-probabilities at one position: the sampled token's, then the most likely ones, most likely first."""

    token_id: int
    logprob: float
    top_ids: list[int]
    top_logprobs: list[float]
    rank: int = 0
    """Of the token among all, 1 for the most likely; only for prompt tokens."""


class Usage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Token counts of one finished request; `cached_tokens` is the part of the prompt found in the prefix cache."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    accepted_tokens: int = 0
    """Drafts that were accepted: part of its output, but for those behind its end."""
    rejected_tokens: int = 0


class Finish(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The terminal mark. `reason`: stop, length, abort, error, repetition, timeout; `stop_reason`: the stop string or id that was found."""

    reason: str
    usage: Usage
    stop_reason: int | str | None = None
    message: str | None = None
    """For `error`: the sentence for the client."""
    status: int = 500
    """For `error`: 400 if the request itself is at fault, such as a grammar that cannot be compiled."""


class TokenText(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A token as text for logprobs output: `text` may hold replacement characters, `data` is the exact bytes."""

    text: str
    data: bytes
    logprob: float
    top: list[tuple[str, bytes, float]]
    """The most likely tokens as (text, bytes, logprob)."""
    top_ids: list[int] = []
    """Their token ids."""
    rank: int = 0
    """Of the token among all, 1 for the most likely; only for prompt tokens."""


class PromptDetails(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a prompt became."""

    token_ids: list[int]
    text: str
    """A text prompt as it came, if it was not truncated; else the text of `token_ids`."""
    logprobs: list[TokenText] | None = None
    """If asked for: one entry for each token but the first."""


class TextDeltas(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=13):
    """Text for several requests of one frontend: parallel lists, one entry a row.

    `positions[i]` is the output index of the first id in `token_ids[i]`. A row with an entry in `finishes` is the
    request's last one and its only terminal event.
    """

    request_ids: list[str]
    choices: list[int]
    attempts: list[int]
    positions: list[int]
    token_ids: list[list[int]]
    texts: list[str]
    finishes: dict[int, Finish] = {}
    """Row index -> terminal mark."""
    logprobs: dict[int, list[TokenText]] = {}
    """Row index -> one entry a token id of the row."""
    prompts: dict[int, PromptDetails] = {}
    """Row index -> the prompt, in the first delta of a choice that asked for it."""
    pauses: dict[int, Finish] = {}
    """Row index -> how a turn of a streaming session ended, behind the row's text; it waits for `Extend` now."""
    reasoning_states: dict[int, ReasoningState] = {}
    """Row index -> where the prompt has left the reasoning; in the first delta of a choice with `Generate.reasoning`."""


class Extend(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=40):
    """More input for a streaming session: it goes behind the output so far. Sent only when the session has paused; what
    a client gives before waits in the frontend."""

    request_id: str
    attempt: int
    input: SessionInput


class Explain(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=41):
    """Asks for a request's ledger; goes on to the scheduler. `frontend` is the reply address, `request_id` names the
    question, `about` the request."""

    request_id: str
    attempt: int
    frontend: str
    tokenizer: str
    about: str


class WaitTime(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Nanoseconds that a request waited, by cause."""

    budget_ns: int = 0
    """The step's tokens were used up."""
    sequences_ns: int = 0
    """All rows were taken (max_num_seqs)."""
    blocks_ns: int = 0
    """KV blocks were short, the watermark and the admission rule included."""
    grammar_ns: int = 0
    """Its grammar was being compiled."""
    adapter_ns: int = 0
    """No adapter slot was free."""
    remote_kv_ns: int = 0
    """Its keys and values were on their way."""
    input_ns: int = 0
    """A streaming session waited for its client."""
    priority_ns: int = 0
    """Requests that came later went first."""
    worker_ns: int = 0
    """No worker was attached, or requests were on trial."""


class PreemptionRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One time at which a request lost its row."""

    step: int
    cause: str
    """blocks (they ran out), worker (it died), step_failed, trial, resume"""
    num_lost_tokens: int
    """Computed positions that had to be computed again or found in the cache."""


class RequestLedger(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where one choice's time went, by the scheduler's `now_ns`. All parts together are `ended_ns - arrival_ns`, or up
    to now while it lives."""

    choice: int
    state: str
    arrival_ns: int
    """At the frontend."""
    queued_ns: int
    """At the scheduler: what is before was tokenizing and transport."""
    ended_ns: int | None
    waiting: WaitTime
    prefill_ns: int
    """From a row to the first token behind it, all runs together."""
    decode_ns: int
    """From the first token of a run to its end."""
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    """Of the prompt, at first admission."""
    chunks: tuple[int, ...]
    """Tokens of each step of a run until it can yield a token, that step included; the first 256, or fewer if there
    are many choices."""
    preemptions: tuple[PreemptionRecord, ...]
    """As many of the first."""
    num_recomputed_tokens: int
    """Positions computed more than once."""
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    waits_for: str = ""
    """Why it waits now; empty if it does not."""
    num_chunks: int = 0
    """With those that are not told."""
    num_preemptions: int = 0
    """With those that are not told."""
    num_choices_left_out: int = 0
    """Of its request, that the scheduler knows and does not tell: those behind the told ones."""


class Explanation(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=42):
    """Answers `Explain`: the choices that the scheduler knows, live or lately ended, of very many the first ones, so
    that it is never longer than 64 KiB; none: it knows nothing."""

    request_id: str
    attempt: int
    about: str
    now_ns: int
    choices: tuple[RequestLedger, ...]


class Tokenize(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=15):
    """A question without state: a prompt's token ids. `frontend` is the reply address."""

    request_id: str
    attempt: int
    frontend: str
    prompt: Prompt
    options: PromptOptions
    returns_strings: bool = False


class Tokenized(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=16):
    """Answers `Tokenize`."""

    request_id: str
    attempt: int
    token_ids: list[int]
    token_strings: list[str] | None = None
    """Each token as the vocabulary writes it, if asked for."""


class Detokenize(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=17):
    """A question without state: the text of token ids, special tokens included."""

    request_id: str
    attempt: int
    frontend: str
    token_ids: list[int]


class Detokenized(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=18):
    """Answers `Detokenize`."""

    request_id: str
    attempt: int
    text: str


Question = Tokenize | Detokenize | Explain
Answer = Tokenized | Detokenized | Explanation
FrontendToTokenizer = Generate | Resume | Extend | Abort | Question
TokenizerToFrontend = TextDeltas | Refused | Answer
