"""Which examples a step sees: batches of about one length, shared out among the processes that train together."""

import os
from collections.abc import Iterator, Sequence

import torch
from torch.utils.data import Sampler


class LengthBatches(Sampler[list[int]]):
    """Examples of about one length together, in an order that seed and epoch decide, and shared out among processes.

    Which batch comes when does not depend on what was drawn before: a resumed run goes on as if nothing had happened,
    with the batches of its epoch that were not done yet.
    Every process takes its part of each batch, so that several see together what one would see alone. With `updates` an
    epoch is so many batches, drawn with replacement.
    """

    def __init__(self, sizes: Sequence[int], batch_size: int, seed: int, updates: int = 0) -> None:
        self.sizes, self.batch_size, self.seed, self.updates = sizes, batch_size, seed, updates
        self.epoch, self.done = 0, 0

    def set_place(self, epoch: int, done: int = 0) -> None:
        """Go on in this epoch, of which so many batches are done; called by the loop."""
        self.epoch, self.done = epoch, done

    def __len__(self) -> int:
        return self.updates or -(-len(self.sizes) // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(1_000_003 * self.seed + self.epoch)
        noise = torch.rand(len(self.sizes), generator=generator).tolist()
        order = sorted(range(len(self.sizes)), key=lambda i: self.sizes[i] + 3 * noise[i])
        batches = [order[i : i + self.batch_size] for i in range(0, len(order), self.batch_size)]
        processes, rank = world()
        if self.updates:
            chosen = torch.randint(len(batches), (self.updates,), generator=generator)
        else:
            chosen = torch.randperm(len(batches), generator=generator)
        for i in chosen.tolist()[self.done :]:
            own = batches[i][rank::processes]
            yield own or batches[i][:1]


def world() -> tuple[int, int]:
    """How many processes train together, and which of them this is."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size(), torch.distributed.get_rank()
    return 1, 0


def nodes() -> int:
    """How many machines torchrun has started this on; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", 1)) // int(
        os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", 1))
    )


def is_first_process() -> bool:
    """Whether this process is the one that speaks and writes, of those that train together or are about to."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank() == 0
    return int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", 0))) == 0
