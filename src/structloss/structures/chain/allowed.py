"""Which labels may follow which: constraints on a chain, and those of IOB labels."""

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor

from structloss.losses.schemes import Tags, split_label

Scheme: TypeAlias = Literal["IOB1", "IOB2", "IOBES", "BILOU"]


class Allowed(NamedTuple):
    """Which labels may follow which (K, K), from row to column, and be the first and the last (K,): booleans."""

    transitions: Tensor
    start: Tensor
    end: Tensor


def iob_transitions(labels: Sequence[str], scheme: Scheme | None = None) -> Allowed:
    """What IOB labels allow (also called BIO), for `ChainLayer(allowed=...)`.

    IOB2: I-X only after B-X or I-X. IOB1: B-X only after B-X or I-X, where it parts two chunks of a type. IOBES and
    BILOU: B-X and I-X are followed by I-X or E-X (L-X), which nothing else is, and are not the last.

    Args:
        labels: the names of labels 0, 1, ...: "O", "B-PER", "I-PER", ...
        scheme: "IOB1", "IOB2", "IOBES" or "BILOU". By default IOBES where some label has one of its prefixes E, S, L,
            U; IOB1 where some I-X has no B-X, and can only be the first of its chunk; otherwise IOB2.

    Example:
        >>> import structloss as sl
        >>> allowed = sl.iob_transitions(["O", "B-PER", "I-PER"])
        >>> allowed.transitions
        tensor([[ True,  True, False],
                [ True,  True,  True],
                [ True,  True,  True]])
        >>> allowed.start, allowed.end
        (tensor([ True,  True, False]), tensor([True, True, True]))
    """
    tags, scheme = Tags.of(labels), _scheme(labels) if scheme is None else scheme
    if scheme not in get_args(Scheme):
        raise ValueError(f"scheme: got {scheme!r}, but wanted one of {', '.join(get_args(Scheme))}")
    begins = np.array([split_label(label)[0] == "B" for label in labels])
    within = (tags.kind >= 0) & ~tags.begins  # I, E, L
    opens = (tags.kind >= 0) & ~tags.closes  # B, I: a chunk is open behind them
    follows = opens[:, None] & (tags.kind[:, None] == tags.kind)  # a label of the chunk's own type behind B or I
    if scheme == "IOB1":
        transitions, start, end = follows | ~begins, ~begins, np.ones(len(labels), np.bool_)
    elif scheme == "IOB2":
        transitions, start, end = follows | ~within, ~within, np.ones(len(labels), np.bool_)
    else:
        transitions, start, end = np.where(opens[:, None], follows & within, ~within), ~within, ~opens
    return Allowed(*(torch.from_numpy(x) for x in (transitions, start, end)))


def _scheme(labels: Sequence[str]) -> Scheme:
    parts = {split_label(label) for label in labels}
    if any(prefix in ("E", "S", "L", "U") for prefix, _ in parts):
        return "IOBES"
    return "IOB1" if any(prefix == "I" and ("B", kind) not in parts for prefix, kind in parts) else "IOB2"
