"""Whether a topology can run on this machine: the files that it names, addresses, cores. The model apart."""

from __future__ import annotations

import errno
import os
import socket
import stat

from .check_server import host_advice
from .decode import show_value
from .plan import num_ranks_of
from .problem import Path, Problem
from .schema import Topology


def check_machine(topology: Topology, folder: str) -> list[Problem]:
    """Problems and warnings; `folder` is the topology file's. Tries to bind the address, and leaves nothing bound."""
    problems: list[Problem] = []
    _check_keys(topology, folder, problems)
    template = topology.model.chat_template
    if template:
        _read(("model", "chat_template"), os.path.expanduser(template), folder, problems)
    _check_journal(topology, problems)
    _check_threads(topology, problems)
    _check_address(topology, problems)
    return problems


def _check_keys(topology: Topology, folder: str, problems: list[Problem]) -> None:
    name = topology.server.api_keys_file
    path = ("server", "api_keys_file")
    if not name or (text := _read(path, name, folder, problems)) is None:
        return
    got = f"api_keys_file = {show_value(name)}"
    if not text.split():
        problems.append(Problem(path, f"{got}, which holds no key", "a key a line", "write one, or leave it out"))
    mode = os.stat(name).st_mode
    if stat.S_ISREG(mode) and mode & (stat.S_IROTH | stat.S_IWOTH):
        can = "write" if mode & stat.S_IWOTH else "read"
        problems.append(
            Problem(
                path,
                f"{got}, which every user of this machine can {can}",
                "a file that others cannot read or write",
                f"chmod 600 {name}",
                is_warning=can == "read",
            )
        )


def _read(path: Path, name: str, folder: str, problems: list[Problem]) -> str | None:
    """The file's text, or None and a problem; None too for a pipe, which can be read only once."""
    try:
        if not stat.S_ISREG(os.stat(name).st_mode) and not os.path.isdir(name):
            return None
        with open(name, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        reason = error.strerror or "cannot be read"
        advice = "correct the path, or leave it out"
        beside = os.path.join(folder, name)
        if not os.path.isabs(name) and os.path.exists(beside):
            advice = f"paths begin at the working directory: write '{os.path.abspath(beside)}'"
    except UnicodeDecodeError:
        reason, advice = "not UTF-8 text", "save it as UTF-8"
    got = f"{path[-1]} = {show_value(name)}: {reason}"
    problems.append(Problem(path, got, "a text file that can be read", advice))
    return None


def _check_journal(topology: Topology, problems: list[Problem]) -> None:
    section = topology.journal
    if section is None or not section.path:
        return
    path, got = ("journal", "path"), f"path = {show_value(section.path)}"
    stem = os.path.abspath(os.path.expanduser(section.path))
    folder = os.path.dirname(stem)
    allowed = "a file name in a folder that is there and can be written to"
    if not os.path.isdir(folder):
        problems.append(Problem(path, f"{got}: there is no folder {folder}", allowed, f"mkdir -p {folder}"))
    elif os.path.isdir(stem):
        advice = f"write path = {show_value(os.path.join(section.path, 'journal'))}"
        problems.append(Problem(path, f"{got} is a folder", allowed, advice))
    elif not os.access(folder, os.W_OK | os.X_OK):
        advice = "choose another, or give this user the right to write there"
        problems.append(Problem(path, f"{got}: no files can be made in {folder}", allowed, advice))
    else:
        _check_room(section.max_bytes, folder, problems)


def _check_room(max_bytes: int, folder: str, problems: list[Problem]) -> None:
    """Of the journal on the disk: files that stand there already are not counted."""
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if max_bytes > free:
        got = f"max_bytes = {max_bytes:,}"
        allowed = f"at most {free:,}, what is free in {folder}: a journal that finds no room stops"
        problems.append(Problem(("journal", "max_bytes"), got, allowed, "lower it, or make room", is_warning=True))


def _check_threads(topology: Topology, problems: list[Problem]) -> None:
    num_cores = len(os.sched_getaffinity(0))
    for process in topology.process:
        num_ranks = num_ranks_of(process)
        if process.threads is not None and process.threads * num_ranks > num_cores:
            path = ("process", f'"{process.name}"', "threads")
            allowed = f"at most {num_cores}, the cores that this machine gives: more wait for each other"
            got = f"threads = {process.threads}" + (f" in each of {num_ranks} ranks" if num_ranks > 1 else "")
            problems.append(Problem(path, got, allowed, "lower it or leave it out", is_warning=True))


def _check_address(topology: Topology, problems: list[Problem]) -> None:
    host, port = topology.server.host, topology.server.port
    if host_advice(host) is not None:
        return
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        _add_host_problem(host, "a name that this machine can resolve", problems)
        return
    family, kind, protocol, _, address = found[0]
    try:
        with socket.socket(family, kind, protocol) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            got = f"port = {port}, in use on {host}"
            advice = "stop what uses it, choose another, or 0 for a free one"
            path, depends_on = ("server", "port"), (("server", "host"),)
            problems.append(Problem(path, got, "a port that is free", advice, depends_on, is_warning=True))
        elif error.errno == errno.EACCES:
            allowed = "1024 or above without root, or 0"
            problems.append(Problem(("server", "port"), f"port = {port}", allowed, "8000 is the default"))
        else:
            _add_host_problem(host, "an address of this machine", problems)


def _add_host_problem(host: str, allowed: str, problems: list[Problem]) -> None:
    advice = '"127.0.0.1" is reached from here, "0.0.0.0" from everywhere'
    problems.append(Problem(("server", "host"), f"host = {show_value(host)}", allowed, advice))
