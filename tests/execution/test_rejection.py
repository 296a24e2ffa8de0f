"""Steps whose drafts are verified by rejection: both samplers, and what is yielded."""

from __future__ import annotations

import numpy as np
import torch
from msgspec.structs import replace

from callboard.execution.host_sampler import HostSampler
from callboard.execution.input_batch import InputBatch
from callboard.execution.prepare_inputs import prepare_inputs
from callboard.execution.torch_sampler import TorchSampler
from callboard.execution.yields import take_yields
from callboard.speculative.acceptance import NO_DRAFT, drafts_of_places

NUM_ROWS, VOCAB = 300, 60
PROMPT = [5, 9, 5]


def step(make_plan_maker, rng):
    """(batch, inputs): a third of the rows greedy, up to 3 drafts each, filters and penalties in some."""
    batch, maker = InputBatch(NUM_ROWS, 16, 4), make_plan_maker(4 * NUM_ROWS)
    for row in range(NUM_ROWS):
        sampling = {
            "temperature": [0.0, 0.7, 1.3][row % 3],
            "seed": 1000 + row,
            "logprobs": 2 if row % 5 == 0 else None,
        }
        sampling |= [{}, {"top_k": 7}, {"min_p": 0.1, "repetition_penalty": 1.3}, {"top_p": 0.9}][row % 4]
        maker.place(row, PROMPT, choice=row % 2, **sampling)
    num_drafts = np.arange(NUM_ROWS) % 4
    scheduled = [(row, 0, len(PROMPT) + int(num_drafts[row]), True) for row in range(NUM_ROWS)]
    draft_ids = rng.choice([3, 4, 5], num_drafts.sum()).astype(np.int32)
    plan = replace(
        maker.plan(scheduled), num_drafts=num_drafts.astype(np.int32).tobytes(), draft_ids=draft_ids.tobytes()
    )
    batch.apply(plan)
    return batch, plan, prepare_inputs(batch, plan)


def sampled_both(batch, plan, inputs, logits, drafts):
    cpu = torch.device("cpu")
    by_torch, by_host = TorchSampler(torch.clone, batch, VOCAB, cpu), HostSampler(np.copy, batch, VOCAB)
    for sampler in (by_torch, by_host):
        sampler.apply(plan)
    flat = np.zeros((inputs.token_ids.size, VOCAB), np.float32)
    flat[inputs.last_tokens] = logits
    return (
        by_torch.sample(torch.from_numpy(flat), inputs, None, drafts),
        by_host.sample(flat, inputs, None, drafts),
    )


def test_both_samplers_and_what_is_yielded(make_plan_maker):
    rng = np.random.default_rng(7)
    batch, plan, inputs = step(make_plan_maker, rng)
    logits = rng.normal(0, 1, (inputs.sample_rows.size, VOCAB)).astype(np.float32)
    logits[:, [3, 4, 5]] += 4.5  # drafts are accepted often
    in_place = batch.token_ids[inputs.sample_rows, inputs.sample_positions]
    drafts = drafts_of_places(in_place, inputs.sample_counts)
    assert (drafts == NO_DRAFT).sum() == NUM_ROWS
    by_torch, by_host = sampled_both(batch, plan, inputs, logits, drafts)
    coupled, _ = sampled_both(batch, plan, inputs, logits, None)
    np.testing.assert_array_equal(by_torch.token_ids, by_host.token_ids)
    np.testing.assert_array_equal(by_torch.logprobs["top_ids"], by_host.logprobs["top_ids"])

    is_greedy = batch.sampling.temperature[inputs.sample_rows] == 0
    is_as_ever = is_greedy | (drafts == NO_DRAFT)
    tokens = by_torch.token_ids
    np.testing.assert_array_equal(tokens[is_as_ever], coupled.token_ids[is_as_ever])
    assert (tokens[~is_as_ever] != coupled.token_ids[~is_as_ever]).any()
    accepted = (tokens == drafts)[~is_as_ever]
    assert 0.2 < accepted.mean() < 0.8

    yields = take_yields(batch, inputs, by_torch)
    starts = np.cumsum(inputs.sample_counts) - inputs.sample_counts
    wanted = []
    for start, count in zip(starts, inputs.sample_counts, strict=True):
        for place in range(start, start + count):
            wanted.append(int(tokens[place]))
            if tokens[place] != drafts[place]:
                break
    assert np.frombuffer(yields.token_ids, np.int32).tolist() == wanted
    assert np.frombuffer(yields.num_sampled, np.int32).sum() == len(wanted)


def test_a_token_is_the_same_whatever_rows_stand_beside(make_plan_maker):
    rng = np.random.default_rng(8)
    batch, plan, inputs = step(make_plan_maker, rng)
    logits = rng.normal(0, 1, (inputs.sample_rows.size, VOCAB)).astype(np.float32)
    logits[:, [3, 4, 5]] += 4.5
    drafts = drafts_of_places(batch.token_ids[inputs.sample_rows, inputs.sample_positions], inputs.sample_counts)
    together, _ = sampled_both(batch, plan, inputs, logits, drafts)
    changed = logits.copy()
    is_kept = inputs.sample_rows % 7 == 1
    changed[~is_kept] = rng.normal(0, 1, (int((~is_kept).sum()), VOCAB))
    apart, _ = sampled_both(batch, plan, inputs, changed, drafts)
    np.testing.assert_array_equal(together.token_ids[is_kept], apart.token_ids[is_kept])
    assert (together.token_ids != apart.token_ids).any()


def test_both_samplers_draw_the_same_drafts_and_verify_them_alike(make_plan_maker):
    """Of rows that draw: what is drawn from is the softmax of the processed logits, and a target with the same logits
    accepts each draft."""
    rng = np.random.default_rng(9)
    batch, _, inputs = step(make_plan_maker, rng)
    num_places, cpu = inputs.sample_rows.size, torch.device("cpu")
    logits = rng.normal(0, 2, (num_places, VOCAB)).astype(np.float32)
    flat = np.zeros((inputs.token_ids.size, VOCAB), np.float32)
    flat[inputs.last_tokens] = logits
    by_torch, by_host = TorchSampler(torch.clone, batch, VOCAB, cpu), HostSampler(np.copy, batch, VOCAB)
    drawn, probs = by_torch.draw(torch.from_numpy(flat), inputs, with_probs=True)
    again, host_probs = by_host.draw(flat, inputs, with_probs=True)
    np.testing.assert_array_equal(drawn, again)
    temperature = batch.sampling.temperature[inputs.sample_rows]
    draws = temperature > 0
    np.testing.assert_allclose(probs[draws], host_probs[draws], atol=1e-6)
    is_plain = draws & (inputs.sample_rows % 4 == 0)
    scaled = np.exp(logits[is_plain] / temperature[is_plain, None])
    np.testing.assert_allclose(probs[is_plain], scaled / scaled.sum(axis=1, keepdims=True), atol=1e-6)
    assert ((probs[draws & (inputs.sample_rows % 4 == 1)] > 0).sum(axis=1) == 7).all()  # top_k
    assert by_host.draw(flat, inputs, with_probs=False)[1] is None

    is_draft = drafts_of_places(drawn, inputs.sample_counts) != NO_DRAFT
    drafts = np.where(is_draft, drawn, NO_DRAFT).astype(np.int32)
    for sampler in (by_torch, by_host):
        source = torch.from_numpy(flat) if sampler is by_torch else flat
        verified = sampler.sample(source, inputs, None, drafts, probs[is_draft]).token_ids
        np.testing.assert_array_equal(verified[is_draft & draws], drawn[is_draft & draws])
    others = np.roll(logits, 1, axis=1)
    flat[inputs.last_tokens] = others
    of_torch = by_torch.sample(torch.from_numpy(flat), inputs, None, drafts, probs[is_draft]).token_ids
    of_host = by_host.sample(flat, inputs, None, drafts, probs[is_draft]).token_ids
    np.testing.assert_array_equal(of_torch, of_host)
    assert 0.05 < (of_torch == drafts)[is_draft & draws].mean() < 0.9
