"""What every command that runs for long has in common: it says how it goes, and ends when it is told to."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from structloss.cli.prepare import said_plainly
from structloss.training import interruption, processes
from structloss.training.batches import is_first_process

PROCESSES_GRACE = processes.GRACE
GO_ON = "structloss: interrupted; the same command with --resume goes on from the last checkpoint"


@contextmanager
def running(farewell: str, grace: float = interruption.GRACE, quiet: bool = False) -> Iterator[None]:
    """Ctrl-C and SIGTERM end it within seconds, with the farewell; what is wrong is one line, and exit code 2.

    Quiet: only warnings are said on the way.
    """
    interruption.end_with_parent()
    farewell = farewell if is_first_process() else ""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("structloss: %(message)s"))
    logger = logging.getLogger("structloss.training")
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING if quiet else logging.INFO)
    try:
        with interruption.listening(farewell, grace), said_plainly():
            yield
    finally:
        logger.removeHandler(handler)
