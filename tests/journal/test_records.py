"""Records and frames: every event survives, and a file that is cut off or damaged gives what stands before."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.errors import ConfigError
from callboard.journal.frames import FRAME_BYTES, PREFIX, frame
from callboard.journal.packer import Packer, Taken
from callboard.journal.plan_chain import PlanChain
from callboard.journal.reader import JournalFile
from callboard.journal.records import Calls, Checked, Header, Record
from callboard.journal.unpacker import Unpacker
from callboard.mailbox.messages.admission import AddInput, Admit, Stop
from callboard.mailbox.messages.drafts import Drafts
from callboard.mailbox.messages.grammar import GrammarFailed, GrammarReady, MatcherFailed
from callboard.mailbox.messages.requests import Abort
from callboard.mailbox.messages.sampling import RepetitionDetection, SamplingParams
from callboard.mailbox.messages.steps import PromptLogprobs, StepOutcome, StepPlan, StepResult
from callboard.mailbox.messages.transfers import BlocksLoaded
from callboard.scheduling.events import Event, GrammarGone, TokenizerGone, WorkerAttached, WorkerGone
from callboard.tests.scheduling.fake_worker import make_limits

names = st.text(max_size=8)
small = st.integers(0, 9)
ids = st.lists(st.integers(0, 2**31 - 1), max_size=5)
times = st.integers(0, 2**63 - 1)
samplings = st.builds(
    SamplingParams,
    seed=st.integers(0, 2**64 - 1),
    temperature=st.floats(0, 2),
    max_tokens=small,
    stop=st.tuples(names),
    logit_bias=st.sampled_from([(), ((5, 0.5), (7, -1.0))]),
    bad_token_ids=st.sampled_from([(), ((1, 2), (3,))]),
    prompt_logprobs=st.none() | small,
    repetition_detection=st.none() | st.just(RepetitionDetection(3, 1, 2)),
)
admits = st.builds(
    Admit,
    request_id=names, choice=small, attempt=small, tokenizer=names, prompt_token_ids=ids, sampling=samplings,
    eos_token_ids=ids.map(tuple), arrival_ns=times, cache_salt=names, output_token_ids=ids,
    priority=st.integers(-9, 9), tenant=names, deadline_ns=st.none() | times, grammar_key=names,
    num_remote_tokens=small, is_session=st.booleans(),
)  # fmt: skip
pieces = st.builds(
    PromptLogprobs,
    runs=st.binary(max_size=8), starts=st.binary(max_size=4), counts=st.binary(max_size=4),
    logprobs=st.binary(max_size=4), ranks=st.binary(max_size=4), top_ids=st.binary(max_size=4),
    top_logprobs=st.binary(max_size=4),
)  # fmt: skip
odd_results = st.builds(
    StepResult,
    epoch=small, step=small, runs=st.binary(max_size=16), positions=st.binary(max_size=8),
    token_ids=st.binary(max_size=8), start_ns=times, end_ns=times, logprob_rows=st.binary(max_size=4),
    logprobs=st.binary(max_size=4), top_ids=st.binary(max_size=4), top_logprobs=st.binary(max_size=4),
    num_plans_waiting=small, outcome=st.sampled_from(StepOutcome), error=names, prompt_logprobs=st.none() | pieces,
    num_sampled=st.binary(max_size=4),
)  # fmt: skip
other_events = st.one_of(
    admits,
    st.builds(AddInput, names, small, small, ids, st.booleans()),
    st.builds(Stop, names, small, small, small),
    st.builds(Abort, names, small, names),
    st.builds(GrammarReady, names),
    st.builds(GrammarFailed, names, names, small),
    st.builds(MatcherFailed, small, small, names),
    st.builds(Drafts, st.lists(small, max_size=3), st.lists(small, max_size=3), st.lists(ids, max_size=3)),
    st.builds(BlocksLoaded, small, small),
    st.builds(WorkerGone),
    st.builds(WorkerAttached, small),
    st.builds(TokenizerGone, names),
    st.builds(GrammarGone),
)


def test_the_strategies_make_every_event() -> None:
    made = {Admit, AddInput, Stop, Abort, GrammarReady, GrammarFailed, Drafts, BlocksLoaded, WorkerGone}
    made |= {WorkerAttached, TokenizerGone, StepResult, MatcherFailed, GrammarGone}
    assert made == set(Event.__args__)  # type: ignore[attr-defined]


@st.composite
def plans(draw: st.DrawFn, step: int) -> StepPlan:
    num_rows = draw(st.integers(1, 3))
    samples = draw(st.lists(st.booleans(), min_size=num_rows, max_size=num_rows))
    starts = draw(st.lists(st.integers(0, 1000), min_size=num_rows, max_size=num_rows))
    num_tokens = draw(st.lists(st.integers(2, 9), min_size=num_rows, max_size=num_rows))
    num_drafts = np.array(num_tokens, "<i4") // 2 if draw(st.booleans()) else np.zeros(0, "<i4")
    return StepPlan(
        epoch=1,
        step=step,
        now_ns=step,
        new_rows=[],
        removed_rows=b"",
        rows=np.arange(num_rows, dtype="<i4").tobytes(),
        runs=(np.arange(num_rows, dtype="<i8") + 100 * step).tobytes(),
        starts=np.array(starts, "<i4").tobytes(),
        num_tokens=np.array(num_tokens, "<i4").tobytes(),
        samples=np.array(samples, np.bool_).tobytes(),
        num_drafts=num_drafts.tobytes(),
    )


Call = tuple[int, list[Event]]


def taken_of(calls: Sequence[tuple[Call, StepPlan | None]]) -> Taken:
    taken = Taken()
    for place, ((now_ns, events), plan) in enumerate(calls):
        taken.now_ns.append(now_ns)
        taken.events.append(events)
        if plan is not None:
            taken.places.append(place)
            taken.plans.append(plan)
            taken.encoded.append(msgspec.msgpack.encode(plan))
    return taken


def usual_result(plan: StepPlan) -> StepResult:
    """With the rows that the plan asks for; written without the code under test."""
    rows = []
    drafts = np.frombuffer(plan.num_drafts, "<i4").tolist() or [0] * (len(plan.rows) // 4)
    for index, is_sampled in enumerate(plan.samples):
        if is_sampled:
            start = int.from_bytes(plan.starts[4 * index : 4 * index + 4], "little")
            count = int.from_bytes(plan.num_tokens[4 * index : 4 * index + 4], "little")
            rows.append((plan.runs[8 * index : 8 * index + 8], start + count - drafts[index]))
    runs = b"".join(run for run, _ in rows)
    positions = b"".join(position.to_bytes(4, "little") for _, position in rows)
    return StepResult(plan.epoch, plan.step, runs, positions, bytes(4 * len(rows)), 7, 1 << 40)


@st.composite
def lives(draw: st.DrawFn) -> list[tuple[Call, StepPlan | None]]:
    """Calls with results of plans in flight, as asked for or a little off, among all other events."""
    calls: list[tuple[Call, StepPlan | None]] = []
    in_flight: list[StepPlan] = []
    now_ns = draw(st.integers(0, 2**60))
    for step in range(draw(st.integers(1, 8))):
        events: list[Event] = draw(st.lists(other_events | odd_results, max_size=2))
        if any(isinstance(event, WorkerGone | WorkerAttached | StepResult) for event in events):
            in_flight.clear()
        if in_flight and draw(st.booleans()):
            result = usual_result(in_flight.pop(0))
            changes = draw(
                st.sampled_from(
                    [
                        {},
                        {},
                        {"positions": b"\0\0\0\0"},
                        {"runs": b""},
                        {"num_plans_waiting": 2},
                        {"logprob_rows": b"1234", "logprobs": b"5678"},
                        {"num_sampled": b"\1\0\0\0"},
                        {"outcome": StepOutcome.FAILED, "error": "x", "runs": b"", "positions": b""},
                    ]
                )
            )
            events.append(msgspec.structs.replace(result, **changes))
        plan = draw(st.none() | plans(step))
        if plan is not None:
            in_flight.append(plan)
        now_ns += draw(st.integers(0, 2**40))
        calls.append(((now_ns, events), plan))
    return calls


@settings(max_examples=50, deadline=None)
@given(calls=lives(), cut=st.integers(0, 8))
def test_calls_survive_packing_whatever_they_are(calls: list[tuple[Call, StepPlan | None]], cut: int) -> None:
    packer, unpacker = Packer(5), Unpacker()
    for part in (calls[:cut], calls[cut:]):
        packed = packer.pack(taken_of(part))
        record = msgspec.msgpack.decode(msgspec.msgpack.encode(packed), type=Calls)
        num_read = 0
        for read, ((now_ns, events), plan) in zip(unpacker.calls(record), part, strict=True):
            assert (read.now_ns, read.events, read.has_plan) == (now_ns, list(events), plan is not None)
            if plan is not None:
                unpacker.planned(plan)
                assert read.num_rows == len(plan.rows) // 4
            num_read += 1
        assert num_read == len(part)


@pytest.mark.parametrize("num_rows", [3, 700])
@pytest.mark.parametrize("wrong", [None, 4])
def test_steady_decode_survives_and_so_does_a_result_that_is_off_by_one(num_rows: int, wrong: int | None) -> None:
    ones, row_ids = np.ones(num_rows, "<i4"), np.arange(num_rows, dtype="<i4")
    calls: list[tuple[Call, StepPlan | None]] = []
    for step in range(8):
        starts = 100 + row_ids + step
        columns = row_ids.tobytes(), row_ids.astype("<i8").tobytes(), starts.tobytes(), ones.tobytes(), b"\1" * num_rows
        plan = StepPlan(1, step, step, [], b"", *columns)
        events: list[Event] = []
        if calls and (before := calls[-1][1]) is not None:
            positions = starts + (step == wrong)
            events = [StepResult(1, step - 1, before.runs, positions.astype("<i4").tobytes(), row_ids.tobytes(), 3, 4)]
        calls.append(((step, events), plan))
    packed = Packer(0).pack(taken_of(calls))
    assert len(packed.events) == (wrong is not None)
    unpacker, chain = Unpacker(), PlanChain()
    for read, (call, plan) in zip(unpacker.calls(packed), calls, strict=True):
        assert plan is not None and (read.now_ns, read.events) == call
        assert read.crc == chain.link(plan, msgspec.msgpack.encode(plan))
        unpacker.planned(plan)


@pytest.mark.parametrize("field", ["now_ns", "rows", "runs", "starts", "num_tokens", "samples", "block_ids"])
def test_a_large_plan_that_differs_anywhere_has_another_checksum(field: str) -> None:
    """Also if it differs only where it agrees with the plan before or does so no more."""
    row_ids = np.arange(700, dtype="<i4").tobytes()
    plan = StepPlan(1, 1, 1, [], b"", row_ids, row_ids * 2, row_ids, row_ids, b"\1" * 700, b"", row_ids)
    value = 2 if field == "now_ns" else bytes(len(getattr(plan, field)))
    changed = msgspec.structs.replace(plan, **{field: value})
    crcs = set()
    for lives in [(plan, plan, plan), (plan, plan, changed), (plan, changed, changed), (changed, plan, plan)]:
        chain = PlanChain()
        for part in lives:
            chain.link(part, msgspec.msgpack.encode(part))
        crcs.add(chain.crc)
    assert len(crcs) == 4


# Files


def header(**changes: object) -> Header:
    fields = dict(
        package_version="1", limits=msgspec.msgpack.encode(make_limits()), now_ns=3, wall_ns=4, run=b"run", number=0,
        crc=0, digest=b"",
    )  # fmt: skip
    return Header(**(fields | changes))  # type: ignore[arg-type]


def some_records() -> list[Record]:
    calls: list[tuple[Call, None]] = [((n, [Stop("r", 0, 1, n)]), None) for n in range(3)]
    return [
        header(), Packer(3).pack(taken_of(calls)), Checked(), Packer(3).pack(taken_of(calls[:1])), Checked(),
    ]  # fmt: skip


def write(path: Path, records: Sequence[Record]) -> list[int]:
    """The file; where each record ends."""
    data, ends = PREFIX, []
    for record in records:
        data += frame(record)
        ends.append(len(data))
    path.write_bytes(data)
    return ends


def test_a_file_that_is_cut_off_anywhere_gives_its_whole_records(tmp_path: Path) -> None:
    path = tmp_path / "j"
    records = some_records()
    ends = write(path, records)
    whole = path.read_bytes()
    for size in sorted({*range(0, len(whole), 3), *ends}):
        path.write_bytes(whole[:size])
        num_whole = sum(end <= size for end in ends)
        if num_whole == 0:
            with pytest.raises(ConfigError, match=r"no journal|no whole header"):
                JournalFile(path)
            continue
        file = JournalFile(path)
        assert [file.header, *file] == records[:num_whole]
        assert bool(file.ending) == (size not in ends)
        assert not file.ending or "cut off" in file.ending


def test_a_flipped_bit_anywhere_ends_the_reading_there(tmp_path: Path) -> None:
    path = tmp_path / "j"
    records = some_records()
    ends = write(path, records)
    whole = path.read_bytes()
    for place in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << (place % 8)
        path.write_bytes(damaged)
        num_before = sum(end <= place for end in ends)
        if num_before == 0:
            with pytest.raises(ConfigError, match=r"no journal|no whole header|version"):
                JournalFile(path)
            continue
        file = JournalFile(path)
        assert [file.header, *file] == records[:num_before]
        assert file.ending


def test_a_journal_of_another_version_is_told(tmp_path: Path) -> None:
    path = tmp_path / "j"
    write(path, some_records())
    data = path.read_bytes()
    path.write_bytes(data[:6] + (9).to_bytes(2, "little") + data[8:])
    with pytest.raises(ConfigError, match=r"a journal of version 9, this Callboard reads version 3; replay it with"):
        JournalFile(path)


def test_a_file_that_is_no_journal_or_is_not_there_is_told(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a text that is long enough")
    with pytest.raises(ConfigError, match="is no journal"):
        JournalFile(tmp_path / "text")
    with pytest.raises(ConfigError, match="No such file"):
        JournalFile(tmp_path / "nothing")


def test_limits_of_an_earlier_version_get_the_defaults_of_new_fields(tmp_path: Path) -> None:
    fields = msgspec.to_builtins(make_limits())
    del fields["max_ledgers"]
    write(tmp_path / "j", [header(limits=msgspec.msgpack.encode(fields))])
    assert JournalFile(tmp_path / "j").limits == make_limits()


def test_a_frame_costs_eight_bytes() -> None:
    assert len(frame(Checked())) == FRAME_BYTES + len(msgspec.msgpack.encode(Checked())) and FRAME_BYTES == 8
