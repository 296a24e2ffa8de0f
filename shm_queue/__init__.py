"""Boards: bytes in shared memory, order in the kernel, one writer, lockstep readers; beside them the progress page."""

from .layout import BoardLayout
from .mask_region import MaskLayout, MaskRegion, create_mask_region
from .progress import START_PHASES, Phase, ProgressLine, ProgressPage, create_progress_page, mark_of
from .reader import BoardReader
from .seal import seal_board
from .segment import close_board, create_board
from .writer import BoardWriter

__all__ = [
    "START_PHASES",
    "BoardLayout",
    "BoardReader",
    "BoardWriter",
    "MaskLayout",
    "MaskRegion",
    "Phase",
    "ProgressLine",
    "ProgressPage",
    "close_board",
    "create_board",
    "create_mask_region",
    "create_progress_page",
    "mark_of",
    "seal_board",
]
