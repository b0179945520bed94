"""Every kernel compiled for several GPUs, on a machine without one: registers, spills and shared memory of each.

What is compiled are the launches that operations make, listed as they would be made (`kernels.triton.launching`), in a
process that does not interpret. Nothing is run.
"""

import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from structloss.gpu.cases import REFERENCES
from structloss.kernels.triton.launching import Launch, options, recording
from structloss.losses import EditDistance
from structloss.structures import CTC, Chain, Lattice
from structloss.structures.chain import triton_ctc, triton_engine
from structloss.structures.graph import triton_engine as triton_graph

TARGETS: dict[str, tuple[str, int | str, int]] = {
    "sm_75": ("cuda", 75, 32), "sm_80": ("cuda", 80, 32), "sm_90": ("cuda", 90, 32), "gfx942": ("hip", "gfx942", 64)
}  # fmt: skip
REGISTERS = 255  # of a thread, at most: what there is on NVIDIA's
SHARED = 48 * 1024  # bytes of a program, at most: what every GPU gives without asking
LABELS = 50


class Row(NamedTuple):
    """What a kernel of one specialisation takes on one target."""

    kernel: str
    variant: str
    target: str
    registers: int
    spilled: int  # bytes a thread
    scalars: int  # that a gfx942 keeps in lanes of vector registers, for want of scalar ones
    shared: int  # bytes a program
    barriers: int
    atomics: int
    uncoherent: int  # loads through the cache that does not see what the program itself has written

    @property
    def passed(self) -> bool:
        """Whether it is within its budgets, and reads what it wrote behind a barrier."""
        small = self.registers <= REGISTERS and self.shared <= SHARED and self.spilled == 0
        return small and self.atomics == 0 and self.uncoherent == 0


def launches() -> list[tuple[str, Launch]]:
    """The launches that training and decoding make, each once, with what they are of.

    In float32 every kind of structure; in float64 those that take most registers.
    """
    found: dict[tuple[Any, ...], tuple[str, Launch]] = {}
    lengths, loss, strings = torch.tensor([9, 5]), EditDistance(cap=2), REFERENCES[:2]

    def scores(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.zeros(2, 9, *shape, dtype=dtype, requires_grad=True)

    def crf(dtype: torch.dtype) -> Chain:
        transitions = torch.zeros(LABELS, LABELS, dtype=dtype, requires_grad=True)
        return Chain.from_emissions(scores(LABELS, dtype=dtype), transitions, lengths=lengths)

    def note(name: str, listed: list[Launch]) -> None:
        for x in listed:
            found.setdefault((x.kernel, x.types, *sorted(map(str, x.constants.items()))), (name, x))
        listed.clear()

    with recording() as listed:
        for name, s in {
            "order 2, shared": crf(torch.float32),
            "order 2, shared, machine": crf(torch.float32).augment(loss, strings),
            "order 3": Chain(scores(5, 5, 5), lengths),
            "order 1, machine": Chain(scores(LABELS), lengths).augment(loss, strings),
        }.items():
            triton_engine.log_partition(s._parts).sum().backward()
            note(name, listed)
        triton_engine.marginals(crf(torch.float32).detach()._parts)
        note("marginals", listed)
        for dtype in (torch.float32, torch.float64):
            augmented = crf(dtype).augment(loss, strings)._parts
            triton_engine.expectation(augmented, augmented).sum().backward()
            note(f"order 2, shared, machine, expectation, {dtype}", listed)
        triton_engine.best(augmented, 1)
        note("order 2, shared, machine, best", listed)
        ctc = CTC(scores(LABELS), lengths)
        references, x = ctc._references(strings), ctc._parts.any_potential
        machines = [loss.open(x, LABELS, absolute=True) for x in references]
        triton_ctc.likelihood(x, lengths, references, 0).sum().backward()
        triton_ctc.log_partition(x, lengths, machines, 1.0, 0).sum().backward()
        note("CTC", listed)
        arcs = [[(0, 1, 1), (0, 1, 2), (1, 2, 1)]] * 2
        lattice = Lattice(arcs, torch.zeros(6, requires_grad=True), num_labels=LABELS).augment(loss, strings)._parts
        triton_graph.log_partition(lattice).sum().backward()
        triton_graph.expectation(lattice, lattice).sum().backward()
        triton_graph.best(lattice, 1)
        note("lattice, machine", listed)
    return list(found.values())


def compiled() -> Iterator[Row]:
    """One row for each kernel, specialisation and target."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    for variant, x in launches():
        names = x.kernel.arg_names
        signature = dict(zip(names, x.types, strict=False)) | dict.fromkeys(names[len(x.types) :], "constexpr")
        for target, (backend, arch, warp) in TARGETS.items():
            source = ASTSource(x.kernel, signature, constexprs=dict(x.constants))
            made = triton.compile(source, target=GPUTarget(backend, arch, warp), options=options(backend))
            name = f"{Path(x.kernel.fn.__code__.co_filename).stem}.{x.kernel.fn.__name__}"
            yield (_nvidia if backend == "cuda" else _amd)(name, variant, target, made)


def _nvidia(name: str, variant: str, target: str, made: Any) -> Row:
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(made.asm["cubin"])
        said = subprocess.run([tool, "-res-usage", path], capture_output=True, text=True, check=True).stdout
    used = {key: int(n) for key, n in re.findall(r"(REG|STACK|LOCAL|SHARED):(\d+)", said)}
    ptx = made.asm["ptx"]
    return Row(
        name, variant, target, used["REG"], used["STACK"] + used["LOCAL"], 0,
        max(made.metadata.shared, used["SHARED"]), ptx.count("bar.sync"),
        len(re.findall(r"\b(?:atom|red)\.", ptx)), ptx.count("ld.global.nc"),
    )  # fmt: skip


def _amd(name: str, variant: str, target: str, made: Any) -> Row:
    code = made.asm["amdgcn"]
    used = {key: int(n) for key, n in re.findall(r"\.(\w+):\s+(\d+)", code)}
    return Row(
        name, variant, target, used["vgpr_count"], used["private_segment_fixed_size"] + 4 * used["vgpr_spill_count"],
        used["sgpr_spill_count"], made.metadata.shared, code.count("s_barrier"), code.count("_atomic_"), 0,
    )  # fmt: skip
