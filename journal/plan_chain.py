"""Checksums over plans, by which a replay knows that it made the same ones."""

from __future__ import annotations

import hashlib
import zlib
from array import array
from collections.abc import Sequence

import msgspec

from ..mailbox.messages.steps import StepPlan

DIGEST_BYTES = 16
LARGE_BYTES = 8192
"""An encoded plan from this size on is compared with the large one before: that costs less than the checksum of what
they have in common."""
_ENCODER = msgspec.msgpack.Encoder()


class PlanChain:
    """A running checksum over plans: two chains that differ at one plan differ from there on."""

    def __init__(self, crc: int = 0, digest: bytes = b"") -> None:
        self.crc = crc
        """CRC-32 of the last plan, begun with that of the plan before."""
        self.seed = digest
        """What the digest began with."""
        self._hash = hashlib.blake2b(digest, digest_size=DIGEST_BYTES)
        self._large: StepPlan | None = None
        """The last large one."""

    def extend(self, plans: Sequence[StepPlan], encoded: Sequence[bytes]) -> bytes:
        """Go on with these plans; `crc` behind each, uint32s, which are in the digest now, too."""
        crcs = array("I")
        if max(map(len, encoded), default=0) >= LARGE_BYTES:
            crcs.extend(map(self.link, plans, encoded))
        else:
            crc, append, crc32 = self.crc, crcs.append, zlib.crc32
            for data in encoded:
                crc = crc32(data, crc)
                append(crc)
            self.crc = crc
        column = crcs.tobytes()
        self.add(column)
        return column

    def link(self, plan: StepPlan, encoded: bytes) -> int:
        """Go on with this plan; the new `crc`."""
        if len(encoded) >= LARGE_BYTES:
            encoded = self._without_known(plan, encoded)
        self.crc = zlib.crc32(encoded, self.crc)
        return self.crc

    def _without_known(self, plan: StepPlan, encoded: bytes) -> bytes:
        """Encoded without its columns if they are those of the large plan before, but for `starts`: the checksum has
        them already, and no plan has none."""
        before, self._large = self._large, plan
        if (
            before is None
            or plan.runs != before.runs
            or plan.rows != before.rows
            or plan.num_tokens != before.num_tokens
            or plan.samples != before.samples
        ):
            return encoded
        return _ENCODER.encode(msgspec.structs.replace(plan, rows=b"", runs=b"", num_tokens=b"", samples=b""))

    def add(self, crcs: bytes) -> None:
        """Into the digest: uint32s, one a plan."""
        self._hash.update(crcs)

    def digest(self) -> bytes:
        return self._hash.digest()
