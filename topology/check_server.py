"""The rules about `[server]`."""

from __future__ import annotations

import ipaddress
import re

from .decode import show_value
from .problem import Problem
from .schema import Topology

_NAME = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_]([A-Za-z0-9_-]{0,62})(\.[A-Za-z0-9_][A-Za-z0-9_-]{0,62})*\.?")
_LOOKS_NUMERIC = re.compile(r"[\d.]+")


def check_server(topology: Topology, problems: list[Problem]) -> None:
    """Append what is wrong with `[server]`."""
    section = topology.server
    advice = host_advice(section.host)
    if advice is not None:
        got = f"host = {show_value(section.host)}"
        problems.append(Problem(("server", "host"), got, "a host name or an address, without a port", advice))
    if section.api_keys_file == "":
        got = 'api_keys_file = ""'
        problems.append(Problem(("server", "api_keys_file"), got, "the path of a file", "leave it out for no keys"))


def host_advice(host: str) -> str | None:
    """None for a host name or an address; else what to do."""
    try:
        ipaddress.ip_address(host.partition("%")[0] if ":" in host else host)
        return None
    except ValueError:
        pass
    if _NAME.fullmatch(host) and not _LOOKS_NUMERIC.fullmatch(host):
        return None
    if "://" in host:
        return "write the host alone, without http://"
    name, _, port = host.rpartition(":")
    if port.isdigit() and name:
        return f"write host = {show_value(name.strip('[]'))} and port = {port}"
    if host.startswith("[") and host.endswith("]"):
        return f"write host = {show_value(host[1:-1])}"
    if host == "*":
        return 'write "0.0.0.0" for all addresses'
    return '"127.0.0.1" is the default'
