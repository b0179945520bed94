"""Packages of the `speech` extra, imported when they are first wanted."""

from importlib import import_module
from typing import Any


def speech_module(name: str, purpose: str) -> Any:
    """The module `name`, or a ModuleNotFoundError that says what wants it and how to get it."""
    try:
        return import_module(name)
    except ModuleNotFoundError as missing:
        package = name.partition(".")[0].replace("_", "-")
        raise ModuleNotFoundError(f"{purpose} needs {package}: pip install 'structloss[speech]'") from missing
