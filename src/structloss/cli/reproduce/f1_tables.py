"""What `structloss reproduce f1` says of a study: its tables, sentences, pictures and JSON."""

from dataclasses import asdict
from statistics import fmean
from typing import TYPE_CHECKING, Any

from structloss.cli.reproduce import f1_figures as figures

if TYPE_CHECKING:
    from structloss.reproduce.f1.bootstrap import Interval
    from structloss.reproduce.f1.experiment import Result
    from structloss.reproduce.f1.study import Effort, Results, Study, Versus
    from structloss.reproduce.finding import Grid

PAPER = (
    "No paper's table. Parambath et al. 2014 show that the highest F1 minimises the linear loss of misses, 2 - F, and "
    "false alarms, F; whether training a tagger on it pays, against a likelihood whose decisions are tuned, is asked "
    "here. Data: Universal NER (Mayhew et al. 2024) and CoNLL-2000."
)


def _f1(result: "Result") -> float:
    from structloss.reproduce.f1.bootstrap import mean_f1

    return mean_f1(result.test)


def _accuracy(result: "Result") -> float:
    from structloss.reproduce.f1.counts import accuracy

    return float(100 * accuracy(result.test.sum(1)).mean())


def _cost(result: "Result") -> float:
    """Of a hundred names of the test set, where a missed one costs 10 and a false alarm 1."""
    from structloss.reproduce.f1.counts import WANTED, cost
    from structloss.reproduce.f1.methods import DEAR

    total = result.test.sum(1)
    return float(100 * (cost(total, DEAR) / total[:, WANTED].clip(1)).mean())


def _table(caption: str, results: "Results", value: Any, versus: "Versus | None" = None) -> "Grid":
    """A row a method, a column a set, and the mean over the sets of names."""
    from structloss.reproduce.f1.data import CHUNKS
    from structloss.reproduce.finding import Grid

    names = [name for name in results if name != CHUNKS]
    rows = []
    for method in next(iter(results.values())):
        found = {name: value(row[method]) for name, row in results.items() if method in row}
        cells = [f"{found[name]:.2f}" for name in names]
        cells.append(f"{fmean(found[name] for name in names):.2f}" if names else "")
        cells += [f"{found[CHUNKS]:.2f}" if CHUNKS in found else ""] * (CHUNKS in results)
        rows.append([method, *cells, *([_told(versus, method)] if versus else [])])
    columns = ["trained by", *names, "mean", *([CHUNKS] if CHUNKS in results else [])]
    return Grid(caption, [*columns, *(["mean, minus likelihood with bias"] if versus else [])], rows)


def _told(versus: "Versus", method: str) -> str:
    from structloss.reproduce.f1.methods import BIASED

    return "" if method == BIASED or method not in versus.means else str(versus.means[method])


def grids(study: "Study", versus: "Versus", seeds: int) -> "list[Grid]":
    """F1 of linear models, what was chosen, the bootstrap, the BiLSTM, costs, and flipped labels."""
    from structloss.reproduce.f1.study import CHOSEN
    from structloss.reproduce.finding import Grid

    linear = _table(f"Test F1, linear models (means of {seeds} seeds)", study.linear, _f1, versus)
    gains = versus.sets[CHOSEN]
    chosen = [[name, study.chosen[name], str(study.linear[name][study.chosen[name]].choice), str(gains[name])]
              for name in study.linear]  # fmt: skip
    if versus.means:
        chosen.append(["mean of the languages", "", "", str(versus.means[CHOSEN])])
    columns = ["set", "chosen", "its settings", "F1 minus likelihood with bias, 95 %"]
    found = [linear, Grid("The natural loss that held-out sentences choose", columns, chosen)]
    found.append(_settings(study.linear))
    if study.neural:
        found.append(_table(f"Test F1, BiLSTM (means of {seeds} seeds)", study.neural, _f1))
    if study.dear:
        caption = "Cost on test of 100 names: a missed one 10, a false alarm 1"
        found.append(_table(caption, study.dear, _cost))
    found += [_flips(study, "F1", _f1), _flips(study, "token accuracy, %", _accuracy)]
    return found


def _settings(results: "Results") -> "Grid":
    from structloss.reproduce.finding import Grid

    rows = [[name, method, str(row[method].choice)] for name, row in results.items() for method in row]
    return Grid("Settings that held-out sentences chose", ["set", "method", "settings"], rows)


def _flips(study: "Study", what: str, value: Any) -> "Grid":
    from structloss.reproduce.finding import Grid

    parts = list(study.noisy)
    rows = [
        [name, method, *(f"{value(study.noisy[part][name][method]):.2f}" for part in parts)]
        for name in study.noisy[parts[0]]
        for method in study.noisy[parts[0]][name]
    ]
    return Grid(f"Flipped training labels: test {what}", ["set", "trained by", *(f"{p:.0%}" for p in parts)], rows)


def remarks(study: "Study", versus: "Versus", seeds: int, effort: "Effort") -> list[str]:
    """What was found, and how it was asked."""
    from structloss.reproduce.f1.study import CHOSEN

    told = []
    if versus.means:
        gain = versus.means[CHOSEN]
        sure = "above 0" if gain.low > 0 else "below 0" if gain.high < 0 else "on both sides of 0"
        told.append(
            f"Over {len(study.dear)} languages, the natural loss that held-out sentences choose has an F1 of {gain} "
            f"against the likelihood with a tuned bias; the interval is {sure} (paired bootstrap over test sentences, "
            f"{effort.resamples} resamples, mean of {seeds} seeds in each)."
        )
        best = sorted(versus.means, key=lambda m: -versus.means[m].value)
        told.append("By mean gain: " + "; ".join(f"{m} {versus.means[m]}" for m in best) + ".")
    told.append(
        "Penalty, passes, costs and decoder are chosen on dev, and by cross-validation over train and dev where dev "
        "has fewer than 500 names (Danish, Swedish; these are then trained on both). CoNLL-2000 has no dev: a tenth of "
        "its training sentences chooses, with fewer settings, and without risk and direct. The recipe is chosen with "
        "the first seed, passes and decoder with all of them where dev chooses. Bias: what is taken from O's score at "
        "each token. Minimum Bayes risk: the exact set of chunks of least expected errors, its threshold tuned. Risk "
        "and direct begin with four passes of likelihood, and so does all that the BiLSTM learns."
    )
    return told


def _scores(study: "Study", seed: int, times: int) -> "dict[str, dict[str, Interval]]":
    """Likelihood, with a bias, and what was chosen: F1 and its interval by set, and the mean over languages."""
    import numpy as np

    from structloss.reproduce.f1.bootstrap import interval, resampled
    from structloss.reproduce.f1.data import CHUNKS
    from structloss.reproduce.f1.methods import BIASED, LIKELIHOOD

    listed = ("likelihood", "likelihood, bias tuned", "trained for F1 (dev chooses the loss)")
    found: dict[str, dict[str, Interval]] = {method: {} for method in listed}
    drawn: list[Any] = []
    for name, rows in study.linear.items():
        results = [rows[m] for m in (LIKELIHOOD, BIASED, study.chosen[name])]
        samples = resampled([r.test for r in results], np.random.default_rng(seed), times)
        for i, (method, result) in enumerate(zip(listed, results, strict=True)):
            found[method][_name(name)] = interval(_f1(result), samples[:, i])
        if name != CHUNKS:
            drawn.append(samples)
    if drawn:
        for i, method in enumerate(listed):
            mean = fmean(found[method][_name(name)].value for name in study.linear if name != CHUNKS)
            found[method] = {MEAN: interval(mean, np.mean(drawn, axis=0)[:, i]), **found[method]}
    return found


MEAN = "mean of languages"


def _name(name: str) -> str:
    return {"conll2000": "CoNLL-2000"}.get(name, name.capitalize())


def pictures(study: "Study", versus: "Versus", seed: int, resamples: int) -> dict[str, tuple[str, bytes]]:
    """By file: caption and PNG."""
    from structloss.reproduce.f1.study import CHOSEN

    gains = {_name(name): one for name, one in versus.sets[CHOSEN].items()}
    if versus.means:
        gains[MEAN] = versus.means[CHOSEN]
    found = {
        "f1.png": (
            "Test F1 of likelihood, of likelihood with a tuned bias, and of what dev chooses among natural losses.",
            figures.languages(_scores(study, seed, resamples), gains, "tuned bias"),
        )
    }
    parts = list(study.noisy)
    if study.noisy[parts[0]]:
        rows = {
            _name(name): {
                what: {m: [value(study.noisy[p][name][m]) for p in parts] for m in study.noisy[parts[0]][name]}
                for what, value in (("F1", _f1), ("token accuracy, %", _accuracy))
            }
            for name in study.noisy[parts[0]]
        }
        found["f1_flips.png"] = ("Wrong training labels: test F1 and accuracy.", figures.flips(rows, parts))
    if study.dear:
        bars = {_name(name): {m: _cost(r) for m, r in row.items()} for name, row in study.dear.items()}
        caption = "A missed name costs ten times a false alarm: cost on test."
        found["f1_costs.png"] = (caption, figures.costs(bars, "cost of 100 names"))
    return found


def _numbers(result: "Result") -> dict[str, Any]:
    choice = {"chosen": str(result.choice), "held": result.choice.held}
    return {"f1": _f1(result), "accuracy": _accuracy(result), "cost": _cost(result), **choice}


def as_json(study: "Study", versus: "Versus", seeds: tuple[int, ...], effort: "Effort") -> dict[str, Any]:
    """All figures of a study."""

    def told(results: "Results") -> dict[str, Any]:
        return {name: {method: _numbers(r) for method, r in rows.items()} for name, rows in results.items()}

    return {
        "seeds": list(seeds),
        "effort": asdict(effort),
        "linear": told(study.linear),
        "bilstm": told(study.neural),
        "costs": told(study.dear),
        "flips": {f"{part:g}": told(results) for part, results in study.noisy.items()},
        "chosen": study.chosen,
        "against likelihood with bias": {
            "sets": {m: {s: list(i) for s, i in row.items()} for m, row in versus.sets.items()},
            "means": {m: list(i) for m, i in versus.means.items()},
        },
    }
