"""`structloss warm-up`: compile the kernels ahead of their first use."""

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Annotated

import typer
from rich.console import Console

from structloss.cli.prepare import said_plainly


def warm_up(
    what: Annotated[
        list[str] | None,
        typer.Argument(help="chains, ctc, lattices, segments, trees, alignments, graphs; by default all."),
    ] = None,
    double: Annotated[bool, typer.Option("--double", help="For float64 too, not for float32 alone.")] = False,
) -> None:
    """Compile the kernels of the CPU ahead, into the cache on disk: later processes begin at once.

    Each kind of work is compiled when it is first met, which takes 5 to 20 seconds; for a container or a class room,
    do it before. What is compiled already costs nothing.

    Example: `structloss warm-up chains ctc`
    """  # fmt: skip
    with said_plainly():
        kinds = _kinds()
        for name in what or ():
            if name not in kinds:
                raise ValueError(f"warm-up: got {name!r}, but wanted {', '.join(kinds)}")
        import torch

        console = Console(stderr=True)
        for name in what or kinds:
            begin = time.perf_counter()
            for dtype in (torch.float32, torch.float64) if double else (torch.float32,):
                with console.status(f"{name}, {str(dtype).removeprefix('torch.')} ..."):
                    kinds[name](dtype)
            console.print(f"{name}: {time.perf_counter() - begin:.1f} s", highlight=False)


def _kinds() -> dict[str, Callable[..., None]]:
    """For each kind of structure, what meets its kernels: sums, gradients, maxima, losses as machines."""
    import torch

    import structloss as sl

    def scores(dtype: torch.dtype, *shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, requires_grad=True)

    def trained(structure: sl.Structure, reference: object, *losses: sl.Loss) -> None:
        objectives = [kind(loss) for loss in losses for kind in (sl.SoftmaxMargin, sl.Hinge, sl.Risk)]
        value = sl.NegativeLogLikelihood()(structure, reference)
        sum((objective(structure, reference) for objective in objectives), value).backward()
        structure.argmax()
        structure.marginals()

    def chains(dtype: torch.dtype) -> None:
        x, transitions = scores(dtype, 2, 6, 3), scores(dtype, 3, 3)
        chain = sl.Chain.from_emissions(x, transitions, lengths=torch.tensor([6, 4]))
        trained(chain, [[0, 1, 2, 0, 1, 2], [0, 1, 1, 2]], sl.Hamming(), sl.EditDistance(cap=3))
        chain.sample(2)
        chain.topk(2)

    def ctc(dtype: torch.dtype) -> None:
        structure = sl.CTC(scores(dtype, 2, 6, 4))
        trained(structure, [[1, 2], [3]], sl.EditDistance(cap=3))
        structure.detach().expected(sl.EditDistance(cap=3), [[1, 2], [3]], tolerance=0.1)

    def lattices(dtype: torch.dtype) -> None:
        lattice = sl.Lattice.nbest([[[0, 1], [1]], [[2], [2, 0]]], scores(dtype, 2, 2))
        trained(lattice, [[0, 1], [2]], sl.EditDistance(cap=3))

    def segments(dtype: torch.dtype) -> None:
        segmentation = sl.Segmentation(scores(dtype, 1, 3, 8))
        trained(segmentation, torch.tensor([[0, 3, 5]]), sl.BoundaryTolerance(1))
        semi_markov = sl.SemiMarkov(
            scores(dtype, 1, 6, 2), transitions=scores(dtype, 2, 2), durations=scores(dtype, 2, 3)
        )
        semi_markov.log_partition().sum().backward()
        semi_markov.argmax()

    def trees(dtype: torch.dtype) -> None:
        for projective in (True, False):
            trained(sl.DependencyTree(scores(dtype, 1, 3, 4), projective=projective), [[0, 1, 1]], sl.Hamming())
        sl.ConstituencyTree(scores(dtype, 1, 3, 3, 2)).log_partition().sum().backward()

    def alignments(dtype: torch.dtype) -> None:
        structure = sl.Alignment(scores(dtype, 1, 3, 4), -1.0, -0.5)
        structure.log_partition().sum().backward()
        structure.argmax()

    def graphs(dtype: torch.dtype) -> None:
        builder = sl.FactorGraphBuilder()
        variables = [builder.variable(scores(dtype, 1, 2)) for _ in range(3)]
        for pair in pairwise(variables):
            builder.factor(pair, scores(dtype, 1, 2, 2))
        trained(builder.build(), [[0, 1, 1]], sl.Hamming())

    return {
        "chains": chains, "ctc": ctc, "lattices": lattices, "segments": segments, "trees": trees,
        "alignments": alignments, "graphs": graphs,
    }  # fmt: skip
