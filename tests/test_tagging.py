"""Tagged text in columns: reading, features, chunk F1."""

import gzip
from pathlib import Path

import pytest

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
    lines = [line for s in sentences for line in conll.written(s, 2, ["X"] * len(s.tokens))]
    assert "\n".join(lines).split() == TEXT.replace("B-NP", "X").replace("B-VP", "X").split()
    with gzip.open(tmp_path / "a.txt.gz", "wt") as file:
        file.write(TEXT)
    assert conll.read(tmp_path / "a.txt.gz")[0].tokens == sentences[0].tokens


def test_conllu_keeps_what_is_no_token(tmp_path) -> None:
    path = tmp_path / "a.conllu"
    path.write_text(CONLLU)
    (sentence,) = conll.read(path)
    assert sentence.column(3) == ["VERB", "PRON"]
    assert "\n".join(conll.written(sentence, 3, ["A", "B"])) + "\n" == CONLLU.replace("VERB", "A").replace("PRON", "B")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "a.txt, line 1: got no token at all"),
        (b"\n\n", "a.txt, line 1: got no token at all"),
        (b"a b\nc\n", "a.txt, line 2: got 1 columns, but line 1 has 2"),
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
