"""Neither room loads torch: start-up and memory of a process without a worker show it."""

from __future__ import annotations

import subprocess
import sys


def test_checkpoints_and_text_import_no_torch() -> None:
    script = (
        "import sys, callboard.checkpoints, callboard.text\n"
        "print([name for name in ('torch', 'transformers', 'huggingface_hub', 'gguf') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
