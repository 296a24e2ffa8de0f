"""The options of `callboard simulate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

PathList = Optional[list[Path]]  # noqa: UP045  (typer reads the annotations at run time)
Text = Optional[str]  # noqa: UP045
TextList = Optional[list[str]]  # noqa: UP045
Number = Optional[int]  # noqa: UP045
Real = Optional[float]  # noqa: UP045


def simulate(
    trace: Annotated[Path, typer.Option("--trace", help="CSV or JSONL: docs/simulator.md has the formats.")],
    model_shape: Annotated[
        Text, typer.Option("--model-shape", help="A folder with the model's config.json, or any MODEL of serve.")
    ] = None,
    device: Annotated[
        Text, typer.Option("--device", help="h100-sxm, h200, a100-80g, cpu-2core, or a TOML file that describes one.")
    ] = None,
    fit: Annotated[
        PathList,
        typer.Option(
            "--fit",
            metavar="JOURNAL",
            help="In place of shape and device: files of an engine's journal, for step times and limits.",
        ),
    ] = None,
    fit_time: Annotated[
        TextList,
        typer.Option(
            "--fit-time",
            metavar="FROM:TO",
            help="Fit only steps of this time, in seconds since the journal began; may be repeated.",
        ),
    ] = None,
    settings: Annotated[
        TextList, typer.Option("--set", metavar="KEY=VALUE", help="A field of [scheduler] or [kv_cache].")
    ] = None,
    compare: Annotated[
        TextList,
        typer.Option("--compare", metavar="KEY=V,V", help="Several values of a field side by side; may be repeated."),
    ] = None,
    num_blocks: Annotated[Number, typer.Option(min=1, help="KV blocks; else what the device has room for.")] = None,
    kv_share: Annotated[float, typer.Option(min=0.0, max=1.0, help="Of the memory beside the weights, for KV.")] = 0.9,
    dtype: Annotated[str, typer.Option(help="Of the weights: float32, bfloat16, float8.")] = "bfloat16",
    kv_dtype: Annotated[str, typer.Option(help="Of keys and values.")] = "bfloat16",
    speedup: Annotated[float, typer.Option(help="Arrivals so many times as dense.")] = 1.0,
    length_divisor: Annotated[int, typer.Option(help="Lengths so many times shorter.")] = 1,
    max_prompt: Annotated[Number, typer.Option(min=1, help="Longest prompt, tokens; longer ones are cut.")] = None,
    max_output: Annotated[Number, typer.Option(min=1, help="Longest output, tokens; longer ones are cut.")] = None,
    limit: Annotated[Number, typer.Option(min=1, help="Only the first requests.")] = None,
    ttft_slo: Annotated[Real, typer.Option(help="For goodput: longest TTFT, ms.")] = None,
    tpot_slo: Annotated[Real, typer.Option(help="For goodput: longest TPOT, ms.")] = None,
    schedule_us: Annotated[Real, typer.Option(min=0.0, help="The scheduler's time for a step; default 50.")] = None,
    prepare_us: Annotated[Real, typer.Option(min=0.0, help="The worker's time before a step; default 100.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    plot: Annotated[PathList, typer.Option("--plot", help="Draw into this .png or .svg; may be repeated.")] = None,
) -> None:
    """Drive the scheduler with a trace in virtual time, without a model or a GPU, and report what clients would see."""
    from ..simulation import Objectives
    from .simulate import SimulateOptions, run_simulations

    options = SimulateOptions(
        trace=trace,
        model_shape=model_shape,
        device=device,
        fit=tuple(fit or ()),
        fit_times=tuple(fit_time or ()),
        settings=tuple(settings or ()),
        compare=tuple(compare or ()),
        num_blocks=num_blocks,
        kv_share=kv_share,
        dtype=dtype,
        kv_dtype=kv_dtype,
        speedup=speedup,
        length_divisor=length_divisor,
        max_prompt=max_prompt,
        max_output=max_output,
        limit=limit,
        objectives=Objectives(ttft_slo, tpot_slo),
        schedule_us=schedule_us,
        prepare_us=prepare_us,
        is_json=json,
        plots=tuple(plot or ()),
    )
    raise typer.Exit(run_simulations(options))
