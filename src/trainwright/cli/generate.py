"""`generate`: text from a language model."""

from __future__ import annotations

import click

import trainwright
from trainwright.cli import options
from trainwright.cli.output import show


@click.command()
@options.run_argument
@options.mesh
@click.option("--prompt", required=True, help="How the text begins.")
@click.option(
    "--max-tokens",
    type=click.IntRange(0),
    default=200,
    show_default=True,
    help="Generate at most this many tokens.",
)
@click.option(
    "--temperature",
    type=click.FloatRange(0),
    default=1.0,
    show_default=True,
    help="Below 1, probable tokens are drawn more often; 0 always takes the most probable one.",
)
@click.option(
    "--top-k",
    type=click.IntRange(1),
    help="Draw only from this many of the most probable tokens.  [default: all]",
)
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the random numbers."
)
@options.trust
@options.runs_dir
@options.as_json
def generate(  # one parameter for each option
    run: str,
    overrides: tuple[str, ...],
    prompt: str,
    max_tokens: int,
    temperature: float,
    top_k: int | None,
    seed: int,
    trust: bool,
    runs_dir: str | None,
    as_json: bool,
) -> None:
    """Continue a text with a run's language model.

    Equal options give the same text.

    Several processes can share the model out: `trainwright generate RUN distributed.nproc=2
    distributed.strategy=fsdp --prompt ...`.
    """
    from trainwright.records.listing import has_model
    from trainwright.runs.lookup import find

    found = find(run, runs_dir, has_model)
    text = trainwright.generate(
        run,
        prompt,
        max_tokens,
        temperature=temperature,
        top_k=top_k,
        seed=seed,
        runs_dir=runs_dir,
        trust=trust,
        overrides=overrides,
    )
    document = {"run_id": found.id, "prompt": prompt, "text": text}
    show(document, [prompt + text], as_json)
