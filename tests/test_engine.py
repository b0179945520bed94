"""The native engine where programs put it: compiled graphs, forked workers, threads; and which engine is chosen."""

import ast
import concurrent.futures
import copy
import importlib
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
from numba.core.dispatcher import Dispatcher
from torch.utils.data import DataLoader, Dataset

import structloss as sl

K = 4
LAYER = sl.ChainLayer(K)


def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    emissions = torch.randn(6, 9, K, generator=generator, dtype=torch.float64)
    return emissions, torch.randint(0, K, (6, 9), generator=generator), torch.tensor([9, 0, 4, 1, 7, 9])


def step(objective: sl.Objective, seed: int) -> list[torch.Tensor]:
    emissions, labels, lengths = batch(seed)
    emissions.requires_grad_()
    value = objective(LAYER(emissions, lengths), labels)
    return [value.detach(), *torch.autograd.grad(value, [emissions, *LAYER.parameters()], allow_unused=True)]


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> None:
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)


STRUCTURES = {
    "chain": lambda e, lengths: LAYER(e, lengths),
    "mask with gaps": lambda e, lengths: LAYER(e, (torch.arange(9) * 2) % 9 < lengths[:, None]),
    "emitting": lambda e, lengths: sl.Chain(e, lengths, emits=[[], [0], [1], [2, 3]]),
    "CTC": lambda e, lengths: sl.CTC(e.log_softmax(2), lengths, blank=K - 1),
}
LOSSES = {
    "Hamming": sl.Hamming(),
    "EditDistance": sl.EditDistance(cap=2),
    "sum": 0.5 * sl.EditDistance(cap=2) + sl.NGram(2),
}


def objectives(loss: sl.Loss) -> list[sl.Objective]:
    with_loss = (sl.SoftmaxMargin, sl.Hinge, sl.SlackHinge, sl.DirectLoss, sl.Risk, sl.RewardAugmented)
    made = [sl.NegativeLogLikelihood(), sl.Perceptron(), *(kind(loss) for kind in with_loss)]
    return [*made, sl.Risk(loss) + 0.1 * sl.NegativeLogLikelihood()]


def differentiated(value: torch.Tensor, emissions: torch.Tensor) -> list[torch.Tensor]:
    found = torch.autograd.grad(value, [emissions, *LAYER.parameters()], allow_unused=True)
    return [value.detach(), *(x for x in found if x is not None and x.any())]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", STRUCTURES)
def test_a_whole_training_step_compiles_into_one_graph(name: str, loss: str) -> None:
    emissions, labels, lengths = batch(0)
    labels = labels.clamp(max=K - 2)
    if name in ("emitting", "CTC"):
        labels = torch.where(torch.arange(9) < lengths[:, None] // 2, labels, -1)
    emissions.requires_grad_()
    for objective in objectives(LOSSES[loss]):
        objective.reduction = "none"

        def step(e: torch.Tensor, objective: sl.Objective = objective) -> torch.Tensor:
            values = objective(STRUCTURES[name](e, lengths), labels)
            return torch.where(values.isfinite(), values, 0).sum()

        torch._dynamo.reset()
        value = torch.compile(step, fullgraph=True, backend="aot_eager")(emissions)
        same(differentiated(value, emissions), differentiated(step(emissions), emissions))


@pytest.mark.parametrize("name", STRUCTURES)
def test_operations_compile_into_one_graph(name: str) -> None:
    emissions, _, lengths = batch(0)

    def all_of_it(e: torch.Tensor) -> list[torch.Tensor]:
        s = STRUCTURES[name](e, lengths)
        return [s.log_partition(), s.max(), s.argmax(), *s.topk(3), s.marginals(), s.entropy()]

    torch._dynamo.reset()
    same(torch.compile(all_of_it, fullgraph=True, backend="aot_eager")(emissions), all_of_it(emissions))


def test_impossible_references_are_errors_in_a_compiled_graph_too() -> None:
    objective, frames = sl.NegativeLogLikelihood(), torch.zeros(2, 2, 3)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, r: objective(sl.CTC(x), r), fullgraph=True, backend="aot_eager")
    assert compiled(frames, torch.tensor([[1, -1, -1], [1, 2, -1]])).isfinite()
    with pytest.raises(ValueError, match="no output of example 1 agrees"):
        compiled(frames, torch.tensor([[1, -1, -1], [1, 1, 1]]))
    skips = sl.NegativeLogLikelihood(impossible="skip")
    found = torch.compile(lambda x, r: skips(sl.CTC(x), r), fullgraph=True, backend="aot_eager")(
        frames, torch.tensor([[1, -1, -1], [1, 1, 1]])
    )
    assert found == sl.NegativeLogLikelihood()(sl.CTC(frames[:1]), [[1]])


def test_a_schedule_counts_steps_and_not_passes_through_the_graph() -> None:
    objective = sl.DirectLoss(sl.Hamming(), epsilon=lambda t: 1 / t)
    emissions = torch.randn(2, 3, K, requires_grad=True)
    step = torch.compile(lambda e: objective(sl.Chain(e), torch.zeros(2, 3, dtype=torch.int64)), fullgraph=True)
    for _ in range(3):
        step(emissions).backward()
    assert int(objective.step) == 3
    both = objective + sl.NegativeLogLikelihood()
    step = torch.compile(lambda e: both(sl.Chain(e), torch.zeros(2, 3, dtype=torch.int64)), fullgraph=True)
    step(emissions).backward()
    assert int(objective.step) == 4


def test_custom_operations_pass_torchs_own_checks() -> None:
    emissions, labels, lengths = batch(0)
    transitions = torch.randn(K, K, dtype=torch.float64, requires_grad=True)
    chain = sl.Chain.from_emissions(emissions.requires_grad_(), transitions, lengths=lengths)
    tensors, rest = chain._flat()
    one = [chain._kind, len(tensors), len(rest), *rest]
    loss = sl.SoftmaxMargin(sl.EditDistance(cap=2))
    for name, arguments in {
        "log_partition": (tensors, one, 0),
        "expectation": (tensors * 2, one * 2, 0),
        "best": (tensors, one, 3),
        "objective": ([*tensors, labels], one, loss._number),
    }.items():
        torch.library.opcheck(torch.ops.structloss.call.default, (name, *arguments), raise_exception=True)


class Scored(Dataset):
    """Runs the native engine inside a data loader's worker."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> torch.Tensor:
        emissions, _, lengths = batch(i)
        return sl.Chain(emissions.repeat(50, 1, 1), lengths.repeat(50)).log_partition().sum()


def test_forked_data_loader_workers_survive() -> None:
    big = torch.randn(400, 50, K)
    sl.Chain.from_emissions(big, torch.zeros(K, K)).log_partition()  # the parent's threads have run
    loader = DataLoader(Scored(), batch_size=2, num_workers=2, multiprocessing_context="fork")
    found = torch.cat(list(loader))
    same([found], [torch.stack([Scored()[i] for i in range(8)])])


def test_several_threads_at_once() -> None:
    wanted = [step(sl.NegativeLogLikelihood(), seed) for seed in range(8)]
    big = torch.randn(64, 100, K)
    reference = sl.Chain.from_emissions(big, torch.zeros(K, K)).log_partition()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            same_step = list(pool.map(lambda seed: step(sl.NegativeLogLikelihood(), seed), range(8)))
            values = list(pool.map(lambda _: sl.Chain.from_emissions(big, torch.zeros(K, K)).log_partition(), range(8)))
            for a, b in zip(same_step, wanted, strict=True):
                same(a, b)
            for value in values:
                assert torch.equal(value, reference)


def test_engine_is_a_nested_context_and_is_local_to_a_thread() -> None:
    chain = sl.Chain(torch.zeros(1, 2, 2))
    assert chain._native
    with sl.engine("torch"):
        assert not chain._native
        with sl.engine("native"):
            assert chain._native
        assert not chain._native
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            assert pool.submit(lambda: chain._native).result()
    assert chain._native


def test_other_devices_take_the_torch_engine() -> None:
    chain = sl.Chain(torch.zeros(1, 2, 2, device="meta"))
    assert not chain._native
    with sl.engine("native"), pytest.raises(ValueError, match="meta"):
        _ = chain._native


def test_an_unknown_engine_is_a_clear_error() -> None:
    with pytest.raises(ValueError, match=r"'cuda'.*native.*torch"):
        sl.engine("cuda")


def test_half_precision_is_computed_in_float32() -> None:
    emissions = torch.randn(2, 5, 3, dtype=torch.bfloat16, requires_grad=True)
    value = sl.Chain(emissions).log_partition()
    assert value.dtype == torch.float32
    value.sum().backward()
    assert emissions.grad is not None
    assert emissions.grad.dtype == torch.bfloat16


def test_no_helper_of_a_kernel_is_called_from_python() -> None:
    """A helper is compiled without the wrapper that Python calls: such a call would end the process."""

    def is_helper(value: Any) -> bool:
        return isinstance(value, Dispatcher) and bool(value.targetoptions.get("no_cpython_wrapper"))

    found, kernels = [], 0
    for module in (importlib.import_module(m.name) for m in pkgutil.walk_packages(sl.__path__, "structloss.")):
        inside = module.__name__.startswith("structloss.kernels")
        kernels += sum(map(is_helper, vars(module).values())) if inside else 0
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            value = None
            if isinstance(node, ast.Name):
                value = vars(module).get(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                owner = vars(module).get(node.value.id)
                value = getattr(owner, node.attr, None) if isinstance(owner, ModuleType) else None
            if not inside and is_helper(value):
                found.append(f"{module.__name__}:{node.lineno}")
    assert kernels > 50
    assert not found


def test_import_takes_the_light_road() -> None:
    heavy = ("lightning", "sklearn", "matplotlib", "pandas", "soundfile", "pynini", "torch._dynamo", "sympy")
    code = f"import sys, structloss; print([m for m in {heavy!r} if m in sys.modules])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"


def test_copies_of_objectives_are_their_own_in_a_compiled_graph() -> None:
    def value(objective: sl.Objective) -> float:
        torch._dynamo.reset()
        step = torch.compile(lambda x: objective(sl.Chain(x), torch.tensor([[1]])), fullgraph=True, backend="aot_eager")
        return step(torch.zeros(1, 1, 2)).item()

    original = sl.SoftmaxMargin(sl.EditDistance())
    copied = copy.deepcopy(original)
    copied.scale = 5.0
    wanted = [sl.SoftmaxMargin(sl.EditDistance(), scale)(sl.Chain(torch.zeros(1, 1, 2)), [[1]]) for scale in (1.0, 5.0)]
    assert [value(original), value(copied)] == pytest.approx([x.item() for x in wanted])
    del original
    assert value(copied) == pytest.approx(wanted[1].item())


def steps() -> dict[str, Callable[[], list[torch.Tensor]]]:
    """A training step of each family, large enough for several threads: its value and gradients."""
    generator = torch.Generator().manual_seed(0)

    def leaf(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).requires_grad_()

    scores, transitions, frames = leaf(48, 60, 8), leaf(8, 8), leaf(24, 50, 6)
    arcs = [[[i, i + 1, k] for i in range(40) for k in range(3)] for _ in range(16)]
    weights, edges = leaf(16 * 120), leaf(16, 29, 4, 4)
    labels, strings = torch.randint(0, 8, (48, 60), generator=generator), [[1, 2, 3, 1], [2, 4]] * 12
    marks = torch.zeros(24, 50, dtype=torch.int64)

    def graph() -> sl.Structure:
        g = sl.FactorGraphBuilder()
        g.variables(scores[:16, :30, :4])
        g.factors(torch.tensor([(i, i + 1) for i in range(29)]), edges)
        return g.build()

    edit, chain = sl.EditDistance(cap=3), lambda: sl.Chain.from_emissions(scores, transitions)
    values = {
        "chain": lambda: sl.NegativeLogLikelihood()(chain(), labels),
        "chain, edit distance": lambda: sl.SoftmaxMargin(edit)(chain(), labels),
        "chain, risk": lambda: sl.Risk(sl.Hamming())(chain(), labels),
        "chain, risk of the edit distance": lambda: sl.Risk(edit)(chain(), labels),
        "CTC": lambda: sl.NegativeLogLikelihood()(sl.CTC(frames.log_softmax(2)), strings),
        "CTC, risk": lambda: sl.Risk(edit)(sl.CTC(frames.log_softmax(2)), strings),
        "lattice": lambda: sl.Risk(edit)(sl.Lattice(arcs, weights), [[0, 1, 2]] * 16),
        "semi-Markov": lambda: sl.Risk(sl.Hamming())(sl.SemiMarkov(frames, frames, max_duration=9), marks),
        "factor graph": lambda: sl.Risk(sl.Hamming())(graph(), labels[:16, :30] % 4),
    }
    leaves = [scores, transitions, frames, weights, edges]

    def run(value: Callable[[], torch.Tensor]) -> list[torch.Tensor]:
        found = value()
        gradients = torch.autograd.grad(found, leaves, allow_unused=True)
        return [found.detach(), *(g for g in gradients if g is not None)]

    return {name: partial(run, value) for name, value in values.items()}


@pytest.mark.parametrize("name", steps())
def test_a_step_gives_the_same_bits_again_and_in_any_number_of_threads(name: str) -> None:
    step, before = steps()[name], torch.get_num_threads()
    found = []
    try:
        for threads in (1, 1, 2, 3):
            torch.set_num_threads(threads)
            found.append(step())
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))
