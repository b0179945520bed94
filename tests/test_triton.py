"""The Triton engine as far as it goes without a GPU and without its interpreter; `make gpu-check` does the rest."""

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

import law
import structloss as sl
from structloss.kernels.machines import turned
from structloss.structures.chain.device_machines import on_device
from structloss.structures.engine_info import OPERATIONS

pytest.importorskip("triton", reason="Triton (the extra triton) is not installed")

CALLS = {
    "log_partition": lambda s: s.log_partition(),
    "marginals": lambda s: s.marginals(),
    "expectation": lambda s: s.expectation(s),
    "argmax": lambda s: s.argmax(),
    "topk": lambda s: s.topk(2),
    "sample": lambda s: s.sample(2),
}


def engines_of(operation, build: Callable[[], sl.Structure]) -> set[str]:
    """The engines whose functions are called, by the names of their files."""
    seen = set()

    def profile(frame, event: str, _) -> None:
        name = Path(frame.f_code.co_filename).stem
        if event == "call" and name.endswith("_engine"):
            seen.add(name.removesuffix("_engine"))

    for profiler in (None, profile):  # what compiles kernels is not profiled: it would take minutes
        structure = build()  # anew, as some keep what they have found
        sys.setprofile(profiler)
        try:
            operation(structure)
        except ValueError as error:
            assert "has no output" in str(error)  # noqa: PT017
        finally:
            sys.setprofile(None)
    return seen


def test_operations_are_those_that_are_called_here() -> None:
    assert tuple(CALLS) == OPERATIONS


@pytest.mark.parametrize("name", law.STRUCTURES)
def test_engine_info_says_which_engine_runs(name: str) -> None:
    case = law.STRUCTURES[name](torch.Generator().manual_seed(1))
    for engine in ("native", "torch"):
        with sl.engine(engine):
            for operation, wanted in sl.engine_info(case.build()).items():
                assert engines_of(CALLS[operation], lambda: case.build().detach()) == {wanted}, (engine, operation)


def test_engine_info_of_the_triton_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with sl.engine("triton"):
        mine = {"log_partition", "marginals", "expectation", "argmax"}
        found = sl.engine_info(sl.Chain(torch.zeros(1, 3, 2)))
        assert found == {name: "triton" if name in mine else "torch" for name in OPERATIONS}
        assert sl.engine_info(sl.Lattice([[[0, 1, 0]]], torch.zeros(1))) == found
        assert set(sl.engine_info(sl.Chain(torch.zeros(1, 1, 9000))).values()) == {"torch"}  # too many labels
        assert sl.engine_info(sl.DependencyTree(torch.zeros(1, 3, 4)))["argmax"] == "native"


def test_it_wants_a_gpu_or_its_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with sl.engine("triton"), pytest.raises(ValueError, match="wants CUDA or ROCm tensors, or Triton's interpreter"):
        sl.Chain(torch.zeros(1, 3, 2)).log_partition()


def test_it_is_no_default_on_the_cpu() -> None:
    sl.enable_triton()
    try:
        assert set(sl.engine_info(sl.Chain(torch.zeros(1, 3, 2))).values()) == {"native"}
    finally:
        sl.enable_triton(False)


def test_arcs_turned_around_are_the_same_arcs() -> None:
    sizes, C, generator = np.array([2, 3, 1, 4]), 3, np.random.default_rng(0)
    levels = [generator.integers(0, there, (C, own)) for own, there in pairwise(sizes)]
    arcs = np.concatenate([x.ravel() for x in levels]).astype(np.int32)
    before, begin = np.zeros(len(arcs), np.int32), np.zeros(C * int(sizes[1:].sum()) + 1, np.int32)
    degrees = np.zeros(3, np.int32)
    turned(arcs, sizes, C, before, begin, degrees)
    place = 0
    for t, level in enumerate(levels):
        counts = []
        for c in range(C):
            for state in range(sizes[t + 1]):
                came = np.flatnonzero(level[c] == state)
                assert before[begin[place] : begin[place + 1]].tolist() == came.tolist()
                counts.append(len(came))
                place += 1
        assert degrees[t] == max(counts)


def test_machines_are_moved_once_and_counted() -> None:
    sl.clear_cache()
    loss = sl.EditDistance(cap=2)
    chains = [sl.Chain(torch.zeros(2, 4, 3)).augment(loss, [[0, 1], [2]]) for _ in range(2)]
    tables = [on_device(c._parts.machine.batch, torch.device("cpu")) for c in chains]
    assert on_device(chains[0]._parts.machine.batch, torch.device("cpu")) is tables[0]
    info = sl.cache_info()
    assert info.device_machines == 2  # the second batch has the same machines
    assert 0 < info.device_bytes <= info.device_limit == 2**30
    sl.set_cache_limit(info.device_bytes - 1, on="device")
    assert sl.cache_info().device_machines == 1
    sl.set_cache_limit(2**30, on="device")
    sl.clear_cache()
    assert sl.cache_info().device_bytes == 0
    with pytest.raises(ValueError, match='on: got \'disk\', but wanted "host" or "device"'):
        sl.set_cache_limit(1, on="disk")


def test_what_was_moved_is_forgotten_with_its_machine() -> None:
    sl.clear_cache()
    machine = sl.EditDistance(cap=1).open(np.array([0, 1]), 3, absolute=True)
    from structloss.losses.moved import MOVED

    moved = MOVED.get(machine, "cpu", lambda: [torch.zeros(4)])
    assert MOVED.get(machine, "cpu", lambda: []) is moved
    assert MOVED.num_bytes == 16
    sl.clear_cache()
    MOVED.get(machine, "cpu", lambda: [torch.zeros(4)])
    del machine
    gc.collect()
    MOVED.set_limit(MOVED.limit)  # it tidies up
    assert MOVED.num_bytes == 0


_INTERPRETED = """
import torch, structloss as sl
x = torch.randn(2, 3, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
found = []
for name in ("native", "triton"):
    with sl.engine(name):
        s = sl.Chain(x, lengths=[3, 1]).augment(sl.EditDistance(cap=1), [[0], [1]])
        value = s.log_partition()
        found.append([value.detach(), *torch.autograd.grad((value * torch.tensor([1.0, 2.0])).sum(), x), s.argmax()])
for a, b in zip(*found, strict=True):
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
"""


def test_the_interpreter_agrees_with_the_native_engine() -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _INTERPRETED], env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
