"""docs/structured_output.md: its command is taken, its tables name what there is."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from pathlib import Path

import pytest

from callboard.mailbox.messages.grammar import JsonFormat
from callboard.server.format_fields import FormatFields, StructuredOutputs
from callboard.server.tool_fields import ToolFields
from callboard.text.reasoning import STYLES
from callboard.text.tool_calls import FAMILIES

PAGE = (Path(__file__).parents[2] / "docs" / "structured_output.md").read_text()


async def test_the_command_asks_for_a_schema(serve, frontend):
    if shutil.which("curl") is None:
        pytest.skip("the page uses curl")
    (command,) = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    command = command.replace("http://127.0.0.1:8000", await serve())
    process = await asyncio.create_subprocess_exec("bash", "-c", command, stdout=asyncio.subprocess.PIPE)
    answer, _ = await process.communicate()
    assert json.loads(answer)["choices"]
    asked = frontend.streams[0].output_format
    assert isinstance(asked, JsonFormat) and json.loads(asked.schema)["required"] == ["name", "height_m"]


def test_everything_is_named():
    fields = {*FormatFields.__struct_fields__, *ToolFields.__struct_fields__, *StructuredOutputs.__struct_fields__}
    names = {*fields, *FAMILIES, *STYLES} - {"disable_fallback"}
    assert [name for name in sorted(names) if f"`{name}`" not in PAGE] == []
