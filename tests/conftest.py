"""Fixtures for all tests, and the parameters of the inherited suite."""

from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import settings

import structloss as sl
from structloss import kernels

ENGINES = ("native", "torch")

# Speed is never a test: the first call of a kernel compiles or loads it.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_configure(config: pytest.Config) -> None:
    """Drop compiled kernels that are older than any kernel's source.

    numba looks only at the file a kernel stands in, not at those it calls; an edit of levels.py must count for all.
    """
    folder = Path(kernels.__file__).parent
    newest = max(source.stat().st_mtime for source in folder.glob("*.py"))
    for cached in folder.parent.rglob("*.nb[ic]"):
        with suppress(FileNotFoundError):  # another session drops them too
            if cached.stat().st_mtime < newest:
                cached.unlink()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A structure's suite names its kinds and edges; every test of it that asks for one gets them all.

    Of those that also ask for an engine, the quick ones have every pair of a kind, an edge and an engine: of two edges
    that follow each other, a kind meets the first in one engine and the second in the other. The rest is slow.
    """
    kinds, edges = (getattr(metafunc.cls, name, ()) for name in ("kinds", "edges"))
    if kinds and edges and {"kind", "edge", "engine"} <= set(metafunc.fixturenames):
        cases = [
            pytest.param(kind, edge, engine, marks=() if (i + j + e) % 2 == 0 else pytest.mark.slow)
            for i, kind in enumerate(kinds)
            for j, edge in enumerate(edges)
            for e, engine in enumerate(ENGINES)
        ]
        metafunc.parametrize(("kind", "edge", "engine"), cases, indirect=["engine"])
        return
    for name, values in (("kind", kinds), ("edge", edges)):
        if name in metafunc.fixturenames and values:
            metafunc.parametrize(name, values)
    if "engine" in metafunc.fixturenames:
        metafunc.parametrize("engine", ENGINES, indirect=True)


@pytest.fixture
def engine(request: pytest.FixtureRequest):
    """Run the test under this engine."""
    with sl.engine(request.param):
        yield request.param


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def one_thread():
    """Small operations in several threads crawl where other tests want the same cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
