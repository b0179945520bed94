"""`structloss speech make`: recordings with exact phone times, from synthetic voices."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from structloss.cli import options
from structloss.cli.prepare import said_plainly

NAMES = ("festival-kal", "festival-slt-hts", "flite-slt", "flite-rms", "flite-awb")  # of tasks.alignment.voices

app = typer.Typer(help="Make speech with exact phone times.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _speech() -> None:
    pass


@app.command()
def make(
    out: Annotated[Path, typer.Option(help="The folder to write, one below it for each voice.")] = Path("speech"),
    sentences: Annotated[int, typer.Option(min=1, help="Sentences of each voice.")] = 100,
    voice: Annotated[list[str] | None, typer.Option(help=f"{', '.join(NAMES)}; give several. By default all.")] = None,
    seed: options.Seed = 0,
) -> None:
    """Have festival's and flite's voices read sentences that a small grammar makes of frequent words.

    Every sentence is a wav of 16 kHz, a TextGrid with its phones and a text. All voices read the same sentences. What
    does not fit its wave is dropped and counted.

    Example: `structloss speech make --out speech --sentences 200 --seed 1`
    """
    with said_plainly():
        from structloss.tasks.alignment.sentences import sentences as made
        from structloss.tasks.alignment.synthesis import synthesise
        from structloss.tasks.alignment.voices import VOICES

        voices = voice or list(VOICES)
        texts, console = made(sentences, seed), Console(stderr=True)
        with Progress(console=console, transient=True, disable=not console.is_interactive) as bar:
            for name in voices:
                task = bar.add_task(name, total=len(texts))
                result = synthesise(texts, name, out / name, progress=partial(bar.advance, task))
                dropped = f", {len(result.dropped)} dropped" if result.dropped else ""
                typer.echo(f"{name}: {len(result.recordings)} recordings in {out / name}{dropped}")
