"""A rank that is there and does nothing: `python -P rank_child.py FD NUM_RANKS SLOT_BYTES RANK`."""

from __future__ import annotations

import signal
import sys

from callboard.shm_queue.rank_region import RankRegion, RankRegionLayout

if __name__ == "__main__":
    fd, num_ranks, slot_bytes, rank = (int(word) for word in sys.argv[1:])
    region = RankRegion(RankRegionLayout("ranks", num_ranks, slot_bytes), fd, rank)
    print("here", flush=True)
    signal.pause()
