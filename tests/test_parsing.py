"""Parsing: CoNLL-U in and out, metrics, pictures, and parsers that train and come back."""

import gzip
import json
import random
import re
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from typer.testing import CliRunner

import structloss as sl
from structloss.cli import app
from structloss.naming import objective_of
from structloss.tasks import TASKS
from structloss.tasks.parsing.drawing import drawn
from structloss.tasks.parsing.network import Biaffine
from structloss.tasks.parsing.treebank import Arc, attachment
from structloss.training.directory import load
from structloss.training.task import DataError, nbest_answers, predict, written_marginals

PARSING = TASKS["parsing"]
TEXT = """\
# text = It's done <well>
1-2\tIt's\t_\t_\t_\t_\t_\t_\t_\t_
1\tIt\tit\tPRON\tPRP\tCase=Nom\t3\tnsubj:pass\t3:nsubj\t_
2\t's\tbe\tAUX\tVBZ\t_\t3\taux:pass\t_\tA=1
3\tdone\tdo\tVERB\tVBN\t_\t0\troot\t_\t_
3.1\tx\t_\t_\t_\t_\t_\t_\t_\t_
4\t<well>\twell\tADV\tRB\t_\t3\tadvmod\t_\t_

1\tYes\tyes\tINTJ\tUH\t_\t0\troot\t_\t_

"""
GOLD = [((3, "nsubj:pass"), (3, "aux:pass"), (0, "root"), (3, "advmod")), ((0, "root"),)]


pytestmark = pytest.mark.usefixtures("one_thread")


def sentence(draw: random.Random) -> str:
    """A determiner hangs on the noun after it; the subject stands before the verb, an object behind."""
    rows: list[tuple[str, str, int, str]] = []

    def phrase(verb: Callable[[], int], relation: str) -> None:
        if draw.random() < 0.6:
            rows.append((draw.choice(["the", "a"]), "DET", len(rows) + 2, "det"))
        rows.append((draw.choice(["cat", "dog", "bird"]), "NOUN", verb(), relation))

    phrase(lambda: len(rows) + 2, "nsubj")
    rows.append((draw.choice(["sees", "likes"]), "VERB", 0, "root"))
    verb = len(rows)
    if draw.random() < 0.7:
        phrase(lambda: verb, "obj")
    rows.append((".", "PUNCT", verb, "punct"))
    lines = [f"{i}\t{w}\t_\t{t}\t_\t_\t{h}\t{r}\t_\t_" for i, (w, t, h, r) in enumerate(rows, 1)]
    return "\n".join([*lines, "", ""])


@pytest.fixture
def files(tmp_path: Path) -> Path:
    draw = random.Random(3)
    for name, number in (("train", 60), ("dev", 15)):
        text = "".join(sentence(draw) for _ in range(number))
        (tmp_path / f"{name}.conllu.gz").write_bytes(gzip.compress(text.encode()))
    return tmp_path


def run(*arguments: object):
    return CliRunner().invoke(app, [str(x) for x in arguments])


def train(files: Path, *more: object):
    return run(
        "train", "parsing", "--train", files / "train.conllu.gz", "--dev", files / "dev.conllu.gz", "--out",
        files / "model", "--no-progress", "--set", "width=24", "--set", "layers=1", "--set", "dropout=0.1",
        "--lr", "0.02", "--batch-size", "10", *more,
    )  # fmt: skip


def test_reading_and_writing(tmp_path: Path) -> None:
    (tmp_path / "a.conllu").write_text(TEXT, encoding="utf-8")
    examples = PARSING.read(tmp_path / "a.conllu")
    assert [example.y for example in examples] == GOLD
    assert examples[0].x[1] == ("'s", "AUX")
    assert examples[1].where == f"{tmp_path / 'a.conllu'}, line 9"
    assert "\n".join(line for e in examples for line in PARSING.write(e, e.y)) + "\n" == TEXT
    other: list[Arc] = [(2, "x"), (0, "root"), (2, "y"), (1, "z")]
    lines = list(PARSING.write(examples[0], other, ["m"] * 4))
    for line, was, arc in zip(lines[2:5], TEXT.split("\n")[2:5], other[:3], strict=True):
        cells = was.split("\t")
        misc = "A=1|Marginals=m" if cells[9] != "_" else "Marginals=m"
        assert line.split("\t") == [*cells[:6], str(arc[0]), arc[1], cells[8], misc]
    assert [lines[i] for i in (0, 1, 5)] == [TEXT.split("\n")[i] for i in (0, 1, 5)]


@pytest.mark.parametrize(
    ("heads", "wanted"),
    [
        (("2", "x"), r"line 2, column 7 \(HEAD\): got 'x', but wanted 0 for the root, or a word from 1 to 2"),
        (("3", "0"), r"line 1, column 7 \(HEAD\): got '3', but wanted 0 for the root, or a word from 1 to 2"),
        (("-1", "0"), r"line 1, column 7 \(HEAD\): got '-1'"),
        (("\u0661", "0"), r"line 1, column 7 \(HEAD\): got '\u0661'"),
        (("9" * 5000, "0"), r"line 1, column 7 \(HEAD\): got '9{40}'"),
        (("2", "_"), r"line 2, column 7 \(HEAD\): got '_'"),
        (("_", "_"), r"line 1, column 7 \(HEAD\): got '_'"),
        (("0", "0"), r"line 2, column 7 \(HEAD\): word 2 is a second one on the root, but wanted one"),
        (("2", "1"), r"line 1, column 7 \(HEAD\): word 1 does not reach the root from its head 2"),
        (("0", "2"), r"line 2, column 7 \(HEAD\): word 2 does not reach the root from its head 2"),
    ],
)
def test_heads_that_are_no_tree(heads: tuple[str, ...], wanted: str, tmp_path: Path) -> None:
    text = "".join(f"{i}\tw\t_\tX\t_\t_\t{head}\tr\t_\t_\n" for i, head in enumerate(heads, 1))
    (tmp_path / "a.conllu").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=f"a.conllu, {wanted}"):
        PARSING.read(tmp_path / "a.conllu")


def test_other_bad_files(tmp_path: Path) -> None:
    (tmp_path / "a.conllu").write_text("1\tw\t_\tX\t_\t_\t0\t_\t_\t_\n")
    with pytest.raises(DataError, match=r"line 1, column 8 \(DEPREL\): got '_', but wanted a relation"):
        PARSING.read(tmp_path / "a.conllu")
    (tmp_path / "a.txt").write_text("a b\nc d\n")
    with pytest.raises(DataError, match=r"a.txt, line 1: got 2 columns, but wanted CoNLL-U"):
        PARSING.read(tmp_path / "a.txt")
    result = run("train", "parsing", "--train", tmp_path / "a.conllu", "--out", tmp_path / "m")
    assert (result.exit_code, "column 8 (DEPREL)" in result.output.replace("\n", " ")) == (2, True)


def test_las_and_uas_against_an_independent_count(tmp_path: Path) -> None:
    draw = random.Random(5)
    names = ["root", "nsubj", "nsubj:pass", "nsubj:outer", "punct", "obl", "obl:agent"]

    def tree(n: int) -> list[Arc]:
        return [(draw.randint(0, 3), draw.choice(names)) for _ in range(n)]

    sizes = [draw.randint(1, 9) for _ in range(50)]
    predicted, gold = [tree(n) for n in sizes], [tree(n) for n in sizes]
    pairs = list(zip(chain.from_iterable(predicted), chain.from_iterable(gold), strict=True))
    heads = [a[0] == b[0] for a, b in pairs]
    names_too = [right and a[1].split(":")[0] == b[1].split(":")[0] for right, (a, b) in zip(heads, pairs, strict=True)]
    assert attachment(predicted, gold) == pytest.approx((sum(names_too) / len(pairs), sum(heads) / len(pairs)))
    (tmp_path / "a.conllu").write_text(TEXT)
    examples = PARSING.read(tmp_path / "a.conllu")
    wrong = [((3, "nsubj"), (3, "cop"), (0, "root"), (1, "advmod")), ((0, "root"),)]
    assert PARSING.evaluate(examples, wrong) == {"las": 3 / 5, "uas": 4 / 5}


@pytest.mark.parametrize("projective", [0, 1])
def test_a_parser_from_the_command_line(files: Path, projective: int) -> None:
    result = train(files, "--epochs", 12, "--set", f"projective={projective}", "--test", files / "dev.conllu.gz")
    assert result.exit_code == 0, result.output
    scores = json.loads(run("evaluate", files / "model", files / "dev.conllu.gz", "--json").output)
    assert scores["las"] > 0.95
    assert scores["uas"] >= scores["las"]
    again = run("predict", files / "model", files / "dev.conllu.gz", "-o", files / "out.conllu")
    assert again.exit_code == 0, again.output
    gold = gzip.decompress((files / "dev.conllu.gz").read_bytes()).decode().splitlines()
    found = (files / "out.conllu").read_text().splitlines()
    rows = [(a.split("\t"), b.split("\t")) for a, b in zip(found, gold, strict=True) if a or b]
    assert all(a[:6] == b[:6] and a[8:] == b[8:] for a, b in rows)
    assert sum(a[6:8] == b[6:8] for a, b in rows) / len(rows) == pytest.approx(scores["las"])

    (files / "new.conllu").write_text("1\tthe\t_\tDET" + "\t_" * 6 + "\n2\towl\t_\tNOUN" + "\t_" * 6 + "\n")
    picture = files / "tree.svg"
    several = run("predict", files / "model", files / "new.conllu", "--nbest", 3, "--marginals", "--picture", picture)
    assert several.exit_code == 0, several.output
    probabilities = [float(x) for x in re.findall("# probability = (.*)", several.output)]
    assert probabilities == sorted(probabilities, reverse=True)
    assert len(probabilities) == 3
    first = several.output.splitlines()[1].split("\t")
    pairs = [pair.rsplit(":", 1) for pair in first[9].removeprefix("Marginals=").split(",")]
    assert sum(float(p) for _, p in pairs) == pytest.approx(1, abs=0.02)
    assert f"{first[6]}:{first[7]}" in [name for name, _ in pairs]
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")
    none = run("evaluate", files / "model", files / "new.conllu")
    assert (none.exit_code, "got no heads to compare" in none.output.replace("\n", " ")) == (2, True)


def test_answers_are_those_of_the_structure(files: Path) -> None:
    """n-best lists and marginals of a parser against all trees of three words."""
    assert train(files, "--epochs", 1).exit_code == 0
    _, model = load(files / "model", TASKS)
    (files / "a.conllu").write_text("".join(f"{i}\t{w}\t_\tX" + "\t_" * 6 + "\n" for i, w in enumerate("abc", 1)))
    (example,) = PARSING.read(files / "a.conllu", model.config)
    with torch.no_grad():
        scores = model.structure([model.encode(example)])._potentials[0][0].double()
    trees = []
    R = len(model.names)
    for code in range((4 * R) ** 3):
        arcs = [code // (4 * R) ** d % (4 * R) for d in range(3)]
        heads = [arc // R for arc in arcs]
        above = [0, *heads]
        if heads.count(0) == 1 and not any(above[above[above[d]]] for d in (1, 2, 3)):
            trees.append((sum(float(scores[d, a // R, a % R]) for d, a in enumerate(arcs)), arcs))
    weights = torch.tensor([score for score, _ in trees], dtype=torch.float64).softmax(0).tolist()
    ranked = sorted(zip(weights, (arcs for _, arcs in trees), strict=True), key=lambda x: -x[0])
    (answers,) = nbest_answers(model, [example], 3)
    for (p, answer, _), (q, arcs) in zip(answers, ranked, strict=False):
        assert p == pytest.approx(q, rel=1e-3)
        assert answer == tuple((arc // R, model.names[arc % R]) for arc in arcs)
    assert predict(model, [example]) == [answers[0].names]
    (row,) = written_marginals(model, [example])
    for d, cell in enumerate(row):
        for name, probability in (pair.rsplit(":", 1) for pair in cell.split(",")):
            head, _, relation = name.partition(":")
            arc = int(head) * R + model.names.index(relation)
            q = sum(weight for weight, arcs in ranked if arcs[d] == arc)
            assert float(probability) == pytest.approx(q, abs=1e-3)


@pytest.mark.parametrize("name", ["softmax-margin", "hinge", "perceptron", "direct", "risk", "reward"])
def test_every_objective_on_the_reported_loss(files: Path, name: str) -> None:
    examples = PARSING.read(files / "train.conllu.gz")[:20]
    model = PARSING.build(PARSING.configure(examples, {**PARSING.settings, "width": 8, "layers": 1}))
    structure = model.structure([model.encode(example) for example in examples])
    objective_of(name, "hamming")(structure, [model.reference(example) for example in examples]).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_the_loss_is_what_las_counts(files: Path) -> None:
    examples = PARSING.read(files / "train.conllu.gz")[:20]
    model = PARSING.build(PARSING.configure(examples, {**PARSING.settings, "width": 8, "layers": 1})).eval()
    structure = model.structure([model.encode(example) for example in examples])
    wrong = sl.Hamming()(structure.argmax(), [model.reference(example) for example in examples]).sum()
    metrics = PARSING.evaluate(examples, predict(model, examples))
    assert 1 - wrong / sum(len(e.x) for e in examples) == pytest.approx(metrics["las"])


def test_each_arc_by_itself_is_a_cross_entropy(files: Path) -> None:
    examples = PARSING.read(files / "train.conllu.gz")[:6]
    model = PARSING.build(PARSING.configure(examples, {**PARSING.settings, "width": 8, "tree": 0})).double().eval()
    for p in model.parameters():
        torch.nn.init.normal_(p)
    encoded, references = ([f(example) for example in examples] for f in (model.encode, model.reference))
    trained = sl.NegativeLogLikelihood("none")(model.structure_to_train(encoded), references)
    for value, x, reference in zip(trained, encoded, references, strict=True):
        scores = model.network([x])[0].clone()
        for d in range(len(x)):
            scores[d, d + 1] = -torch.inf  # no word hangs on itself
        log_probs = scores.flatten(1).log_softmax(1)
        assert torch.allclose(value, -log_probs[range(len(x)), reference].sum())
    with_tree = PARSING.build({**model.config, "tree": 1}).double().eval()
    with_tree.load_state_dict(model.state_dict())
    assert predict(model, examples) == predict(with_tree, examples)


def test_a_sentence_is_parsed_as_if_it_were_alone(files: Path) -> None:
    examples = PARSING.read(files / "train.conllu.gz")[:6]
    model = PARSING.build(PARSING.configure(examples, {**PARSING.settings, "width": 8})).double().eval()
    for p in model.parameters():
        torch.nn.init.normal_(p)
    together = model.structure([model.encode(example) for example in examples]).log_partition()
    alone = torch.cat([model.structure([model.encode(example)]).log_partition() for example in examples])
    assert torch.allclose(together, alone)


def test_a_biaffine_form_is_one() -> None:
    form = Biaffine(3, 2).double()
    torch.nn.init.normal_(form.weight)
    x, h = torch.randn(2, 4, 3).double(), torch.randn(2, 5, 3).double()
    u = form.weight.reshape(4, 2, 4)  # (of the head, label, of the word)
    x1, h1 = (torch.cat([side, torch.ones(*side.shape[:2], 1).double()], 2) for side in (x, h))
    assert torch.allclose(form(x, h), torch.einsum("bti,jri,bhj->bthr", x1, u, h1))


def test_tags_are_read_where_they_are_asked_for(files: Path) -> None:
    assert train(files, "--epochs", 2, "--set", "tags=1").exit_code == 0
    (files / "a.conllu").write_text("1\tcat\t_\tNOUN" + "\t_" * 6 + "\n2\t.\t_\t_" + "\t_" * 6 + "\n")
    result = run("predict", files / "model", files / "a.conllu")
    assert result.exit_code == 2
    assert "a.conllu, line 2, column 4 (UPOS): got '_', but the model reads tags" in result.output.replace("\n", " ")


def test_relations_that_training_lacks(files: Path) -> None:
    (files / "dev.conllu.gz").write_bytes(gzip.compress(b"1\tcat\t_\tX\t_\t_\t0\twhat\t_\t_\n"))
    result = train(files, "--epochs", 1)
    assert result.exit_code == 2
    assert "line 1: got the relation 'what', which the training data lack" in result.output.replace("\n", " ")
    result = train(files, "--epochs", 1, "--unknown-labels")
    assert result.exit_code == 0, result.output


def test_arcs_that_cross_are_no_projective_tree(files: Path) -> None:
    rows = zip("abcd", (3, 0, 2, 2), strict=True)
    text = "".join(f"{i}\t{w}\t_\tX\t_\t_\t{h}\tr\t_\t_\n" for i, (w, h) in enumerate(rows, 1))
    (files / "train.conllu.gz").write_bytes(gzip.compress(text.encode()))
    (files / "dev.conllu.gz").write_bytes(gzip.compress(text.encode()))
    assert train(files, "--epochs", 1).exit_code == 0
    result = train(files, "--epochs", 1, "--set", "projective=1", "--overwrite")
    assert result.exit_code == 2
    assert "train.conllu.gz, line 1:" in result.output.replace("\n", " ")
    result = train(files, "--epochs", 1, "--set", "projective=1", "--overwrite", "--objective", "nll:impossible=skip")
    assert result.exit_code == 0, result.output


def test_a_picture_of_a_tree() -> None:
    words = ["a<b", "\x01", "&c", "d"]
    root = ElementTree.fromstring(drawn(words, [(3, "nsubj"), (4, "x"), (0, "root"), (3, "obj")]))
    space = "{http://www.w3.org/2000/svg}"
    texts = [(t.get("class"), t.text) for t in root.iter(f"{space}text")]
    assert [text for kind, text in texts if kind == "word"] == ["a<b", "\ufffd", "&c", "d"]
    assert [text for kind, text in texts if kind == "name"] == ["nsubj", "x", "root", "obj"]
    assert sum(path.get("class") == "arc" for path in root.iter(f"{space}path")) == 4


def test_other_tasks_have_no_picture(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a B\n")
    (example,) = TASKS["tagging"].read(tmp_path / "a.txt")
    with pytest.raises(ValueError, match="--picture: tagging has no trees to draw, but parsing has"):
        TASKS["tagging"].draw(example, example.y)
