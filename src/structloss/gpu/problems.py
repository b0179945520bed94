"""What is timed on a device: problems of the size of real ones, by each of our engines and by other libraries."""

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from structloss.losses import EditDistance, Hamming
from structloss.objectives import NegativeLogLikelihood, Risk, SoftmaxMargin
from structloss.structures import CTC, Chain

Method = Callable[[Sequence[Tensor]], Tensor]


class Sizes(NamedTuple):
    """Of one problem: examples, positions, labels, and labels of a reference."""

    batch: int
    positions: int
    labels: int
    written: int


CHAIN, CHAIN_QUICK = Sizes(32, 128, 32, 24), Sizes(2, 5, 3, 3)
FRAMES, FRAMES_QUICK = Sizes(16, 256, 48, 40), Sizes(2, 6, 4, 2)


class Problem(NamedTuple):
    """An operation on a batch: scores, what our engines compute of them, and what others do."""

    name: str
    sizes: Sizes
    scores: tuple[Tensor, ...]  # on the CPU, in float32
    ours: Method  # values (B,), or labels where the best output is asked for
    others: dict[str, Method]

    @property
    def size(self) -> str:
        """In a few letters."""
        return "B={}, T={}, K={}".format(*self.sizes)


def problems(quick: bool = False) -> list[Problem]:
    """All of them; quick: as small as can be. A library that is not installed is left out."""
    return [*_chains(CHAIN_QUICK if quick else CHAIN), *_frames(FRAMES_QUICK if quick else FRAMES)]


def _lengths(sizes: Sizes, least: int, generator: torch.Generator) -> list[int]:
    """Ragged ones, the first of them the longest."""
    found: list[int] = torch.randint(least, sizes.positions + 1, (sizes.batch,), generator=generator).tolist()
    return [sizes.positions, *found[1:]]


def _strings(sizes: Sizes, generator: torch.Generator) -> list[list[int]]:
    """References, without label 0 and without two equals in a row, so that frames that are as many can write them."""
    found = torch.randint(1, sizes.labels, (sizes.batch, sizes.written), generator=generator)
    return [[label for i, label in enumerate(row) if i == 0 or label != row[i - 1]] for row in found.tolist()]


# --- Chains ----------------------------------------------------------------------------------------------------------


def _chains(sizes: Sizes) -> list[Problem]:
    B, T, K, _ = sizes
    generator = torch.Generator().manual_seed(0)
    shapes = ((B, T, K), (K, K), (K,), (K,))
    scores = tuple(torch.randn(shape, generator=generator) for shape in shapes)
    lengths, strings = _lengths(sizes, 2, generator), _strings(sizes, generator)
    labels = torch.randint(0, K, (B, T), generator=generator)

    def chain(x: Sequence[Tensor]) -> Chain:
        return Chain.from_emissions(x[0], x[1], x[2], x[3], torch.tensor(lengths))

    likelihood = NegativeLogLikelihood(reduction="none")
    margin = SoftmaxMargin(Hamming(), reduction="none")
    strict = SoftmaxMargin(EditDistance(cap=3), reduction="none")
    risk = Risk(EditDistance(cap=3), reduction="none")
    theirs = _torchcrf(labels, lengths) | _torch_struct(labels, lengths)

    def others(operation: str) -> dict[str, Method]:
        return {name: methods[operation] for name, methods in theirs.items() if operation in methods}

    return [
        Problem("CRF loss", sizes, scores, lambda x: likelihood(chain(x), labels), others("loss")),
        Problem("CRF argmax", sizes, scores, lambda x: chain(x).argmax(), others("argmax")),
        Problem("CRF marginals", sizes, scores, lambda x: chain(_detached(x)).marginals(), others("marginals")),
        Problem("CRF entropy", sizes, scores, lambda x: chain(x).entropy(), others("entropy")),
        Problem("softmax-margin, Hamming", sizes, scores, lambda x: margin(chain(x), labels), {}),
        Problem("softmax-margin, edit distance", sizes, scores, lambda x: strict(chain(x), labels), {}),
        Problem("risk, edit distance", sizes, scores, lambda x: risk(chain(x), strings), {}),
    ]


def _detached(x: Sequence[Tensor]) -> list[Tensor]:
    return [part.detach() for part in x]


def _torchcrf(labels: Tensor, lengths: list[int]) -> dict[str, dict[str, Method]]:
    if find_spec("torchcrf") is None:
        return {}
    from torchcrf import CRF

    def call(x: Sequence[Tensor], run: Callable[[Any, Tensor], Any]) -> Any:
        crf, device = CRF(x[1].shape[0], batch_first=True), x[0].device
        for name, own in zip(("transitions", "start_transitions", "end_transitions"), x[1:], strict=True):
            delattr(crf, name)
            setattr(crf, name, own)
        mask = torch.arange(x[0].shape[1], device=device) < torch.tensor(lengths, device=device)[:, None]
        return run(crf, mask)

    def loss(x: Sequence[Tensor]) -> Tensor:
        found: Tensor = call(x, lambda crf, mask: -crf(x[0], labels.to(x[0].device), mask, reduction="none"))
        return found

    def argmax(x: Sequence[Tensor]) -> Tensor:
        rows = call(x, lambda crf, mask: crf.decode(x[0], mask))
        return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], True, -1)

    return {"pytorch-crf": {"loss": loss, "argmax": argmax}}


def _torch_struct(labels: Tensor, lengths: list[int]) -> dict[str, dict[str, Method]]:
    if find_spec("torch_struct") is None:
        return {}
    from torch_struct import LinearChainCRF

    def distribution(x: Sequence[Tensor]) -> Any:
        # log_potentials[b, t, j, i] scores label i at t and j at t + 1; the ends go into the first and the last.
        emissions, transitions, start, end = x
        steps, sizes = torch.arange(emissions.shape[1] - 1), torch.tensor(lengths)[:, None]
        is_first, is_last = (own.to(emissions)[:, :, None, None] for own in (steps[None] == 0, steps == sizes - 2))
        first = (emissions[:, 0] + start)[:, None, None, :] * is_first
        scores = emissions[:, 1:, :, None] + transitions.T + first + end[:, None] * is_last
        return LinearChainCRF(scores.contiguous(), sizes[:, 0].to(emissions.device))

    def loss(x: Sequence[Tensor]) -> Tensor:
        parts = LinearChainCRF.struct.to_parts(labels, x[1].shape[0], torch.tensor(lengths))
        found: Tensor = -distribution(x).log_prob(parts.to(x[0]))
        return found

    def argmax(x: Sequence[Tensor]) -> Tensor:
        parts = distribution(_detached(x)).argmax
        found: Tensor = LinearChainCRF.struct.from_parts(parts)[0]
        within = torch.arange(found.shape[1], device=found.device) < torch.tensor(lengths, device=found.device)[:, None]
        return torch.where(within, found, -1)

    def marginals(x: Sequence[Tensor]) -> Tensor:
        found: Tensor = distribution(_detached(x)).marginals
        return found.transpose(2, 3)

    def entropy(x: Sequence[Tensor]) -> Tensor:
        found: Tensor = distribution(x).entropy
        return found

    return {"torch-struct": {"loss": loss, "argmax": argmax, "marginals": marginals, "entropy": entropy}}


# --- CTC -------------------------------------------------------------------------------------------------------------


def _frames(sizes: Sizes) -> list[Problem]:
    B, T, C, written = sizes
    generator = torch.Generator().manual_seed(1)
    scores = (torch.randn(B, T, C, generator=generator),)
    lengths, strings = _lengths(sizes, min(T, 2 * written), generator), _strings(sizes, generator)
    flat, sizes_of = (
        torch.tensor([label for string in strings for label in string]),
        torch.tensor([len(string) for string in strings]),
    )
    likelihood, risk = NegativeLogLikelihood(reduction="none"), Risk(EditDistance(cap=3), reduction="none")

    def ctc(x: Sequence[Tensor]) -> CTC:
        return CTC(x[0].log_softmax(2), torch.tensor(lengths))

    def by_torch(x: Sequence[Tensor]) -> Tensor:
        log_probs = x[0].log_softmax(2).transpose(0, 1)
        return torch.nn.functional.ctc_loss(
            log_probs, flat.to(log_probs.device), torch.tensor(lengths), sizes_of, reduction="none"
        )

    return [
        Problem("CTC loss", sizes, scores, lambda x: likelihood(ctc(x), strings), {"torch": by_torch}),
        Problem("CTC risk, edit distance", sizes, scores, lambda x: risk(ctc(x), strings), {}),
    ]
