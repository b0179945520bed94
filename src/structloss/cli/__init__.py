"""The `structloss` command: one module a subcommand."""

from typing import Annotated

import typer

from structloss import __version__
from structloss.cli import align, answer, compare, demo, gpu_report, report, reproduce, speech, train, warm_up
from structloss.cli.prepare import Debugging

__all__ = ["app"]

app = typer.Typer(
    help="Train structured-prediction models on the loss you report, exactly.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command()(demo.demo)
app.command()(train.train)
app.command()(compare.compare)
app.command()(answer.predict)
app.command()(answer.evaluate)
app.add_typer(align.app, name="align")
app.add_typer(speech.app, name="speech")
app.add_typer(reproduce.app, name="reproduce")
app.command()(report.report)
app.command()(warm_up.warm_up)
app.command()(gpu_report.gpu_report)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"structloss {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show where an error comes from: `structloss --debug train ...`.")
    ] = False,
) -> None:
    Debugging.wanted = debug
