"""The topology file: its schema, strict decoding, checks, and what follows from it by arithmetic."""

from .boards import max_plan_blocks, max_plan_tokens, plan_boards
from .check import check_topology, ensure_valid
from .load import load_topology, topology_from
from .plan import (
    MailboxLink,
    MemoryLedger,
    block_bytes_of,
    blocks_for,
    expand_actors,
    kind_of,
    mailbox_links,
    max_model_len_of,
    plan_memory,
)
from .problem import Problem
from .schema import Topology
from .show import render_topology

__all__ = [
    "MailboxLink",
    "MemoryLedger",
    "Problem",
    "Topology",
    "block_bytes_of",
    "blocks_for",
    "check_topology",
    "ensure_valid",
    "expand_actors",
    "kind_of",
    "load_topology",
    "mailbox_links",
    "max_model_len_of",
    "max_plan_blocks",
    "max_plan_tokens",
    "plan_boards",
    "plan_memory",
    "render_topology",
    "topology_from",
]
