"""Bad input: each gives a sentence that names the argument, what came and what was wanted."""

import math
from collections.abc import Callable

import pytest
import torch

import structloss as sl

CHAIN = sl.Chain(torch.zeros(2, 3, 4), lengths=[3, 2])
LABELS = torch.zeros(2, 3, dtype=torch.int64)
HAMMING = sl.Hamming()


def with_nan(value: float) -> torch.Tensor:
    potentials = torch.zeros(3, 2, 4, 4)
    potentials[1, 1, 2, 3] = value
    return potentials


CASES: dict[str, tuple[type[Exception], str, Callable[[], object]]] = {
    "integer potentials": (TypeError, r"potentials: got torch.int64.*floating", lambda: sl.Chain(torch.zeros(2, 3, 4).long())),
    "not a tensor": (TypeError, "potentials: got list.*tensor", lambda: sl.Chain([[1.0]])),
    "too few axes": (ValueError, r"potentials: got shape \(2, 3\).*\(B, T, K\)", lambda: sl.Chain(torch.zeros(2, 3))),
    "label axes differ": (ValueError, r"potentials: got shape \(2, 3, 4, 5\)", lambda: sl.Chain(torch.zeros(2, 3, 4, 5))),
    "no labels": (ValueError, r"potentials: got shape \(2, 3, 0\).*K at least 1", lambda: sl.Chain(torch.zeros(2, 3, 0))),
    "length too long": (ValueError, r"lengths: lengths\[1\] is 4.*0 to 3", lambda: sl.Chain(torch.zeros(2, 3, 4), [3, 4])),
    "negative length": (ValueError, r"lengths: lengths\[0\] is -1", lambda: sl.Chain(torch.zeros(2, 3, 4), [-1, 3])),
    "wrong number of lengths": (ValueError, r"lengths: got shape \(3,\).*\(2,\)", lambda: sl.Chain(torch.zeros(2, 3, 4), [1, 2, 3])),
    "float lengths": (TypeError, "lengths: got torch.float32.*integers", lambda: sl.Chain(torch.zeros(2, 3, 4), torch.ones(2))),
    "mask of other numbers": (ValueError, "lengths: got a mask with 2 in it.*0 and 1", lambda: sl.Chain(torch.zeros(2, 3, 4), torch.full((2, 3), 2))),
    "mask of floats": (TypeError, "lengths: got torch.float32.*mask", lambda: sl.Chain(torch.zeros(2, 3, 4), torch.ones(2, 3))),
    "mask of frames with a gap": (ValueError, "lengths: the mask of example 1 has a gap", lambda: sl.SemiMarkov(torch.zeros(2, 3, 4), lengths=torch.tensor([[1, 1, 0], [1, 0, 1]]).bool())),
    "mask of the wrong shape": (ValueError, r"lengths: got a mask of shape \(2, 4\).*\(2, 3\)", lambda: sl.Chain(torch.zeros(2, 3, 4), torch.ones(2, 4).bool())),
    "emissions of the wrong shape": (ValueError, r"emissions: got shape \(2, 3\)", lambda: sl.Chain.from_emissions(torch.zeros(2, 3))),
    "transitions of the wrong shape": (ValueError, r"transitions: got shape \(3, 4\).*4 labels", lambda: sl.Chain.from_emissions(torch.zeros(2, 3, 4), torch.zeros(3, 4))),
    "start of the wrong shape": (ValueError, r"start: got shape \(3,\).*\(4,\)", lambda: sl.Chain.from_emissions(torch.zeros(2, 3, 4), start=torch.zeros(3))),
    "integer transitions": (TypeError, "transitions: got torch.int64", lambda: sl.Chain.from_emissions(torch.zeros(2, 3, 4), torch.zeros(4, 4).long())),
    "label out of range": (ValueError, r"y: y\[1, 1\] is 9.*0 to 3", lambda: CHAIN.score(torch.tensor([[0, 1, 2], [0, 9, 7]]))),
    "unknown label in an output": (ValueError, r"y: y\[0, 0\] is -100.*0 to 3", lambda: CHAIN.score(LABELS - 100)),
    "output of the wrong shape": (ValueError, r"y: got shape \(2, 2\).*\(2, 3\)", lambda: CHAIN.score(LABELS[:, :2])),
    "float labels": (TypeError, "y: got torch.float32.*integers", lambda: CHAIN.score(LABELS.float())),
    "reference out of range": (ValueError, r"reference: reference\[0, 2\] is 4.*0 to 3, or -100", lambda: CHAIN.given(torch.tensor([[0, 1, 4], [0, 0, 0]]))),
    "reference of the wrong shape": (ValueError, r"reference: got shape \(1, 3\).*\(2, 3\)", lambda: CHAIN.given(LABELS[:1])),
    "reference list of the wrong length": (ValueError, r"reference: reference\[1\] has 3 labels.*have 2", lambda: CHAIN.augment(HAMMING, [[0, 0, 0], [0, 0, 0]])),
    "reference list of too few": (ValueError, "reference: got 1 sequences.*batch has 2", lambda: CHAIN.augment(HAMMING, [[0, 0, 0]])),
    "reference list of strings": (TypeError, "reference: got .*label sequences", lambda: CHAIN.augment(HAMMING, ["ab", "c"])),
    "epsilon of 0": (ValueError, "epsilon: got 0.*above 0", lambda: sl.DirectLoss(HAMMING, epsilon=0)),
    "epsilon of infinity": (ValueError, "epsilon: got inf", lambda: sl.DirectLoss(HAMMING, epsilon=math.inf)),
    "temperature of -1": (ValueError, "temperature: got -1", lambda: sl.RewardAugmented(HAMMING, temperature=-1)),
    "an unknown reduction": (ValueError, "reduction: got 'avg'.*mean", lambda: sl.Perceptron(reduction="avg")),
    "a loss that is none": (TypeError, "loss: got 'hamming'.*Hamming", lambda: sl.Risk("hamming")),
    "a structure that is none": (TypeError, "structure: got Tensor.*Chain", lambda: sl.Perceptron()(torch.zeros(1), LABELS)),
    "costs that are not square": (ValueError, r"costs: got shape \(2, 3\).*\(K, K\)", lambda: sl.Hamming(torch.zeros(2, 3))),
    "integer costs": (TypeError, "costs: got torch.int64", lambda: sl.Hamming(torch.zeros(2, 2).long())),
    "infinite costs": (ValueError, "costs: got an entry that is infinite", lambda: sl.Hamming(torch.full((2, 2), math.inf))),
    "costs for other labels": (ValueError, "costs: got 2 labels.*has 4", lambda: CHAIN.augment(sl.Hamming(torch.zeros(2, 2)), LABELS)),
    "k of 0": (ValueError, "k: got 0.*at least 1", lambda: CHAIN.topk(0)),
    "n of 1.5": (ValueError, "n: got 1.5", lambda: CHAIN.sample(1.5)),
    "a chain of other labels": (ValueError, "other: got Chain.*labels=5", lambda: CHAIN.kl(sl.Chain(torch.zeros(2, 3, 5)))),
    "a chain of other lengths": (ValueError, "other: got other lengths", lambda: CHAIN.kl(sl.Chain(torch.zeros(2, 3, 4)))),
    "a chain of another dtype": (TypeError, "other: got torch.float64.*torch.float32", lambda: CHAIN.kl(sl.Chain(torch.zeros(2, 3, 4).double(), [3, 2]))),
    "a layer of order 0": (ValueError, "order: got 0", lambda: sl.ChainLayer(3, order=0)),
    "a layer without labels": (ValueError, "num_labels: got 0", lambda: sl.ChainLayer(0)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_named(name: str) -> None:
    error, sentence, call = CASES[name]
    with pytest.raises(error, match=sentence):
        call()


OPERATIONS: dict[str, Callable[[sl.Chain], object]] = {
    "log_partition": lambda c: c.log_partition(),
    "max": lambda c: c.max(),
    "argmax": lambda c: c.argmax(),
    "marginals": lambda c: c.marginals(),
    "topk": lambda c: c.topk(2),
    "sample": lambda c: c.sample(2),
    "entropy": lambda c: c.entropy(),
    "risk": lambda c: c.expected(HAMMING, torch.zeros(3, 2, dtype=torch.int64)),
    "reward": lambda c: c.uniform().expectation(c),
    "strata": lambda c: c.strata(HAMMING, torch.zeros(3, 2, dtype=torch.int64)),
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(("value", "found"), [(math.nan, "NaN"), (math.inf, r"\+inf")])
def test_nan_and_infinity_name_the_example(operation: str, value: float, found: str, engine: str) -> None:
    with pytest.raises(ValueError, match=rf"potentials: example 1 has {found}"):
        OPERATIONS[operation](sl.Chain(with_nan(value)))
    emissions, transitions = torch.zeros(3, 2, 4), torch.zeros(4, 4)
    emissions[1, 0, 2] = value
    with pytest.raises(ValueError, match=rf"potentials: example 1 has {found}"):
        OPERATIONS[operation](sl.Chain.from_emissions(emissions, transitions))
    transitions[1, 1] = value
    with pytest.raises(ValueError, match=rf"potentials: example 0 has {found}"):
        OPERATIONS[operation](sl.Chain.from_emissions(torch.zeros(3, 2, 4), transitions))


def test_nan_in_the_score_of_an_output_names_the_example(engine: str) -> None:
    with pytest.raises(ValueError, match="potentials: example 1 has NaN"):
        sl.Chain(with_nan(math.nan)).score(torch.tensor([[2, 3]] * 3))


def test_sampling_from_nothing_is_a_clear_error(engine: str) -> None:
    with pytest.raises(ValueError, match="example 0 has no output"):
        sl.Chain(torch.full((1, 2, 2), -math.inf)).sample(1)


def test_too_many_loss_values_for_a_slack_hinge_is_a_clear_error() -> None:
    costs = torch.rand(12, 12, dtype=torch.float64).fill_diagonal_(0)
    chain = sl.Chain(torch.zeros(1, 30, 12, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"loss: its costs sum to more than .* values over 30 positions"):
        sl.SlackHinge(sl.Hamming(costs))(chain, torch.arange(30)[None] % 12)


@pytest.mark.parametrize("scale", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("structure", "loss", "reference"),
    [
        (CHAIN, HAMMING, LABELS),
        (CHAIN, sl.EditDistance(cap=2), LABELS),
        (sl.Chain(torch.zeros(1, 3, 2), emits=[[], [0]]), sl.EditDistance(cap=2), [[0]]),
        (sl.CTC(torch.zeros(1, 3, 2)), sl.EditDistance(cap=2), [[1]]),
        (sl.Lattice([[[0, 1, 0]]], torch.zeros(1)), sl.EditDistance(cap=2), [[0]]),
        (sl.Segmentation(torch.zeros(1, 1, 3)), sl.BoundaryTolerance(1), [[0]]),
        (sl.SemiMarkov(torch.zeros(1, 3, 2)), HAMMING, torch.zeros(1, 3, dtype=torch.int64)),
    ],
)
def test_a_scale_is_a_finite_number(structure: sl.Structure, loss: sl.Loss, reference: object, scale: float) -> None:
    wanted = f"scale: got {scale}, but wanted a finite number"
    with pytest.raises(ValueError, match=wanted):
        structure.augment(loss, reference, scale)
    for objective in (sl.SoftmaxMargin, sl.Hinge):
        with pytest.raises(ValueError, match=wanted):
            objective(loss, scale=scale)


@pytest.mark.parametrize(
    "make", [lambda: sl.CTC(torch.zeros(1, 3, 3)), lambda: sl.Chain(torch.zeros(1, 3, 2), emits=[[], [0, 1]])]
)
def test_a_negative_label_that_is_not_unknown_is_refused_by_given_as_by_a_risk(
    make: Callable[[], sl.Structure], engine: str
) -> None:
    for objective in (sl.NegativeLogLikelihood(), sl.Risk(sl.EditDistance(cap=2))):
        with pytest.raises(ValueError, match=r"reference: reference\[0\]\[0\] is -1, but labels"):
            objective(make(), [[-1, 1]])


HUGE = {torch.float32: 3e38, torch.float64: 1e308}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", HUGE)
@pytest.mark.parametrize(
    "make",
    [
        lambda x: sl.Chain(x),
        lambda x: sl.Chain.from_emissions(x, x[0, :2]),
        lambda x: sl.CTC(x),
        lambda x: sl.SemiMarkov(x),
        lambda x: sl.Segmentation(x.transpose(1, 2)),
        lambda x: sl.Lattice([[[t, t + 1, 0] for t in range(4)]], x[0, :, 0]),
    ],
)  # fmt: skip
def test_scores_whose_sums_are_no_numbers_are_an_error(
    make: Callable[[torch.Tensor], sl.Structure], dtype: torch.dtype, engine: str
) -> None:
    for operation in ("log_partition", "max", "entropy"):
        with pytest.raises(ValueError, match="example 0"):
            getattr(make(torch.full((1, 4, 2), HUGE[dtype], dtype=dtype)), operation)()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", HUGE)
def test_the_lowest_number_forbids_as_well_as_minus_infinity(dtype: torch.dtype, engine: str) -> None:
    lowest = torch.zeros(1, 4, 2, dtype=dtype)
    lowest[:, :, 1] = torch.finfo(dtype).min
    for s in (sl.Chain(lowest), sl.CTC(lowest), sl.SemiMarkov(lowest)):
        assert s.max().tolist() == [0.0]
        assert s.log_partition().isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_may_be_as_large_as_it_can(dtype: torch.dtype, engine: str) -> None:
    x = torch.full((1, 4, 2), 60000.0, dtype=dtype)
    for s in (sl.Chain(x), sl.SemiMarkov(x), sl.Lattice([[[0, 1, 0]]], x[0, 0, :1])):
        assert s.max().isfinite().all()
