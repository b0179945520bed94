"""Lines of text files: encodings, line ends, gzip, and what bounds them."""

import gzip
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from structloss.tasks.g2p import pronunciations
from structloss.tasks.tagging import conll
from structloss.text import DataError, columns, numbered_lines

LETTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0\r\n")
BOM = b"\xef\xbb\xbf"


@given(
    st.lists(st.text(LETTERS), min_size=1),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_lines_come_as_they_are_whatever_ends_them(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], end: str, mark: bool, zipped: bool, last: bool
) -> None:
    if lines[0].startswith("\ufeff"):
        mark = True  # else the first letter is the mark
    content = (BOM if mark else b"") + end.join(lines).encode() + (end.encode() if last else b"")
    path = tmp_path_factory.mktemp("lines") / ("a.gz" if zipped else "a")
    path.write_bytes(gzip.compress(content) if zipped else content)
    wanted = lines if last or lines[-1] else lines[:-1]
    assert list(numbered_lines(path)) == list(enumerate(wanted, 1)) or wanted == [""]


def test_mixed_line_ends(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a\rb\r\nc\n\r\rd")
    assert [line for _, line in numbered_lines(tmp_path / "a")] == ["a", "b", "c", "", "", "d"]


def test_columns_stand_between_spaces_and_tabs_only() -> None:
    spaces = [chr(i) for i in range(0x110000) if chr(i).isspace() and chr(i) not in " \t\r\n"]
    assert len(spaces) > 20
    assert all(columns(f" a{space}b \t{space}\t") == [f"a{space}b", space] for space in spaces)
    assert columns(" \t ") == []


def test_a_byte_order_mark_is_no_part_of_the_first_word(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_bytes(BOM + b"cat\tk a t\n")
    assert pronunciations.read(tmp_path / "a.tsv")[0].word == "cat"
    (tmp_path / "a.txt").write_bytes(BOM + b"The DT B\n")
    assert conll.read(tmp_path / "a.txt")[0].tokens == (("The", "DT", "B"),)
    (tmp_path / "a.conllu").write_bytes(BOM + b"# text = a\n1\ta\ta\tX\t_\t_\t0\troot\t_\t_\n")
    assert conll.read(tmp_path / "a.conllu")[0].column(3) == ["X"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_other_encodings_are_refused(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes("a b\n".encode(encoding))
    with pytest.raises(DataError, match=r"a, line 1: (is UTF-16|has a byte that is 0), but wanted (text in )?UTF-8"):
        list(numbered_lines(tmp_path / "a"))


def test_bytes_that_are_no_text_are_named_with_their_line(tmp_path: Path) -> None:
    for content in (b"a\rb \xff\r", b"a\nb \xed\xa0\x80\n", b"a\nb \xc3"):
        (tmp_path / "a").write_bytes(content)
        with pytest.raises(DataError, match=r"a, line 2: is not UTF-8 \(.* at byte 2\)"):
            list(numbered_lines(tmp_path / "a"))


def test_every_damaged_gzip_is_named(tmp_path: Path) -> None:
    content = gzip.compress(b"".join(b"word%d TAG%d\n" % (i, i % 7) for i in range(200)), mtime=0)
    path, whole = tmp_path / "a.gz", 0
    for i in range(len(content)):
        for damaged in (content[:i] + bytes([content[i] ^ 0x55]) + content[i + 1 :], content[:i]):
            path.write_bytes(damaged)
            try:
                whole += len(list(numbered_lines(path))) == 200
            except DataError as error:
                assert str(path) in str(error)  # noqa: PT017
    assert whole < 20  # what gzip does not look at: its flags, time and system


def test_a_broken_deflate_stream_and_a_wrong_checksum_are_sentences(tmp_path: Path) -> None:
    content = gzip.compress(b"a b\n" * 100, mtime=0)
    for damaged in (content[:10] + b"\xff" + content[11:], content[:-8] + bytes(4) + content[-4:], content[:-9]):
        (tmp_path / "a.gz").write_bytes(damaged)
        with pytest.raises(DataError, match=r"a\.gz, line [0-9]+: cannot be read"):
            conll.read(tmp_path / "a.gz")
    with pytest.raises(zlib.error):
        gzip.decompress(content[:10] + b"\xff" + content[11:])


def test_what_a_gzip_expands_to_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"a b\n" * (5 << 20)))
    with pytest.raises(DataError, match=r"a\.gz, line 4194305: expands to more than 16777216 bytes"):
        for _ in numbered_lines(tmp_path / "a.gz"):
            pass
