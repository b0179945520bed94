"""What people train on: data formats, features, models and metrics of each task."""

from structloss.tasks.g2p.task import G2P
from structloss.tasks.ocr.task import Ocr
from structloss.tasks.parsing.task import Parsing
from structloss.tasks.speech.task import Speech
from structloss.tasks.tagging.task import Tagging
from structloss.training.task import FileTask

TASKS: dict[str, FileTask] = {task.name: task for task in (Tagging(), G2P(), Ocr(), Parsing(), Speech())}

__all__ = ["TASKS"]
