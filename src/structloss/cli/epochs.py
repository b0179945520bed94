"""One line an epoch: what `structloss train` says of how it goes, the same in a terminal and in a file."""

import sys

from structloss.training.plan import Plan
from structloss.training.task import Task


class EpochLines:
    """Prints on standard error, for each epoch's row, its objective and the dev metric, and whether it is the best."""

    def __init__(self, task: Task, plan: Plan) -> None:
        self._task, self._plan = task, plan

    def __call__(self, row: dict[str, float]) -> None:
        """Say what became of an epoch."""
        value = row[f"dev_{self._task.metric}"]
        text = (
            f"epoch {row['epoch'] + 1:.0f} of {self._plan.epochs}: objective {row['train_objective']:.4g}, "
            f"dev {self._task.metric} {100 * value:.2f}{', the best so far' if row['best'] else ''}"
        )
        if row.get("skipped"):
            text += f", {row['skipped']:.0f} impossible examples left out"
        if self._plan.progress:
            from tqdm import tqdm

            tqdm.write(text, file=sys.stderr)
        else:
            print(text, file=sys.stderr, flush=True)
