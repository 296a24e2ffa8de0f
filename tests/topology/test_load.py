"""Reading topology files and overrides."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.errors import ConfigError
from callboard.topology import load_topology, topology_from
from callboard.topology.decode import decode_topology
from callboard.topology.lines import field_lines
from callboard.topology.schema import Topology


def test_a_model_alone_gives_the_default_topology():
    topology = topology_from("org/name")
    assert topology.model.source == "org/name"
    assert [(process.name, process.actors) for process in topology.process] == [
        ("control", ("frontend", "tokenizer", "scheduler", "grammar")),
        ("worker", ("worker",)),
    ]
    assert topology.scheduler.pipeline_depth == 2
    assert topology.kv_cache.block_size == 16


def test_every_value_of_a_file_arrives(tmp_path):
    path = tmp_path / "t.toml"
    path.write_text(
        '[model]\nsource = "m"\nkv_dtype = "bfloat16"\n[scheduler]\nwatermark = 0\n[kv_cache]\nmemory_bytes = 5_000\n'
        '[[process]]\nname = "p"\nactors = ["worker"]\nrestart = { max = 0, within_s = 1 }\n'
    )
    topology = load_topology(path)
    assert topology.model.kv_dtype == "bfloat16"
    assert topology.scheduler.watermark == 0.0
    assert topology.kv_cache.memory_bytes == 5000
    assert len(topology.process) == 1
    assert (topology.process[0].restart.max, topology.process[0].restart.within_s) == (0, 1.0)


def test_a_source_given_beside_the_file_wins(tmp_path):
    path = tmp_path / "t.toml"
    path.write_text("[scheduler]\nmax_num_seqs = 3\n")
    assert load_topology(path, source="123").model.source == "123"
    path.write_text('[model]\nsource = "file"\nmax_model_len = 7\n')
    topology = load_topology(path, source="given")
    assert (topology.model.source, topology.model.max_model_len) == ("given", 7)


@pytest.mark.parametrize(
    ("override", "section", "field", "value"),
    [
        ("scheduler.max_num_seqs=7", "scheduler", "max_num_seqs", 7),
        ("scheduler.max_num_seqs = 7", "scheduler", "max_num_seqs", 7),
        ("scheduler.max_queued_tokens=5_000", "scheduler", "max_queued_tokens", 5000),
        ("scheduler.watermark=0.05", "scheduler", "watermark", 0.05),
        ("kv_cache.prefix_caching=false", "kv_cache", "prefix_caching", False),
        ("model.dtype=float32", "model", "dtype", "float32"),
        ('model.dtype="float32"', "model", "dtype", "float32"),
        ("server.host=0.0.0.0", "server", "host", "0.0.0.0"),
        ("server.host=::1", "server", "host", "::1"),
        ("model.served_name=7", "model", "served_name", "7"),
        ("model.served_name=2024-01-01", "model", "served_name", "2024-01-01"),
        ("model.served_name=true", "model", "served_name", "true"),
        ("model.chat_template=a=b", "model", "chat_template", "a=b"),
        ("journal.path=/tmp/j", "journal", "path", "/tmp/j"),
    ],
)
def test_overrides(override, section, field, value):
    topology = topology_from("m", [override])
    got = getattr(getattr(topology, section), field)
    assert got == value and type(got) is type(value)
    key, _, text = override.partition("=")
    assert topology_from("m", {key: text}) == topology


def test_overrides_of_a_process_go_by_its_name(tmp_path):
    topology = topology_from("m", ["process.worker.threads=3", "process.worker.restart.max=1"])
    assert topology.process[0] == topology_from("m").process[0]
    assert (topology.process[1].threads, topology.process[1].restart.max) == (3, 1)
    path = tmp_path / "t.toml"
    path.write_text('[model]\nsource = "m"\n[[process]]\nname = "all"\nactors = ["worker"]\n')
    assert load_topology(path, ['process.all.actors=["frontend", "worker"]']).process[0].actors == (
        "frontend",
        "worker",
    )


def test_a_later_override_wins():
    assert topology_from("m", ["server.port=1", "server.port=2"]).server.port == 2


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("scheduler.max_num_seq=7", ["--set scheduler.max_num_seq=7", 'did you mean "max_num_seqs"']),
        ("schedule.max_num_seqs=7", ["--set schedule.max_num_seqs=7", 'did you mean "scheduler"']),
        ("scheduler.max_num_seqs=many", ["--set scheduler.max_num_seqs=many", "an integer of at least 1"]),
        ("scheduler.max_num_seqs=-1", ["--set scheduler.max_num_seqs=-1", "an integer of at least 1"]),
        ("scheduler.policy=lifo", ["--set scheduler.policy=lifo", '"fcfs", "priority", "fair"']),
        ("scheduler.max_num_seqs", ["no value", "section.key=value"]),
        ("scheduler=7", ["names no field", "section.key=value"]),
        ("=7", ["section.key=value"]),
        ("scheduler.policy.name=7", ["names no field", "section.key=value"]),
        ("process.worker=7", ["names no field", "process.NAME.field=value"]),
        ("process.workers.threads=7", ['no process is named "workers"', 'did you mean "worker"']),
        ("process.worker.thread=7", ['unknown field "thread"', 'did you mean "threads"']),
        ("process.worker.restart=7", ["--set process.worker.restart=7", "a table"]),
        ("process.worker.restart.max=-7", ["--set process.worker.restart.max=-7", "an integer of at least 0"]),
        ("server.port=1\nhost = 3", ["--set server.port", "an integer"]),
    ],
)
def test_a_bad_override_names_itself(override, says):
    with pytest.raises(ConfigError) as caught:
        topology_from("m", [override])
    for part in says:
        assert part in str(caught.value)


def test_an_unreadable_file_says_why(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read .*missing\.toml.*No such file"):
        load_topology(tmp_path / "missing.toml")
    with pytest.raises(ConfigError, match=r"cannot read .*Is a directory"):
        load_topology(tmp_path)


def test_a_syntax_error_names_its_line(tmp_path):
    path = tmp_path / "t.toml"
    path.write_text('[model]\nsource = "m"\nmax_model_len = = 3\n')
    with pytest.raises(ConfigError, match=r"t\.toml.*not valid TOML.*line 3"):
        load_topology(path)
    path.write_bytes(b'[model]\nsource = "\xff"\n')
    with pytest.raises(ConfigError, match=r"t\.toml.*not UTF-8"):
        load_topology(path)


@pytest.mark.parametrize(
    "text", ["model = 3", 'model = "m"', "[[model]]\nsource = 'm'", "[model]\nsource='m'\n[process]\nname='x'"]
)
def test_a_section_of_the_wrong_form(tmp_path, text):
    path = tmp_path / "t.toml"
    path.write_text(text)
    with pytest.raises(
        ConfigError, match=r"t\.toml:[13], .*: (model|process) = .*; allowed: a.* table.*; write \["
    ) as caught:
        load_topology(path)
    assert "\n" not in str(caught.value)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
SECTIONS = ["model", "scheduler", "kv_cache", "server", "journal", "process"]


@settings(max_examples=60)
@given(
    section=st.sampled_from(SECTIONS), value=PLAIN, field=st.sampled_from(["source", "policy", "name", "port", "path"])
)
def test_whatever_a_file_holds_it_is_a_topology_or_a_config_error(section, value, field):
    for tables in (
        {section: value},
        {"model": {"source": "m"}, section: {field: value}},
        {"process": [{field: value}]},
    ):
        topology, problems = decode_topology(tables)
        assert isinstance(topology, Topology)
        plain = msgspec.json.decode(msgspec.json.encode(topology))
        assert (topology, []) == decode_topology(plain), "what is left of it is sound"
        for problem in problems:
            assert problem.path and problem.got and problem.allowed and problem.advice


def test_one_fault_comes_with_its_advice_apart(tmp_path):
    path = tmp_path / "t.toml"
    path.write_text('[model]\nsource = "m"\n[server]\nprot = 1\n')
    with pytest.raises(ConfigError) as caught:
        load_topology(path)
    assert caught.value.cause.startswith(f'{path}:4, [server]: unknown field "prot"; allowed: host, port, ')
    assert caught.value.advice == 'did you mean "port"?'
    with pytest.raises(ConfigError) as caught:
        topology_from("m", ["server.prot=1"])
    assert caught.value.advice == 'did you mean "port"?'


# Lines


def test_the_line_of_every_field():
    text = (
        "\ufeff# comment\n"
        "model.source = 'm'\n"  # 2
        "\n"
        "[scheduler] # comment with = and [\n"  # 4
        'policy = "fcfs"\n'
        "max_num_seqs = 8 # = 9\n"
        "[[process]]\n"  # 7
        'name = """\n'
        "a\\\n"
        '"""\n'
        "actors = [\n"  # 11
        '  "frontend",\n'
        '  "worker", # ]\n'
        "]\n"
        "[process.restart]\n"  # 15
        "max = 3\n"
        "[[process]]\n"  # 17
        "restart = { max = 1 }\n"
        "[kv_cache]\n"
        '"block_size" = 16\n'
    ).removeprefix("\ufeff")
    assert field_lines(text) == {
        ("model",): 2,
        ("model", "source"): 2,
        ("scheduler",): 4,
        ("scheduler", "policy"): 5,
        ("scheduler", "max_num_seqs"): 6,
        ("process",): 7,
        ("process", '"a"'): 7,
        ("process", '"a"', "name"): 8,
        ("process", '"a"', "actors"): 11,
        ("process", '"a"', "restart"): 15,
        ("process", '"a"', "restart", "max"): 16,
        ("process", "number 2"): 17,
        ("process", "number 2", "restart"): 18,
        ("process", "number 2", "restart", "max"): 18,
        ("kv_cache",): 19,
        ("kv_cache", "block_size"): 20,
    }


def test_processes_in_an_array_of_inline_tables_have_lines_too():
    text = "[model]\nsource = 'm'\n\n"
    text = "process = [ { name = 'a', actors = [] },\n  { name = 'b', actors = [] } ]\n" + text
    lines = field_lines(text)
    assert lines[("process", '"a"', "actors")] == lines[("process", '"b"', "name")] == 1
    assert lines[("model", "source")] == 4


KEYS = st.text("abcdefgh_", min_size=1, max_size=6)


@settings(max_examples=60)
@given(
    sections=st.dictionaries(
        KEYS, st.dictionaries(KEYS, st.integers() | st.text("ab'\"\\#=[]\n", max_size=6), max_size=4), max_size=4
    ),
    num_blank=st.integers(0, 3),
)
def test_lines_of_whatever_is_written(sections, num_blank):
    text, expected = "", {}
    for name, fields in sections.items():
        text += "\n" * num_blank + f"[{name}] # [x]\n"
        expected[(name,)] = text.count("\n")
        for key, value in fields.items():
            expected[(name, key)] = text.count("\n") + 1
            quotes = '"""' + "\n"
            shown = (
                str(value)
                if isinstance(value, int)
                else quotes + value.replace("\\", "\\\\").replace('"', '\\"') + '"""'
            )
            text += f"{key} = {shown}\n"
    assert field_lines(text) == expected


def test_a_file_of_windows_with_its_mark_is_read(tmp_path):
    path = tmp_path / "t.toml"
    path.write_bytes("\ufeff[model]\r\nsource = 'm'\r\n[server]\r\nprot = 1\r\n".encode())
    with pytest.raises(ConfigError, match=r"t\.toml:4, \[server\]"):
        load_topology(path)
