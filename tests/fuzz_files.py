"""Valid files of every kind that structloss reads, and what reads them."""

import gzip
import io
import random
import struct
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

import structloss as sl
from structloss.reproduce.finding import FILE, Finding, Grid
from structloss.tasks import TASKS
from structloss.tasks.alignment import audio, timit, transcripts, words
from structloss.tasks.alignment.segments import Segments
from structloss.training.directory import load, save
from structloss.training.task import Example

Draw = random.Random
Folder = dict[str, bytes]  # the files of a folder by name

WORDS = (
    "The",
    "cat",
    "isn't",
    "#",
    "U.S.",
    "well-known",
    "1,000",
    "na\u00efve",
    "\u0e41\u0e21\u0e27",
    "\u05e9\u05dc",
    "=",
)
PHONES = ("sil", "ah", "b", "k", "t", "iy", "sh")


@dataclass(frozen=True)
class Reader:
    """What makes a valid file, or a folder of some, and what reads it."""

    make: Callable[[Draw], Folder]
    read: Callable[[Path], object]  # given the folder's only file, or the folder
    needs: str = ""  # the package without which it does not read
    inside: tuple[Callable[[bytes], Folder], Callable[[Folder], bytes]] | None = None  # unpacks and packs a file


def one(name: str, content: str | bytes) -> Folder:
    return {name: content if isinstance(content, bytes) else content.encode()}


def lines(rows: Sequence[str], draw: Draw) -> str:
    """Text with line ends of one kind, and perhaps a byte order mark."""
    end = draw.choice(("\n", "\n", "\n", "\r\n", "\r"))
    return draw.choice(("", "", "\ufeff")) + "".join(row + end for row in rows)


def columns(draw: Draw) -> str:
    """Tagged sentences between spaces, tabs or both."""
    width, gap = draw.randint(2, 4), draw.choice((" ", "\t", "  "))
    rows = ["-DOCSTART- " + gap.join(["O"] * (width - 1)), ""] if draw.random() < 0.2 and gap == " " else []
    for _ in range(draw.randint(1, 4)):
        rows += ["# id = 3"] * draw.randint(0, 1)
        rows += [
            gap.join([draw.choice(WORDS), *(draw.choice(("DT", "B-NP", "I-NP", "O")) for _ in range(width - 1))])
            for _ in range(draw.randint(1, 6))
        ]
        rows.append("")
    rows += [gap.join(["The", *["O"] * (width - 1)]), ""]  # one line that is no comment
    return lines(rows, draw)


def conllu(draw: Draw) -> str:
    rows = []
    for number in range(draw.randint(1, 3)):
        rows += [f"# sent_id = {number}", "# text = whatever"]
        for i in range(1, draw.randint(2, 6)):
            word = draw.choice(WORDS)
            if draw.random() < 0.2:
                rows.append(f"{i}-{i + 1}\t{word}" + "\t_" * 8)
            rows.append(f"{i}\t{word}\t{word}\t{draw.choice(('NOUN', 'VERB'))}\t_\tCase=Nom\t0\troot\t_\t_")
            if draw.random() < 0.1:
                rows.append(f"{i}.1" + "\t_" * 9)
        rows.append("")
    return lines(rows, draw)


def read_tagging(path: Path) -> object:
    """The examples of a file, written back."""
    task = TASKS["tagging"]
    return [list(task.write(example, example.y or ["X"] * len(example.x))) for example in task.read(path)]


def treebank(draw: Draw) -> str:
    """CoNLL-U whose heads are trees."""
    rows = []
    for number in range(draw.randint(1, 3)):
        rows += [f"# sent_id = {number}"] * draw.randint(0, 1)
        n = draw.randint(1, 6)
        order = draw.sample(range(1, n + 1), n)
        heads = {word: draw.choice(order[:i]) if i else 0 for i, word in enumerate(order)}
        for i in range(1, n + 1):
            if draw.random() < 0.2:
                rows.append(f"{i}-{i + 1}\tx" + "\t_" * 8)
            relation = draw.choice(("nsubj:pass", "obj", "punct")) if heads[i] else "root"
            rows.append(f"{i}\t{draw.choice(WORDS)}\t_\tNOUN\t_\t_\t{heads[i]}\t{relation}\t_\t_")
        rows.append("")
    return lines(rows, draw)


def read_parsing(path: Path) -> object:
    """The trees of a file, written back and drawn."""
    task = TASKS["parsing"]
    return [(list(task.write(e, e.y)), task.draw(e, e.y)) for e in task.read(path)]


def pronunciations(draw: Draw) -> str:
    phones = draw.random() < 0.8
    return lines(
        [
            draw.choice(WORDS) + ("\t" + " ".join(draw.choices(PHONES, k=draw.randint(1, 5))) if phones else "")
            for _ in range(draw.randint(1, 10))
        ],
        draw,
    )


def read_g2p(path: Path) -> object:
    task = TASKS["g2p"]
    return [list(task.write(example, example.y)) for example in task.read(path)]


def letters(draw: Draw) -> bytes:
    lengths = [draw.randint(1, 5) for _ in range(draw.randint(1, 6))]
    n = sum(lengths)
    arrays = {
        "bits": np.frombuffer(draw.randbytes(16 * n), np.uint8).reshape(n, 16),
        "labels": np.array([draw.randrange(26) for _ in range(n)], draw.choice((np.uint8, np.int64))),
        "lengths": np.array(lengths, np.int32),
        "folds": np.array([draw.randrange(10) for _ in lengths]),
    }
    file = io.BytesIO()
    draw.choice((np.savez, np.savez_compressed))(file, **arrays)
    return file.getvalue()


def unzipped(content: bytes) -> Folder:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def zipped(members: Folder) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def sound(draw: Draw) -> bytes:
    import soundfile

    rate = draw.choice((8000, 16000, 22050, 44100))
    samples = np.random.default_rng(draw.randrange(1 << 30)).uniform(-1, 1, (draw.randint(1, 2000), draw.randint(1, 2)))
    form, kind = draw.choice((("WAV", "PCM_16"), ("WAV", "FLOAT"), ("FLAC", "PCM_16"), ("NIST", "PCM_16")))
    file = io.BytesIO()
    soundfile.write(file, samples, rate, kind, format=form)
    return file.getvalue()


def recordings(draw: Draw) -> Folder:
    """A list of recordings and their transcripts, and the recordings."""
    spoken = [" ".join(draw.choices(WORDS, k=draw.randint(1, 4))) + " a" for _ in range(draw.randint(1, 3))]
    rows = [f"{i}.wav\t{text}" for i, text in enumerate(spoken)]
    return {"a.tsv": lines(rows, draw).encode(), **{f"{i}.wav": sound(draw) for i in range(len(spoken))}}


def read_recordings(folder: Path) -> object:
    """The list, and the folder, whose recordings have no transcripts beside them."""
    task = TASKS["speech"]
    return task.read(folder, {}), [list(task.write(e, e.y)) for e in task.read(folder / "a.tsv")]


def segments(draw: Draw) -> Segments:
    phones = draw.choices(PHONES, k=draw.randint(1, 8))
    times = sorted(draw.sample(range(1, 400), len(phones)))
    return Segments(tuple(phones), (0.0, *(time / 100 for time in times)))


def transcript(name: str, xwaves: bool = False) -> Callable[[Draw], Folder]:
    def make(draw: Draw) -> Folder:
        with TemporaryDirectory() as folder:
            path = Path(folder) / name
            transcripts.write(path, segments(draw), xwaves=xwaves)
            return {name: path.read_bytes()}

    return make


def short_textgrid(draw: Draw) -> Folder:
    made = segments(draw)
    rows = ['File type = "ooTextFile"', 'Object class = "TextGrid"', "", "0", f"{made.duration}", "<exists>", "2"]
    rows += ['"TextTier"', '"points"', "0", f"{made.duration}", "1", "0.5", '"x ""y"""']
    rows += ['"IntervalTier"', '"phones"', "0", f"{made.duration}", f"{len(made)}"]
    for start, end, phone in made:
        rows += [f"{start}", f"{end}", f'"{phone}"']
    return one("a.TextGrid", lines(rows, draw).encode(draw.choice(("utf-8", "utf-16"))))


def read_phn(path: Path) -> object:
    return transcripts.read(path), timit.segments(path)


def spoken(draw: Draw) -> str:
    known = ("hello", "the", "cat", "don't", "you,", "sat.", "mat;", "sil", "ah", "b", "K", "T")
    return lines([" ".join(draw.choices(known, k=draw.randint(1, 6))) for _ in range(draw.randint(1, 3))], draw)


def dictionary(draw: Draw) -> str:
    known = ("cat\tk a t", "CAT(2)  K AE1 T", ";;; a comment", "l'ami 0.99 1.0 l a m i", "the dh ah # the")
    return lines([known[0], *draw.choices(known, k=draw.randint(1, 6))], draw)


def lattice(draw: Draw) -> str:
    n = draw.randint(2, 6)
    rows = [f"{q} {q + 1} {draw.randint(0, 4)}" for q in range(n)]
    rows += [f"{draw.randint(0, n - 2)}\t{n - 1} {draw.randint(0, 4)} {draw.uniform(-2, 9):g}" for _ in range(4)]
    return lines([*rows, f"{n} {draw.choice(('0.5', 'Infinity', '-1e-3'))}", f"{n - 1}"], draw)


def read_lattice(path: Path) -> object:
    return sl.Lattice.from_text(path)


def forest(draw: Draw) -> str:
    n = draw.randint(2, 6)
    rows = [f"i{q} -> i{q + 1} {draw.choice(('', f'i{n}'))} : {draw.uniform(-2, 9):g}" for q in range(n)]
    return lines([*rows, f"i{n} ->", f"i{n} -> : -inf"], draw)


def read_forest(path: Path) -> object:
    return sl.Forest.from_text(path)


def transducer(draw: Draw) -> str:
    n = draw.randint(1, 4)
    arcs = [(q, q + 1) for q in range(n - 1)] + [(draw.randrange(n), draw.randrange(n)) for _ in range(5)]
    rows = [f"{p} {q} {draw.randint(1, 3)} {draw.randint(0, 3)} {draw.choice((0, 0.5, 2, 1e-3))}" for p, q in arcs]
    return lines([*rows, f"{n - 1}"], draw)


def read_transducer(path: Path) -> object:
    """As both losses; what only one of them takes is read."""
    try:
        return sl.TropicalLoss(path)
    except ValueError:
        return sl.RationalLoss(path)


def openfst(draw: Draw) -> bytes:
    """A vector or const machine, with a symbol table or without, as OpenFst writes it."""
    const, table, n = draw.random() < 0.4, draw.random() < 0.4, draw.randint(1, 4)
    arc_type = draw.choice(("standard", "standard", "log", "log64"))
    weight = "d" if arc_type == "log64" else "f"
    pad = "xxxx" if const and weight == "d" else ""
    arcs = [[(draw.randint(1, 3), draw.randint(0, 3), draw.choice((0, 0.5, 3)), draw.randrange(n))
             for _ in range(draw.randint(0, 3))] for _ in range(n)]  # fmt: skip
    for q in range(n - 1):
        arcs[q].append((1, 1, 0, q + 1))
    content = struct.pack("<i", 2125659606)
    for name in ("const" if const else "vector", arc_type):
        content += struct.pack("<i", len(name)) + name.encode()
    counts = [len(row) for row in arcs]
    content += struct.pack("<iiQqqq", 2, int(table), 3, 0, n, sum(counts))
    if table:
        content += struct.pack("<ii", 2125658996, 3) + b"abc" + struct.pack("<qq", 2, 2)
        for symbol, number in ((b"<eps>", 0), (b"a", 1)):
            content += struct.pack("<i", len(symbol)) + symbol + struct.pack("<q", number)
    final = [float("inf")] * (n - 1) + [0.5]
    packed = [b"".join(struct.pack(f"<ii{weight}i{pad}", *arc) for arc in row) for row in arcs]
    if const:
        for q in range(n):
            content += struct.pack(f"<{weight}IIII", final[q], sum(counts[:q]), counts[q], 0, 0)
        return content + b"".join(packed)
    return content + b"".join(struct.pack(f"<{weight}q", final[q], counts[q]) + packed[q] for q in range(n))


def model(draw: Draw) -> Folder:
    """The directory of a small model that nobody has trained."""
    with TemporaryDirectory() as folder:
        path, name = Path(folder), draw.choice(("tagging", "g2p", "ocr", "parsing", "speech"))
        task = TASKS[name]
        if name == "ocr":
            (path / "data.npz").write_bytes(letters(draw))
        elif name == "parsing":
            (path / "data.npz").write_text("1\ta\t_\tX\t_\t_\t0\troot\t_\t_\n")
        else:
            (path / "data.npz").write_text("a B\nb I\n\na B\n" if name == "tagging" else "ab\tA B\nb\tB\n")
        settings = {**task.settings, "width": 8}
        frames = [Example(torch.zeros(4, 40), tuple("ab c"), "a.wav", "a.wav")]
        examples = frames if name == "speech" else task.read(path / "data.npz")
        save(path / "model", task, task.build(task.configure(examples, settings)), {})
        return {file.name: file.read_bytes() for file in (path / "model").iterdir()}


def finding(draw: Draw) -> Folder:
    grid = Grid("a table", ["a", "b"], [["1", "2"], ["3", "4"]])
    made = Finding("runtime", "A title", "The paper says.", [grid] * draw.randint(0, 2), ["x"], "structloss", 1.5)
    with TemporaryDirectory() as folder:
        made.write(Path(folder), [1, 2], {})
        return {FILE: (Path(folder) / FILE).read_bytes()}


def _gunzipped(content: bytes) -> Folder:
    return {"text": gzip.decompress(content)}


def _gzipped(members: Folder) -> bytes:
    return gzip.compress(members["text"], 1, mtime=0)


READERS: dict[str, Reader] = {
    "conll": Reader(lambda draw: one("a.txt", columns(draw)), read_tagging),
    "conllu": Reader(lambda draw: one("a.conllu", conllu(draw)), read_tagging),
    "treebank": Reader(lambda draw: one("a.conllu", treebank(draw)), read_parsing),
    "gz": Reader(
        lambda draw: one("a.txt.gz", gzip.compress(columns(draw).encode(), mtime=0)), read_tagging,
        inside=(_gunzipped, _gzipped),
    ),
    "g2p": Reader(lambda draw: one("a.tsv", pronunciations(draw)), read_g2p),
    "npz": Reader(lambda draw: one("a.npz", letters(draw)), TASKS["ocr"].read, inside=(unzipped, zipped)),
    "wav": Reader(lambda draw: one("a.wav", sound(draw)), audio.read, "soundfile"),
    "speech": Reader(recordings, read_recordings, "kaldi_native_fbank"),
    "textgrid-long": Reader(transcript("a.TextGrid"), transcripts.read),
    "textgrid-short": Reader(short_textgrid, transcripts.read),
    "lab": Reader(transcript("a.lab"), transcripts.read),
    "lab-xwaves": Reader(transcript("a.lab", xwaves=True), transcripts.read),
    "segs": Reader(transcript("a.segs"), transcripts.read),
    "phn": Reader(transcript("a.phn"), read_phn),
    "words": Reader(lambda draw: one("a.txt", spoken(draw)), words.read, "pocketsphinx"),
    "dictionary": Reader(lambda draw: one("a.dict", dictionary(draw)), words.read_dictionary),
    "lattice": Reader(lambda draw: one("a.txt", lattice(draw)), read_lattice),
    "forest": Reader(lambda draw: one("a.txt", forest(draw)), read_forest),
    "fst-text": Reader(lambda draw: one("a.txt", transducer(draw)), read_transducer),
    "fst-binary": Reader(lambda draw: one("a.fst", openfst(draw)), read_transducer),
    "model": Reader(model, lambda folder: load(folder, TASKS), "safetensors"),
    "finding": Reader(finding, Finding.read),
}  # fmt: skip


def available() -> list[str]:
    """The readers whose packages are installed."""
    return [name for name, reader in READERS.items() if not reader.needs or find_spec(reader.needs)]
