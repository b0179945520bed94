"""Which engine computes which operation of a structure: what is asked for, and what there is."""

from structloss.structures.base import Structure
from structloss.structures.engine import Name, engine_of

OPERATIONS = ("log_partition", "marginals", "expectation", "argmax", "topk", "sample")


def engine_info(structure: Structure) -> dict[str, Name]:
    """Which engine would compute each operation of a structure now: "native", "torch" or "triton".

    The device and the `with` blocks of `engine` say which is asked for. What the Triton engine has no kernel for the
    torch engine does; a few searches and draws, of trees and alignments, are native on every device, and move their
    scores to the CPU. Entropy, KL and expected losses go as `expectation` does, `max` as `argmax` does, with the score
    of what that finds.

    Example:
        >>> import torch, structloss as sl
        >>> sl.engine_info(sl.Chain(torch.zeros(1, 3, 2)))["argmax"]
        'native'
        >>> with sl.engine("torch"):
        ...     found = sl.engine_info(sl.DependencyTree(torch.zeros(1, 3, 4)))
        >>> [name for name, engine in found.items() if engine == "native"]
        ['argmax', 'topk']
    """
    asked = engine_of(structure.device)
    if asked == "native":
        return dict.fromkeys(OPERATIONS, asked)
    kernels = structure._on_triton if asked == "triton" else frozenset()
    found: dict[str, Name] = {}
    for name in OPERATIONS:
        found[name] = "native" if name in structure._only_native else "triton" if name in kernels else "torch"
    return found
