"""`structloss demo`: letters to sounds under each objective, and names in made-up text on chunk F1."""

import random
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from structloss.cli import options, samples
from structloss.cli.extras import need
from structloss.cli.running import GO_ON, PROCESSES_GRACE, running

OUT = Path("out/demo")
TRAIN, DEV, TEST = 2000, 500, 1000
SETTINGS: dict[str, Any] = {"networks": 1, "width": 64, "layers": 1, "dropout": 0.2}
LOSS = "edit:cap=3"
OBJECTIVES = {
    "likelihood": "nll",
    "softmax-margin": "softmax-margin",
    "hinge": "hinge",
    "direct loss": "direct",
    "risk": "risk",
}
SEEDS = 3
SAMPLES = 8
SAMPLES_TITLE = "Some words that no model has seen"
HEADS = ("word", "phones")
SENTENCES = 1000  # made up, with names


def demo(
    out: Annotated[
        Path,
        typer.Option(file_okay=False, help="Folder for curves.png, names.png, results.json, index.html and models."),
    ] = OUT,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training data under each objective.")] = 18,
    words: Annotated[int, typer.Option(min=10, help="Words to train on.")] = TRAIN,
    sentences: Annotated[int, typer.Option(min=100, help="Made-up sentences to train on.")] = SENTENCES,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at a time; by default one a core.")] = None,
    seed: options.Seed = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Keep runs that have ended, go on with others.")] = False,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Remove the runs that --out holds, as in out/demo is done without asking."),
    ] = False,
) -> None:
    """Learn to pronounce English words under each objective, and to find names on chunk F1; compare.

    The words are a random subset of the dictionary that comes with pocketsphinx. A small network reads the letters; a
    chain has one state a letter, which writes no, one or several phones: who wrote what is for the model to find out.
    The loss that is reported, and that all but the likelihood train on, is the edit distance. All begin with two thirds
    of the epochs on the likelihood, from each of three seeds.

    Then names of persons, places and organisations, in text that is made up from the seed: a linear tagger is trained
    by likelihood, with and without a bias against "no name" that is tuned on dev, and with ChainTagger(loss="f1").

    Example: structloss demo --epochs 5 --seed 1 --out out/quick
    """
    with running(GO_ON, PROCESSES_GRACE):
        need("structloss demo", ("train", "sklearn", "speech"))
        from structloss.cli import comparison, demo_names
        from structloss.cli.prepare import warm_up_of
        from structloss.files import write_bytes, write_text
        from structloss.naming import objective_of
        from structloss.tasks import TASKS
        from structloss.tasks.g2p import dictionary
        from structloss.training.compare import Trial, compare, cores, folder_of, num_epochs
        from structloss.training.directory import load
        from structloss.training.experiment import Data
        from structloss.training.plan import Plan
        from structloss.training.task import predict

        out.mkdir(parents=True, exist_ok=True)
        task = TASKS["g2p"]
        known = dictionary.words()
        if words + DEV + TEST > len(known):
            raise ValueError(f"--words: got {words}, but the dictionary has {len(known) - DEV - TEST} to spare")
        chosen = random.Random(seed).sample(known, words + DEV + TEST)
        data = Data(chosen[:words], chosen[words : words + DEV], chosen[words + DEV :])
        settings = {**task.settings, **SETTINGS}
        config = task.configure(data.train, settings)
        trials = [Trial(name, config, objective_of(objective, LOSS)) for name, objective in OBJECTIVES.items()]
        given = {"epochs": epochs, "patience": epochs, "warm_up": warm_up_of(epochs), "seed": seed}
        seeds = range(seed, seed + SEEDS)
        overwrite = overwrite or (out == OUT and not resume)
        plan = Plan(**{**asdict(task.defaults(config)), **given}, resume=resume, overwrite=overwrite)
        with comparison.EpochsBar(task, num_epochs(trials, plan, seeds), shown=True) as bar:
            outcomes = compare(task, data, trials, out, plan, seeds, jobs or cores(), bar)
        title = "Letters to sounds: the same model under each objective"
        Console().print(comparison.as_table(task, outcomes, f"{title} (epochs: {epochs})", "per"))
        shown = [example for example in data.test if len(example.x) > 5][:SAMPLES]
        answers = {
            trial.name: [" ".join(y) for y in predict(load(folder_of(out, trial.name, seed), TASKS)[1], shown)]
            for trial in trials
        }
        said = list(samples.grouped([(str(example.source), " ".join(example.y)) for example in shown], answers))
        Console().print(samples.as_table(said, SAMPLES_TITLE, HEADS))
        names = demo_names.study(sentences, seed)
        Console().print(demo_names.as_table(names))
        Console().print(names.about, highlight=False)
        Console().print(samples.as_table(demo_names.sampled(names), demo_names.SAMPLES_TITLE, demo_names.HEADS))
        best = min(outcomes[1:], key=lambda outcome: outcome.summary("dev", "per")[0])
        gained = comparison.gains(outcomes, "per")[outcomes.index(best)]
        short = (
            "In short: training on chunk F1 instead of the likelihood changes the F1 of names by "
            f"{demo_names.gain(names)} points; {best.name}, the best on dev of those that train on the edit distance, "
            f"changes the per of letters to sounds by {gained} points."
        )
        Console().print(short, highlight=False)
        about = (
            f"{short} {words} words of the dictionary to train on, {DEV} to choose the epoch, {TEST} to report, the "
            f"same for each seed; the loss is {LOSS}; {plan.warm_up} of the {epochs} epochs are likelihood. wer: words "
            "with any phone wrong; per: edit distance over the number of phones."
        )
        write_bytes(out / "curves.png", comparison.curves(task, outcomes, title))
        write_bytes(out / "names.png", demo_names.picture(names))
        measured = {"seed": seed, "epochs": epochs, "words": words, "loss": LOSS, "names": demo_names.as_json(names)}
        write_text(out / "results.json", comparison.as_json(outcomes, **measured))
        more = samples.as_html(said, SAMPLES_TITLE, HEADS) + demo_names.as_html(names)
        write_text(out / "index.html", comparison.as_page(task, outcomes, title, about, "per", more))
        for name in ("curves.png", "names.png", "results.json", "index.html"):
            typer.echo(f"Wrote {out / name}")
