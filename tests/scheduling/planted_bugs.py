"""Bugs to be planted in the scheduler and the block pool: one change of the source each, and which check finds it."""

from __future__ import annotations

from typing import NamedTuple


class PlantedBug(NamedTuple):
    """In `module` (under callboard) `old` becomes `new`."""

    name: str
    module: str
    old: str
    new: str
    first_seed: int = 0
    """Where the search begins: a rare one would take long from the first world on."""


BUGS = (
    PlantedBug(
        "blocks_for_is_off_by_one",
        "kv_cache.block_pool",
        "return -(-num_tokens // block_size)",
        "return num_tokens // block_size + 1",
    ),
    PlantedBug(
        "blocks_are_freed_first_block_first",
        "kv_cache.block_pool",
        "for block in reversed(blocks):",
        "for block in blocks:",
    ),
    PlantedBug(
        "a_block_keeps_its_key_when_it_is_allocated",
        "kv_cache.block_pool",
        "                del block_by_key[key]\n",
        "",
    ),
    PlantedBug(
        "a_shared_block_is_freed",
        "kv_cache.block_pool",
        "ref_cnt[block] -= 1",
        "ref_cnt[block] = 0",
    ),
    PlantedBug(
        "a_hit_block_stays_in_the_free_list",
        "kv_cache.block_pool",
        "                self._link(self._previous[block], self._next[block])\n",
        "",
    ),
    PlantedBug(
        "freed_blocks_go_to_the_head",
        "kv_cache.block_pool",
        "        end = self._sentinel\n        tail = previous[end]\n",
        "        tail, end = self._sentinel, following[self._sentinel]\n",
    ),
    PlantedBug(
        "all_of_a_prompt_may_be_hit",
        "kv_cache.prefix_cache",
        "(len(token_ids) - 1) // pool.block_size",
        "len(token_ids) // pool.block_size",
    ),
    PlantedBug(
        "salts_share_a_cache",
        "kv_cache.block_hash",
        "if not cache_salt and not adapter:",
        "if not adapter:",
    ),
    PlantedBug("the_first_is_the_victim", "scheduling.lifo", "return running[-1]", "return running[0]"),
    PlantedBug(
        "the_watermark_is_ignored",
        "scheduling.admission",
        "num_kept = limits.watermark_blocks if state.running else 0",
        "num_kept = 0",
    ),
    PlantedBug(
        "drafts_are_cached",
        "scheduling.running",
        "num_ready, next_full = np.minimum(fields[0], fields[4]), fields[2]",
        "num_ready, next_full = fields[0], fields[2]",
    ),
    PlantedBug(
        "rejected_drafts_count_as_computed",
        "scheduling.update",
        "state.rows.settle_drafts(found.rows[index], found.num_drafts[index], num_accepted)",
        "state.rows.settle_drafts(found.rows[index], found.num_drafts[index], found.num_drafts[index])",
    ),
    PlantedBug(
        "deadlines_are_ignored",
        "scheduling.deadlines",
        "self._heap[0][0] <= now_ns:",
        "self._heap[0][0] <= 0:",
    ),
    PlantedBug(
        "grammars_are_not_awaited",
        "scheduling.waiting_for_grammar",
        "if not state.grammars.is_known(request):",
        "if state.grammars.is_known(request) is None:",
    ),
    PlantedBug(
        "half_a_transfer_counts_as_all",
        "scheduling.loading",
        "num_full = min(event.num_tokens // size, len(block_ids))",
        "num_full = len(block_ids)",
    ),
    PlantedBug(
        "blocks_of_a_transfer_that_nobody_wants_are_kept",
        "scheduling.loading",
        "        state.pool.free(block_ids)\n        return\n",
        "        return\n",
    ),
    PlantedBug(
        "a_session_keeps_its_blocks",
        "scheduling.state",
        "        self.pool.free(request.block_ids)\n        request.leave()\n",
        "        self.pool.free([] if request.is_open else request.block_ids)\n        request.leave()\n",
    ),
    PlantedBug(
        "one_token_over_the_budget",
        "scheduling.plan_builder",
        "self.budget = limits.max_num_batched_tokens\n",
        "self.budget = limits.max_num_batched_tokens + 1\n",
    ),
    PlantedBug(
        "tenants_are_not_lifted",
        "scheduling.tenants",
        "self._tokens[index] = max(self._tokens[index], lowest)",
        "pass",
    ),
    PlantedBug(
        "one_too_many_is_queued",
        "scheduling.intake",
        "if state.num_queued_room <= 0:",
        "if state.num_queued_room < 0:",
    ),
    PlantedBug(
        "somebody_is_admitted_in_a_step_that_preempts",
        "scheduling.scheduler",
        "if not schedule_running(state, builder):",
        "if schedule_running(state, builder) is not None:",
    ),
    PlantedBug(
        "long_prompts_are_not_cut",
        "scheduling.running",
        "np.minimum(num_wanted, limits.max_chunk)",
        "num_wanted",
    ),
    PlantedBug(
        "the_preempted_go_to_the_end",
        "scheduling.fcfs",
        "0 if request.state is RequestState.PREEMPTED else 1",
        "1",
    ),
    PlantedBug(
        "an_abort_ends_one_choice",
        "scheduling.intake",
        "for request in state.choices(event.request_id):",
        "for request in state.choices(event.request_id)[:1]:",
    ),
    PlantedBug(
        "the_cache_outlives_the_worker",
        "scheduling.failures",
        "    state.pool.forget_keys()\n",
        "",
    ),
    PlantedBug(
        "runs_are_used_again",
        "scheduling.state",
        "        self._last_run += 1\n",
        "        self._last_run = max(self.running, default=0) + 1\n",
    ),
    PlantedBug(
        "a_row_goes_on_while_its_drafts_are_judged",
        "scheduling.drafting",
        "is_free &= (arrays.num_drafts[rows] == ZERO) | (num_tokens == num_expected)",
        "is_free = (arrays.num_drafts[rows] == ZERO) | (num_tokens == num_expected)",
    ),
    PlantedBug(
        "transfers_begin_while_steps_in_flight_may_write_to_their_blocks",
        "scheduling.transfers",
        "while self._unsent and self._unsent[0][0] <= num_steps:",
        "while self._unsent:",
    ),
    PlantedBug(
        "who_waits_with_loaded_blocks_keeps_them_while_a_row_lacks_some",
        "scheduling.running",
        "if not preempt_one(state) and not lose_one_loaded(state):",
        "if not preempt_one(state):",
    ),
    PlantedBug(
        "who_waits_with_loaded_blocks_keeps_them_while_nothing_runs",
        "scheduling.scheduler",
        "while cause is WaitCause.BLOCKS and not state.running and lose_one_loaded(state):",
        "while False:",
    ),
    PlantedBug(
        "a_newcomer_takes_the_block_that_the_only_row_lacks",
        "scheduling.running",
        "        is_short = True\n        if not",
        "        is_short = len(state.running) > 1\n        if not",
        first_seed=90,
    ),
    PlantedBug(
        "somebody_goes_for_the_sake_of_drafts",
        "scheduling.running",
        "        wanted = _wanted(state, drafts=False)\n    while",
        "        wanted = _wanted(state, drafts=len(state.running) > 1)\n    while",
    ),
    PlantedBug(
        "somebody_goes_because_nobody_knows_where_a_row_stands",
        "scheduling.drafting",
        "is_free |= np.minimum(num_computed + ahead + ONE, max_total - ONE) <= num_places",
        "is_free |= True",
    ),
    PlantedBug(
        "a_row_that_stands_further_than_known_lacks_a_block",
        "scheduling.running",
        "ends = np.minimum(ends + arrays.num_ahead[rows], fields[5] - ONE)",
        "ends = np.minimum(ends, fields[5] - ONE)",
    ),
    PlantedBug(
        "a_row_guesses_beyond_its_blocks",
        "scheduling.drafting",
        "np.minimum(arrays.num_places[rows], arrays.max_total[rows] - ONE)",
        "arrays.max_total[rows] - ONE",
    ),
    PlantedBug(
        "a_row_guesses_beyond_its_end",
        "scheduling.drafting",
        "np.minimum(arrays.num_places[rows], arrays.max_total[rows] - ONE)",
        "arrays.num_places[rows]",
    ),
    PlantedBug(
        "a_row_under_a_grammar_guesses",
        "scheduling.drafting",
        "is_decode & ~arrays.is_constrained[rows]",
        "is_decode",
    ),
    PlantedBug(
        "guesses_take_nothing_of_the_budget",
        "scheduling.plan_builder",
        "self.budget -= int(np.add.reduce(share.num_drafts))",
        "pass",
    ),
    PlantedBug(
        "a_row_is_planned_past_its_last_place",
        "scheduling.row_arrays",
        "min(self.num_computed[row] + num_accepted, self.max_total[row] - ONE)",
        "self.num_computed[row] + num_accepted",
    ),
    PlantedBug(
        "eos_ends_before_min_tokens",
        "scheduling.stop",
        "if last in request.stop_token_ids and not is_guarded:",
        "if last in request.stop_token_ids and is_guarded:",
    ),
    PlantedBug(
        "a_row_without_a_mask_goes_on",
        "scheduling.update",
        "            arrays.num_computed[row] = arrays.num_tokens[row] - ONE\n",
        "",
    ),
    PlantedBug(
        "what_stands_on_a_late_row_is_late_again",
        "scheduling.update",
        "if positions[i] == arrays.num_tokens[row]:",
        "if positions[i] >= arrays.num_tokens[row]:",
    ),
    PlantedBug(
        "what_loads_forgets_its_lost_grammar",
        "scheduling.loading",
        "    await_grammar(state, request)\n",
        "",
    ),
)
