"""Callboard beside other engines on this machine, with each peer in the same run: one table.

    python -m callboard.bench.peers MODEL.gguf [--peers ...] [--points c1,c4,c16,c32,shared,long,startup] [--rounds 3]

docs/peers.md says how each peer is installed and what is compared with what.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from ...checkpoints import read_shape, resolve_checkpoint
from ..machine import describe_machine
from . import callboard_http, callboard_offline, llama_server, openvino, transformers_batch, vllm_server
from .ceilings import measure_ceilings
from .peer import NotInstalled, Peer, PeerOptions
from .points import POINTS, STARTUP
from .rounds import PeerRound, run_rounds
from .table import report

FAMILIES: dict[str, Callable[[PeerOptions], Sequence[Peer]]] = {
    "callboard-offline": callboard_offline.find,
    "openvino": openvino.find,
    "transformers": transformers_batch.find,
    "callboard": callboard_http.find,
    "llama-server": llama_server.find,
    "vllm": vllm_server.find,
}


def parse_arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ",".join([*(point.name for point in POINTS), STARTUP])
    parser.add_argument("model", help="as callboard serve takes it")
    parser.add_argument("--peers", nargs="+", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--points", default=names, help=f"of {names}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="of the peers; default: cores"
    )
    parser.add_argument("--dtype", nargs="+", default=["auto"], help="Callboard's, a row each")
    parser.add_argument("--set", action="append", default=[], help="Callboard's SECTION.KEY=VALUE; may be repeated")
    parser.add_argument("--llama-server", type=Path, help="its binary")
    parser.add_argument("--llama-gguf", type=Path, nargs="+", help="files for it, a row each; default: MODEL")
    parser.add_argument("--openvino-python", type=Path, help="an interpreter that has openvino_genai")
    parser.add_argument("--openvino-model", type=Path, nargs="+", default=[], help="exported folders, a row each")
    parser.add_argument("--vllm", type=Path, help="its command")
    parser.add_argument("--transformers-python", type=Path, default=Path(sys.executable))
    parser.add_argument("--transformers-dtype", nargs="+", default=["bfloat16"], help="a row each")
    parser.add_argument("--hf-dir", type=Path, help="the model for vLLM and transformers")
    parser.add_argument("--json", type=Path, help="append every start's figures to this file, a line each")
    arguments = parser.parse_args(words)
    if unknown := set(arguments.points.split(",")) - set(names.split(",")):
        parser.error(f"unknown points {', '.join(sorted(unknown))}; there are {names}")
    return arguments


def options_of(arguments: argparse.Namespace) -> PeerOptions:
    return PeerOptions(
        model=arguments.model,
        num_threads=arguments.threads,
        dtypes=arguments.dtype,
        settings=arguments.set,
        llama_server=arguments.llama_server,
        llama_ggufs=arguments.llama_gguf or [Path(arguments.model)],
        openvino_python=arguments.openvino_python,
        openvino_models=arguments.openvino_model,
        vllm=arguments.vllm,
        transformers_python=arguments.transformers_python,
        transformers_dtypes=arguments.transformers_dtype,
        hf_dir=arguments.hf_dir,
    )


def find_peers(families: Sequence[str], options: PeerOptions) -> list[Peer]:
    """Those that are installed; a line about each of the others."""
    peers: list[Peer] = []
    for family in families:
        try:
            peers += FAMILIES[family](options)
        except NotInstalled as missing:
            print(f"{family} is left out: {missing}", flush=True)
    return peers


def main() -> None:
    arguments = parse_arguments(sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is stopped
    chosen = arguments.points.split(",")
    points = [point for point in POINTS if point.name in chosen]
    print(describe_machine(), flush=True)
    peers = find_peers(arguments.peers, options_of(arguments))
    if not peers:
        sys.exit("nobody is left to measure")
    vocab_size = read_shape(resolve_checkpoint(arguments.model)).vocab_size

    ceilings = measure_ceilings(arguments.model, arguments.dtype[0], arguments.threads, points)
    rounds: list[PeerRound] = []

    def note(one: PeerRound) -> None:
        rounds.append(one)
        if arguments.json is not None:
            with arguments.json.open("ab") as file:
                file.write(msgspec.json.encode(one) + b"\n")

    try:
        run_rounds(peers, points, arguments.rounds, vocab_size, note)
    finally:  # interrupted, too, it shows what it has
        if rounds:
            print(report(rounds, points, STARTUP in chosen, ceilings))


if __name__ == "__main__":
    main()
