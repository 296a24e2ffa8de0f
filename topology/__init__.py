"""The topology file: its schema, strict decoding, checks, and what follows from it by arithmetic."""

from .arithmetic import Arithmetic, arithmetic_of
from .boards import mask_layout, max_plan_blocks, max_plan_tokens, plan_boards, rank_region_layout, stage_boards
from .check import check_topology, ensure_valid
from .check_machine import check_machine
from .decode import is_independent
from .defaults import AUTO, find_device
from .load import Reading, load_topology, raise_problems, read_topology, topology_from
from .memory import MemoryLedger, plan_memory
from .plan import (
    MailboxLink,
    block_bytes_of,
    blocks_for,
    expand_actors,
    kind_of,
    mailbox_links,
    max_model_len_of,
)
from .problem import Places, Problem
from .schema import Topology
from .show import as_ascii, render_ledger, render_topology

__all__ = [
    "AUTO",
    "Arithmetic",
    "MailboxLink",
    "MemoryLedger",
    "Places",
    "Problem",
    "Reading",
    "Topology",
    "arithmetic_of",
    "as_ascii",
    "block_bytes_of",
    "blocks_for",
    "check_machine",
    "check_topology",
    "ensure_valid",
    "expand_actors",
    "find_device",
    "is_independent",
    "kind_of",
    "load_topology",
    "mailbox_links",
    "mask_layout",
    "max_model_len_of",
    "max_plan_blocks",
    "max_plan_tokens",
    "plan_boards",
    "plan_memory",
    "raise_problems",
    "rank_region_layout",
    "read_topology",
    "render_ledger",
    "render_topology",
    "stage_boards",
    "topology_from",
]
