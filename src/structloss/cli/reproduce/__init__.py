"""`structloss reproduce`: the papers' figures and tables, one module each."""

import typer

from structloss.cli.reproduce import alignment, f1, genome, lecture, runtime, theorem, wer

app = typer.Typer(help="The papers' figures and tables.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _reproduce() -> None:
    pass


app.command()(alignment.alignment)
app.command()(runtime.runtime)
app.command()(genome.genome)
app.command()(theorem.theorem)
app.command()(lecture.lecture)
app.command()(f1.f1)
app.command()(wer.wer)
