"""Prints a digest of a tiny decoder's logits, of prompts and single tokens: `python -m ...cpu_digest`."""

from __future__ import annotations

import tempfile
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch

from callboard.tests.kernels.cpu_decoders import make_cache, pack_decoder, run_steps
from callboard.tests.models.families import load, make_oracle, make_prompt


def main() -> None:
    prompt = make_prompt(0, 63)
    digest = sha256()
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        loaded = load(make_oracle("gemma3", head_dim=32), Path(folder))
        steps = [[(0, 0, prompt[:40]), (1, 0, prompt[:1])], [(0, 40, prompt[40:41]), (1, 1, prompt[1:50])]]
        for bits in (4, 8, 16, 32):
            decoder = pack_decoder(loaded.oracle, loaded.shape, bits, 2)
            for dtype in (np.float32, np.uint16):
                for logits in run_steps(decoder, make_cache(loaded.shape, dtype), steps).values():
                    assert np.isfinite(logits).all()
                    digest.update(logits.tobytes())
            decoder.close()
    print(digest.hexdigest())


if __name__ == "__main__":
    main()
