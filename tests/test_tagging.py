"""Tagged text in columns: reading, features, chunk F1."""

import gzip
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from structloss.tasks import TASKS
from structloss.tasks.tagging import conll
from structloss.tasks.tagging.chunks import chunk_score, chunks
from structloss.tasks.tagging.features import window
from structloss.training.task import DataError

TEXT = "He PRP B-NP\nruns VBZ B-VP\n\nDogs NNS B-NP\n"
CONLLU = (
    "# sent_id = 1\n# text = vamonos\n1-2\tvamonos\t_\t_\t_\t_\t_\t_\t_\t_\n"
    "1\tvamos\tir\tVERB\t_\t_\t0\troot\t_\t_\n2\tnos\tnos\tPRON\t_\t_\t1\tobj\t_\t_\n\n"
)


def test_columns(tmp_path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(TEXT)
    sentences = conll.read(path)
    assert [s.column(0) for s in sentences] == [["He", "runs"], ["Dogs"]]
    lines = [line for s in sentences for line in conll.written(s, {2: ["X"] * len(s.tokens)})]
    assert "\n".join(lines).split() == TEXT.replace("B-NP", "X").replace("B-VP", "X").split()
    with gzip.open(tmp_path / "a.txt.gz", "wt") as file:
        file.write(TEXT)
    assert conll.read(tmp_path / "a.txt.gz")[0].tokens == sentences[0].tokens


def test_conllu_keeps_what_is_no_token(tmp_path) -> None:
    path = tmp_path / "a.conllu"
    path.write_text(CONLLU)
    (sentence,) = conll.read(path)
    assert sentence.column(3) == ["VERB", "PRON"]
    lines = conll.written(sentence, {3: ["A", "B"]})
    assert "\n".join(lines) + "\n" == CONLLU.replace("VERB", "A").replace("PRON", "B")


def read(folder: Path, content: str | bytes, name: str = "a.txt") -> list[conll.Sentence]:
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return conll.read(folder / name)


def written(sentences: list[conll.Sentence], column: int, label: str | None = None) -> str:
    """The text with other labels, or with those that it has."""
    lines = []
    for s in sentences:
        lines += conll.written(s, {column: s.column(column) if label is None else [label] * len(s.tokens)})
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("# # B-NP\n5 CD I-NP\n\n# # B-NP\n", [["#", "5"], ["#"]]),  # the pound sign of the Penn Treebank
        ("#\nfive\n\n# a comment\n#\n", [["#", "five"], ["#"]]),  # one column
        ("# a comment\n#hash O\nb O\n", [["#hash", "b"]]),
        ("# id 3f2 domain=en\nb _ _ O\n\n# sent = 2\n# # _ O\n", [["b"], ["#"]]),
        ("#\t#\tB\nb\tC\tI\n\n# no token\n# b\t=\tI\n", [["#", "b"], ["# b"]]),
        ("-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\n", [["-DOCSTART-"], ["EU"]]),
        ("1\u00a0000 CD B\na\u2028b\u0085\u3000 NN I\n", [["1\u00a0000", "a\u2028b\u0085\u3000"]]),
        (
            "e\u0301 X\n\u05e9\u05dc\u200d Y\n\u0915\u094d\u200d\u0937 Z\n",
            [["e\u0301", "\u05e9\u05dc\u200d", "\u0915\u094d\u200d\u0937"]],
        ),
        ("New York\tLOC\nis\tO\n", [["New York", "is"]]),
    ],
)
def test_every_token_is_read_and_written_back(text: str, tokens: list[list[str]], tmp_path: Path) -> None:
    for ends in ("\n", "\r\n", "\r"):
        sentences = read(tmp_path, text.replace("\n", ends))
        assert [s.column(0) for s in sentences] == tokens
        assert written(sentences, sentences[0].layout.width - 1) == text + "\n"


def test_each_line_keeps_its_own_separators(tmp_path: Path) -> None:
    sentences = read(tmp_path, "a DT O\n\nc\tNN\tO\n e  VB \tO \n\n\n")
    assert [s.tokens for s in sentences] == [(("a", "DT", "O"),), (("c", "NN", "O"), ("e", "VB", "O"))]
    assert written(sentences, 2, "L") == "a DT L\n\nc\tNN\tL\n e  VB \tL \n\n\n"
    assert written(sentences, 3, "L") == "a DT O L\n\nc\tNN\tO\tL\n e  VB \tO\tL \n\n\n"
    with pytest.raises(ValueError, match="labels: got 'new york', which cannot stand"):
        written(sentences, 2, "new york")


def test_ten_columns_that_are_not_conllu_are_all_tokens(tmp_path: Path) -> None:
    rows = [[word, *"bcdefghi", "O"] for word in ("well-known", "cat", "U.S.", "1")]
    text = "\n".join("\t".join(row) for row in rows) + "\n\n"
    (sentence,) = read(tmp_path, text)
    assert sentence.column(0) == ["well-known", "cat", "U.S.", "1"]
    assert written([sentence], 9) == text
    (example,) = TASKS["tagging"].read(tmp_path / "a.txt")
    assert example.y == ("O",) * 4


@pytest.mark.parametrize(
    ("ids", "line", "wanted"),
    [
        (["1", "3"], 2, "got the id '3', but CoNLL-U wants 2"),
        (["1", "cat"], 2, "got the id 'cat', but CoNLL-U wants 2"),
        (["1", "U.S."], 2, "got the id 'U.S.', but CoNLL-U wants 2"),
        (["1", "1-2"], 2, "got the id '1-2', but CoNLL-U wants 2"),
        (["1", "2-1"], 2, "got the id '2-1', but CoNLL-U wants 2"),
        (["1", "2.1"], 2, "got the id '2.1', but CoNLL-U wants 2"),
        (["1", "02"], 2, "got the id '02', but CoNLL-U wants 2"),
        (["1", "1" * 5000], 2, "got the id '1{40}', but CoNLL-U wants 2"),
        (["2"], 1, "got the id '2', but CoNLL-U wants 1"),
    ],
)
def test_ids_of_conllu_are_counted(ids: list[str], line: int, wanted: str, tmp_path: Path) -> None:
    text = "".join(f"{i}\tw\tw\tX\t_\t_\t0\t_\t_\t_\n" for i in ids)
    with pytest.raises(DataError, match=f"line {line}: {wanted} here"):
        read(tmp_path, text, "a.conllu")
    if ids[0] == "1":
        with pytest.raises(DataError, match=f"line {line}: {wanted} here"):
            read(tmp_path, text)


def test_conllu_with_everything(tmp_path: Path) -> None:
    text = (
        "#newdoc\n\n#\ttabs\n# text = d'à\n0.1\t_\t_\t_\t_\t_\t_\t_\t_\t_\n1-2\td'à\t_\t_\t_\t_\t_\t_\t_\t_\n"
        "1\td'\t_\tADP\t_\t_\t0\t_\t_\t_\n2\tà\t_\tADP\t_\t_\t0\t_\t_\tA=1\n2.1\tx y\t_\t_\t_\t_\t_\t_\t_\t_\n\n"
        "1\t#\t#\tSYM\t_\t_\t0\t_\t_\t_\n\n# the end\n\n"
    )
    sentences = read(tmp_path, text)
    assert [s.column(1) for s in sentences] == [["d'", "à"], ["#"]]
    assert [s.numbers for s in sentences] == [[7, 8], [11]]
    assert written(sentences, 3) == text
    lines = list(conll.written(sentences[0], {3: ["A", "B"]}, ["A:1", "B:1"]))
    assert lines[6:8] == ["1\td'\t_\tA\t_\t_\t0\t_\t_\tMarginals=A:1", "2\tà\t_\tB\t_\t_\t0\t_\t_\tA=1|Marginals=B:1"]


LETTERS = "aZ9#-._=:/\u00a0\u2028\u0085\u3000\u200d\u200f\u0301\u05e9\u0646\u0915\u094d\u0e01\U0001f469\x0b\x0c\x1c"
WORD = st.text(LETTERS, min_size=1, max_size=4) | st.sampled_from(["#", "##", "-DOCSTART-", "1-2", "1.1", "1"])
GAP = st.sampled_from([" ", "  ", "\t", " \t"])


@st.composite
def texts(draw: Any) -> tuple[str, list[list[tuple[str, ...]]], int]:
    """A text in columns, its tokens, and the column of the labels."""
    kind = draw(st.sampled_from(["spaces", "tabs", "conllu"]))
    width = 10 if kind == "conllu" else draw(st.integers(1 if kind == "spaces" else 2, 5))
    column = st.text(LETTERS + " ", max_size=3) if kind == "tabs" else WORD
    lines, sentences = [], []
    for _ in range(draw(st.integers(1, 3))):
        for _ in range(draw(st.integers(0, 2))):
            lines.append(draw(st.sampled_from(["# a comment of six more words", "# id = 3"])))
        rows: list[tuple[str, ...]] = []
        for number in range(1, draw(st.integers(1, 3)) + 1):
            row = [draw(column) for _ in range(width)]
            if kind == "conllu":
                if draw(st.booleans()):
                    lines.append("\t".join([f"{number}-{number + 1}", *row[1:]]))
                row[0] = str(number)
            first = not sentences and not rows
            if (kind == "spaces" and row[0] == "#") or first:  # what is a comment is not tried here
                row = [cell.replace("=", "e") for cell in row]
            if first and kind != "conllu":
                row[0] = "a" + row[0]  # shows the layout
            row[-1] = row[-1] if row[-1].strip(" ") else "O"
            gaps = [("\t" if kind != "spaces" else " " if first else draw(GAP)) for _ in row[1:]]
            line = row[0] + "".join(gap + cell for gap, cell in zip(gaps, row[1:], strict=True))
            around = st.sampled_from(["", " "] if kind == "spaces" and not first else [""])
            lines.append(draw(around) + line + draw(around))
            rows.append(tuple(row))
        sentences.append(rows)
        lines += [""] * draw(st.integers(1, 2))
    return "\n".join(lines) + "\n", sentences, 3 if kind == "conllu" else width - 1


@given(texts(), st.sampled_from(["\n", "\r\n", "\r"]), st.booleans(), st.booleans())
def test_what_is_read_is_written_back_alike(
    tmp_path_factory: pytest.TempPathFactory, made: Any, ends: str, mark: bool, zipped: bool
) -> None:
    text, tokens, column = made
    content = (b"\xef\xbb\xbf" if mark else b"") + text.replace("\n", ends).encode()
    folder = tmp_path_factory.mktemp("columns")
    sentences = read(folder, gzip.compress(content) if zipped else content, "a.gz" if zipped else "a.txt")
    assert [list(s.tokens) for s in sentences] == tokens
    assert written(sentences, column) == text
    other = written(sentences, column, "L")
    assert [s.column(column) for s in read(folder, other, "b.txt")] == [["L"] * len(s.tokens) for s in sentences]
    if column == 0:  # words alone: there is nothing to learn, which is refused
        return
    examples = TASKS["tagging"].read(folder / ("a.gz" if zipped else "a.txt"))
    lines = [line for example in examples for line in TASKS["tagging"].write(example, example.y)]
    assert "\n".join(lines) + "\n" == text


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "a.txt, line 1: got no token at all"),
        (b"\n\n", "a.txt, line 1: got no token at all"),
        (b"a b\nc\n", "a.txt, line 2: got 1 columns, but line 1 has 2"),
        (b"# a\nb\tc\nd e\n", "a.txt, line 3: got 1 columns, but line 2 has 2"),
        (b"a b\n# c d e\n", "a.txt, line 2: got 4 columns, but line 1 has 2"),
        (b"# only\n# comments\n", "a.txt, line 1: got only lines that may be comments"),
        (b"a b\n\xff c\n", "a.txt, line 2: is not UTF-8"),
        (b"a b\n" + b"x" * (2 << 20), "a.txt, line 2: is longer than"),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path, content: bytes, sentence: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    with pytest.raises(conll.DataError, match=sentence):
        conll.read(path)
    (tmp_path / "b.gz").write_bytes(b"no gzip")
    with pytest.raises(conll.DataError, match=r"b.gz, line 1: cannot be read"):
        conll.read(tmp_path / "b.gz")


def test_chunks_as_seqeval_counts_them() -> None:
    assert chunks(["B-A", "B-A", "I-A", "I-B", "O", "I-C"]) == {("A", 0, 1), ("A", 1, 3), ("B", 3, 4), ("C", 5, 6)}
    assert chunks([]) == set()
    score = chunk_score([["B-A", "I-A", "O"], ["B-B"]], [["B-A", "O", "O"], ["B-B"]])
    assert (score.precision, score.recall, score.f1) == (0.5, 0.5, 0.5)
    assert chunk_score([["O"]], [["O"]]).f1 == 0.0


def test_features_of_the_first_and_the_last_token() -> None:
    (only,) = window([["Word", "N"]])
    assert {"bos", "eos", "w0=Word", "0p0=N", "s=Aaa", "s3=ord"} <= set(only)
    assert window([]) == []


def test_files_without_labels_are_tagged_and_other_columns_are_an_error(tmp_path: Path) -> None:
    task = TASKS["tagging"]
    (tmp_path / "train.txt").write_text("the DT B\ndog NN I\n\na DT B\ncat NN I\n")
    examples = task.read(tmp_path / "train.txt")
    config = task.configure(examples, dict(task.settings))
    (tmp_path / "new.txt").write_text("a DT\ndog NN\n")
    (example,) = task.read(tmp_path / "new.txt", config)
    assert example.x == (("a", "DT"), ("dog", "NN"))
    assert list(task.write(example, ["B", "I"])) == ["a DT B", "dog NN I", ""]
    assert list(task.write(example, ["B", "I"], ["p", "q"])) == ["a DT B p", "dog NN I q", ""]
    with pytest.raises(DataError, match="line 1: got no labels to compare answers with"):
        task.evaluate([example], [["B", "I"]])
    (labelled, _) = task.read(tmp_path / "train.txt", config)
    assert labelled.y == ("B", "I")
    (tmp_path / "words.txt").write_text("a\ndog\n")
    with pytest.raises(
        DataError, match=r"words.txt, line 1: got 1 columns, but the model reads 2, and a label or none"
    ):
        task.read(tmp_path / "words.txt", config)
    with pytest.raises(DataError, match=r"words.txt, line 1: got 'a' alone, but wanted columns"):
        task.read(tmp_path / "words.txt")
