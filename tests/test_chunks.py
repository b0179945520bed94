"""Losses of chunks and constraints on IOB labels: against an independent count, and against seqeval."""

import itertools
import re
import warnings

import numpy as np
import pytest
import torch
from seqeval.metrics import f1_score
from seqeval.metrics.sequence_labeling import get_entities

import structloss as sl
from structloss.automata import LossAutomaton
from structloss.losses.schemes import chunks
from structloss.naming import loss_of, objective_of
from structloss.structures.chain import native_engine

SCHEMES = {
    "IOB1": ["O", "I-A", "B-A", "I-B", "B-B"],
    "IOB2": ["O", "B-A", "I-A", "B-B", "I-B"],
    "IOBES": ["O", "B-A", "I-A", "E-A", "S-A", "B-B", "I-B", "E-B", "S-B"],
    "BILOU": ["O", "B-A", "I-A", "L-A", "U-A", "B-B", "I-B", "L-B", "U-B"],
}
CHUNK = re.compile("s|[bi]i*e?|e|S|[BI]I*E?|E")


def spans(labels: list[str]) -> set[tuple[str, int, int]]:
    """The chunks, by a regular expression over letters: lower case for type A, upper case for type B."""
    letters = [x[0].lower() if x.endswith("A") else x[0].upper() if x != "O" else "." for x in labels]
    text = "".join(letters).translate(str.maketrans("luLU", "esES"))
    return {("A" if m[0].islower() else "B", m.start(), m.end()) for m in CHUNK.finditer(text)}


def all_weights(machine: LossAutomaton, strings: np.ndarray) -> np.ndarray:
    """What the machine gives each of the strings (n, length)."""
    place, total = np.zeros(len(strings), np.int64), np.zeros(len(strings))
    for t in range(machine.length):
        state, symbol_class = machine.offsets[t] + place, machine.class_of[strings[:, t]]
        total += 0.0 if machine.is_absolute else machine.weights[state, symbol_class]
        place = machine.next_state[state, symbol_class]
    return total + machine.final[machine.offsets[-2] + place]


@pytest.mark.parametrize("scheme", ["IOB1", "IOB2", "IOBES"])
@pytest.mark.parametrize("length", range(6))
def test_machines_count_as_a_regular_expression_does_on_every_string_over_two_types(scheme: str, length: int) -> None:
    names, generator = SCHEMES[scheme], np.random.default_rng(length)
    K, errors, f1 = len(names), sl.ChunkErrors(names, miss=1.75, false_alarm=0.5), sl.ChunkF1(names)
    strings = np.array(list(itertools.product(range(K), repeat=length)), np.int64).reshape(K**length, length)
    found = [spans([names[k] for k in y]) for y in strings.tolist()]
    made = np.array([len(own) for own in found])
    for _ in range(4):
        reference = generator.integers(0, K, length)
        wanted = spans([names[k] for k in reference])
        right = np.array([len(own & wanted) for own in found])
        cost = 1.75 * (len(wanted) - right) + 0.5 * (made - right)
        for absolute in (False, True):
            assert np.allclose(all_weights(errors.machine(reference, K, length, absolute), strings), cost, atol=1e-12)
        apart = errors.neighbours([reference], [length], K)
        assert apart is not None
        parts = all_weights(apart.rest.machine(reference, K, length, False), strings)
        if length:
            parts += apart.start[strings[:, 0]] + apart.pairs[strings[:, :-1], strings[:, 1:]].sum(1)
        assert np.allclose(parts, cost, atol=1e-12)
        share = np.where(made + len(wanted) > 0, 1 - 2 * right / np.maximum(1, made + len(wanted)), 0)
        assert np.allclose(all_weights(f1.machine(reference, K, length, False), strings), share, atol=1e-12)


def test_seqeval_agrees_on_ten_thousand_pairs() -> None:
    generator = np.random.default_rng(0)
    for number in range(10_000):
        names = SCHEMES[("IOB1", "IOB2", "IOBES")[number % 3]]
        length = int(generator.integers(1, 12))
        y, r = generator.integers(0, len(names), (2, length))
        if number % 2:
            y = np.where(generator.random(length) < 0.7, r, y)
        texts = [[names[k] for k in x] for x in (y, r)]
        ours, theirs = ({(kind, begin, end + 1) for kind, begin, end in get_entities(x)} for x in texts)
        assert (ours, theirs) == tuple(chunks(x) for x in texts)
        cost = 2.0 * len(theirs - ours) + 0.25 * len(ours - theirs)
        errors = sl.ChunkErrors(names, miss=2.0, false_alarm=0.25)
        assert errors.distance(y, r) == cost
        assert errors.automaton(r, len(names), length).weight(y) == pytest.approx(cost, abs=1e-12)
        if number % 10 == 0 and (ours or theirs):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                share = 1 - f1_score([texts[1]], [texts[0]])
            assert sl.ChunkF1(names).distance(y, r) == pytest.approx(share, abs=1e-12)


def test_bilou_is_iobes_by_other_names() -> None:
    generator = np.random.default_rng(1)
    for _ in range(200):
        y = generator.integers(0, 9, 8)
        iobes, bilou = ([SCHEMES[scheme][k] for k in y] for scheme in ("IOBES", "BILOU"))
        assert chunks(bilou) == chunks(iobes) == spans(bilou)
    assert torch.equal(sl.iob_transitions(SCHEMES["BILOU"])[0], sl.iob_transitions(SCHEMES["IOBES"])[0])


def test_what_is_unknown_is_read_as_o_in_both() -> None:
    loss = sl.ChunkErrors(SCHEMES["IOB2"])
    reference = torch.tensor([[1, -100, 0, 3, 4]])  # A at 0 that may go on, B at 3 and 4
    for y, cost in (([1, 2, 0, 3, 4], 0.0), ([1, 0, 0, 3, 4], 0.0), ([0, 3, 0, 3, 4], 1.0), ([3, 4, 0, 3, 0], 4.0)):
        assert loss(torch.tensor([y]), reference).item() == cost
    assert loss([[1, 3, 3]], [[1]]).item() == 0.0  # beyond its end nothing is known
    assert loss([[1]], [[1, 2]]).item() == 2.0  # a shorter answer ends its chunk where it ends
    chain = sl.Chain.from_emissions(torch.randn(1, 5, 5), torch.randn(5, 5))
    best = chain.augment(loss, reference, -100.0).argmax()
    assert loss(best, reference).item() == 0.0


def test_a_chain_of_order_two_has_at_most_three_states_a_position() -> None:
    names, generator = SCHEMES["IOB2"] + [f"{p}-{i}" for i in range(9) for p in "BI"], np.random.default_rng(0)
    loss = sl.ChunkErrors(names)
    chain = sl.Chain.from_emissions(torch.zeros(1, 40, len(names)), torch.zeros(len(names), len(names)))
    for _ in range(20):
        sizes = chain.augment(loss, generator.integers(0, len(names), (1, 40)))._parts.machines.sizes
        assert sizes.max() <= 3
    assert chain.augment(loss, np.zeros((1, 40), np.int64))._parts.machines.sizes.max() == 1
    assert loss.automaton(np.zeros(40, np.int64), len(names), 40).sizes.max() == 12  # 11 types, and none


def test_chunk_losses_are_found_by_name_where_labels_have_names() -> None:
    names = SCHEMES["IOB2"]
    assert repr(loss_of("chunk-errors:miss=2", names)) == "ChunkErrors(5 labels, miss=2.0, false_alarm=1.0)"
    assert "ChunkF1(5 labels)" in repr(objective_of("risk", "chunk-f1", names))
    with pytest.raises(ValueError, match="loss 'chunk-f1': it wants the names of labels"):
        loss_of("chunk-f1")


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="labels: got 'NOUN', but wanted O, or one of B, I, E, S, L, U with a type"):
        sl.ChunkErrors(["O", "NOUN"])
    with pytest.raises(ValueError, match="labels: got 'O' twice"):
        sl.ChunkF1(["O", "B-A", "O"])
    with pytest.raises(TypeError, match="labels: got 'B-A', but wanted the names"):
        sl.ChunkErrors("B-A")
    with pytest.raises(ValueError, match="labels: got no names"):
        sl.ChunkErrors([])
    with pytest.raises(ValueError, match="miss: got -1"):
        sl.ChunkErrors(["O"], miss=-1)
    with pytest.raises(ValueError, match="labels: got 3 names, but there are labels up to 4"):
        sl.SoftmaxMargin(sl.ChunkErrors(["O", "B-A", "I-A"]))(sl.Chain(torch.zeros(1, 2, 5)), [[0, 0]])
    sets = torch.tensor([[[True, True, False]]])
    with pytest.raises(TypeError, match="reference: got sets of labels"):
        sl.Chain(torch.zeros(1, 1, 3, 3)).augment(sl.ChunkErrors(["O", "B-A", "I-A"]), sets)
    with pytest.raises(ValueError, match="labels: got A, B, but wanted O among them"):
        sl.Hamming.weighted(["A", "B"])
    with pytest.raises(ValueError, match="scheme: got 'BIO', but wanted one of IOB1"):
        sl.iob_transitions(["O"], scheme="BIO")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="allowed: got a layer of order 3, but wanted order 2"):
        sl.ChainLayer(3, order=3, allowed=torch.ones(3, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"allowed: got torch.float32 of shape \(3, 3\)"):
        sl.ChainLayer(3, allowed=torch.ones(3, 3))


def test_hamming_with_weights() -> None:
    loss = sl.Hamming.weighted(["B-A", "O", "I-A"], miss=3, false_alarm=0.5)
    assert loss.costs is not None
    assert loss.costs.tolist() == [[0, 3, 3], [0.5, 0, 0.5], [3, 3, 0]]


# --- Constraints ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_is_allowed_is_what_chunks_are_written_as(scheme: str) -> None:
    """Every sequence of four labels is allowed, if and only if it is how the scheme writes its own chunks."""
    names = SCHEMES[scheme]
    transitions, start, end = sl.iob_transitions(names, scheme)  # type: ignore[arg-type]
    for y in itertools.product(range(len(names)), repeat=4):
        allowed = start[y[0]] and end[y[-1]] and all(transitions[i, j] for i, j in itertools.pairwise(y))
        assert bool(allowed) == (written(spans([names[k] for k in y]), 4, scheme) == [names[k] for k in y]), y


def written(found: set[tuple[str, int, int]], length: int, scheme: str) -> list[str]:
    """The labels of chunks, by the definition of the scheme."""
    labels = ["O"] * length
    for kind, begin, end in found:
        inner = {"IOBES": "BIES", "BILOU": "BILU"}.get(scheme)
        for t in range(begin, end):
            if inner is None:
                touching = any(k == kind and e == begin for k, _, e in found)
                first = "B" if scheme == "IOB2" or touching else "I"
                prefix = first if t == begin else "I"
            elif end - begin == 1:
                prefix = inner[3]
            else:
                prefix = inner[0] if t == begin else inner[2] if t == end - 1 else inner[1]
            labels[t] = f"{prefix}-{kind}"
    return labels


def test_the_scheme_is_told_from_the_labels() -> None:
    assert not sl.iob_transitions(SCHEMES["IOB2"]).start[2]  # I-A
    mixed = sl.iob_transitions(["O", "I-PER", "I-LOC", "B-LOC"])  # as CoNLL-2003 has them: IOB1
    assert mixed.start.tolist() == [True, True, True, False]
    assert not sl.iob_transitions(SCHEMES["IOBES"]).end[1]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_ten_thousand_answers_without_a_forbidden_transition(scheme: str, engine: str) -> None:
    names = SCHEMES[scheme]
    K, allowed = len(names), sl.iob_transitions(names, scheme)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(0)
    layer = sl.ChainLayer(K, allowed=allowed)
    lengths = torch.randint(1, 9, (250,), generator=generator)
    chain = layer(3 * torch.randn(250, 8, K, generator=generator), lengths)
    with torch.no_grad():
        answers = torch.cat([chain.argmax()[None], chain.topk(3)[1], chain.sample(6, generator=generator)])
    assert answers.shape[0] * answers.shape[1] == 2500  # of each of four schemes
    for row, length in zip(answers.flatten(0, 1).tolist(), lengths.repeat(10).tolist(), strict=True):
        if row[0] >= 0:  # topk may have found fewer
            assert allowed.start[row[0]]
            assert allowed.end[row[length - 1]]
            assert all(allowed.transitions[i, j] for i, j in itertools.pairwise(row[:length]))


@pytest.mark.parametrize("scheme", ["IOB2", "IOBES"])
@pytest.mark.parametrize("objective", ["nll", "softmax-margin", "risk", "hinge"])
def test_values_and_gradients_under_constraints(scheme: str, objective: str, engine: str) -> None:
    """As those of a chain whose tables have -inf by hand; nothing is NaN, nor what is forbidden in the gradient."""
    names = SCHEMES[scheme]
    K, allowed = len(names), sl.iob_transitions(names)
    generator = torch.Generator().manual_seed(1)
    layer = sl.ChainLayer(K, allowed=allowed).double()
    emissions = torch.randn(40, 6, K, generator=generator, dtype=torch.float64, requires_grad=True)
    lengths = torch.randint(0, 7, (40,), generator=generator)
    reference = layer(torch.randn(40, 6, K, generator=generator, dtype=torch.float64), lengths).argmax()
    called = objective_of(objective, "chunk-errors", names)
    value = called(layer(emissions, lengths), reference)
    value.backward()
    found = [emissions.grad, layer.transitions.grad, layer.start.grad, layer.end.grad]
    assert all(x is not None and x.isfinite().all() for x in found)
    assert (layer.transitions.grad[~allowed.transitions] == 0).all()
    leaves = [x.detach().clone().requires_grad_() for x in (emissions, layer.transitions, layer.start, layer.end)]
    masks = (None, *allowed)
    parts = [x if m is None else torch.where(m, x, -torch.inf) for x, m in zip(leaves, masks, strict=True)]
    potentials = parts[0][:, :, None, :].expand(-1, -1, K, -1) + parts[1]
    first = torch.zeros(40, 6, K, K, dtype=torch.bool)
    first[:, 0] = True
    potentials = torch.where(first, parts[0][:, :, None, :] + parts[2], potentials)
    last = (torch.arange(6) == lengths[:, None] - 1)[:, :, None, None]
    potentials = torch.where(last, potentials + parts[3], potentials)
    again = called(sl.Chain(potentials, lengths), reference)
    again.backward()
    assert torch.allclose(value, again, 1e-10, 1e-10)
    for mine, leaf in zip(found, leaves, strict=True):
        assert torch.allclose(mine, leaf.grad.nan_to_num(0.0), 1e-9, 1e-9)


def test_a_constrained_layer_is_saved_as_ever_and_survives_weight_decay() -> None:
    names = SCHEMES["IOB2"]
    plain, layer = sl.ChainLayer(5), sl.ChainLayer(5, allowed=sl.iob_transitions(names))
    assert plain.state_dict().keys() == layer.state_dict().keys()
    layer.load_state_dict(plain.state_dict())
    optimizer = torch.optim.SGD(layer.parameters(), 0.1, weight_decay=0.1)
    emissions, reference = torch.randn(8, 6, 5), torch.tensor([[0, 1, 2, 2, 0, 3]]).expand(8, 6)
    for _ in range(5):
        optimizer.zero_grad()
        sl.NegativeLogLikelihood()(layer(emissions), reference).backward()
        optimizer.step()
    assert all(p.isfinite().all() for p in layer.parameters())
    with pytest.raises(sl.objectives.ImpossibleError, match="no output of example 0 agrees with its reference"):
        sl.NegativeLogLikelihood()(layer(emissions[:1]), torch.tensor([[0, 2, 2, 0, 0, 0]]))


def test_constrained_chains_go_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forbidden labels and transitions are exact zeros: no example is left to the kernel that takes them one by one."""

    def never(*_: object) -> None:
        raise AssertionError("an example was left over")

    for scheme in ("IOB2", "IOBES"):
        layer = sl.ChainLayer(len(SCHEMES[scheme]), allowed=sl.iob_transitions(SCHEMES[scheme]))
        emissions = torch.randn(64, 20, layer.num_labels, requires_grad=True)
        lengths = torch.randint(0, 21, (64,))
        with sl.engine("torch"):
            wanted = layer(emissions, lengths).log_partition()
        monkeypatch.setattr(native_engine, "_run", never)
        found = layer(emissions, lengths).log_partition()
        monkeypatch.undo()
        assert torch.allclose(found, wanted, 1e-5, 1e-5)


@pytest.mark.parametrize("beta", [1.0, 2.0, 0.5])
def test_at_the_fixed_point_the_highest_f_score_has_the_lowest_loss(beta: float) -> None:
    """Parambath et al. 2014: among answers to a corpus, the one of highest F is best under the weights of its own F."""
    generator = np.random.default_rng(3)
    answers = []  # of a corpus of 30 chunks: how many are right, and made
    for _ in range(200):
        right = int(generator.integers(1, 30))
        answers.append((right, right + int(generator.integers(0, 30))))
    scores = [(1 + beta**2) * right / (beta**2 * 30 + made) for right, made in answers]
    best = int(np.argmax(scores))
    right, made = answers[best]
    loss = sl.CorpusFBeta(["O", "B-X"], beta).following({"precision": right / made, "recall": right / 30})
    assert loss.reached == pytest.approx(scores[best])
    costs = [loss.miss * (30 - right) + loss.false_alarm * (made - right) for right, made in answers]
    assert costs[best] == pytest.approx(min(costs))


def test_weights_stay_where_nothing_was_measured_and_numbers_are_checked() -> None:
    loss = sl.CorpusF1(["O", "B-X"], reached=0.25)
    assert loss.following({"f1": 1.0}) is loss
    assert loss.following({"precision": 0.0, "recall": 0.0}).weights == {"miss": 2.0, "false_alarm": 0.0}
    with pytest.raises(ValueError, match="beta: got 0, but wanted a finite number above 0"):
        sl.CorpusFBeta(["O", "B-X"], beta=0)
    with pytest.raises(ValueError, match=r"reached: got 1\.5, but wanted a number from 0 to 1"):
        sl.CorpusF1(["O", "B-X"], reached=1.5)


def test_a_sum_follows_as_its_terms_do_and_keeps_the_small_machine() -> None:
    labels = ["O", "B-X", "I-X", "B-Y", "I-Y"]
    loss = 2 * sl.CorpusF1(labels) + sl.EditDistance(cap=2)
    objective = sl.Hinge(loss)
    assert objective.follow({"precision": 0.5, "recall": 0.5}) == {"miss": 1.5, "false_alarm": 0.5}
    assert repr(objective.loss).startswith("2 * CorpusFBeta(5 labels, beta=1.0, reached=0.5)")
    plain = sl.EditDistance() + sl.NGram(2)
    assert plain.following({"precision": 0.5, "recall": 0.5}) is plain
    references = [np.array([1, 2, 0, 3])]
    twice, one = (loss.neighbours(references, [4], 5) for loss in (2 * sl.ChunkErrors(labels), sl.ChunkErrors(labels)))
    np.testing.assert_array_equal(twice.pairs, 2 * one.pairs)
    sizes = [x.rest.automaton(references[0], 5, 4).num_states for x in (twice, one)]
    assert sizes[0] == sizes[1]
