"""The voices of festival and flite, which say when each phone of what they speak ends."""

import re
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

_LONGEST_TEXT = 1000  # characters
_SECONDS = 60  # for one sentence
_SPOKEN = re.compile(r"(?=.*[A-Za-z])[ -~]+")
_PHONE_END = re.compile(r"(\S+):([0-9.]+)")


@dataclass(frozen=True)
class Voice:
    """A voice: its program, the program's name for it, Debian's packages, and how well its times fit its waves."""

    program: str
    name: str
    packages: tuple[str, ...]
    rest: float = 0.02  # seconds by which a wave may be longer or shorter than its phones


VOICES: dict[str, Voice] = {
    # recorded diphones; each wave goes on for 20 to 30 ms after its last silence
    "festival-kal": Voice("festival", "kal_diphone", ("festival", "festvox-kallpc16k"), rest=0.04),
    "festival-slt-hts": Voice("festival", "cmu_us_slt_arctic_hts", ("festival", "festvox-us-slt-hts")),
    # not flite's kal and kal16: their times do not fit their waves
    "flite-slt": Voice("flite", "slt", ("flite",)),
    "flite-rms": Voice("flite", "rms", ("flite",)),
    "flite-awb": Voice("flite", "awb", ("flite",)),
}


def voice_of(name: str) -> Voice:
    """The voice of a name, or a ValueError; one that is not installed is a FileNotFoundError that names packages."""
    if name not in VOICES:
        raise ValueError(f"voice: got {name!r}, but wanted one of {', '.join(VOICES)}")
    voice = VOICES[name]
    if shutil.which(voice.program) is None:
        raise _missing(voice)
    return voice


def check_text(text: str) -> None:
    """Raise a ValueError for what no voice reads: anything but printable ASCII with a letter in it."""
    if len(text) > _LONGEST_TEXT or not _SPOKEN.fullmatch(text):
        raise ValueError(
            f"sentences: got {text[:80]!r}, but wanted printable ASCII with a letter, up to {_LONGEST_TEXT} characters"
        )


def speak(voice: Voice, texts: Sequence[str], folder: Path, workers: int = 1) -> None:
    """Write text i as i.wav and, with the program's own names of phones, i.segs; what it cannot speak has none."""
    if voice.program == "festival":
        _festival(voice, texts, folder)
    else:
        _flite(voice, texts, folder, workers)


def _festival(voice: Voice, texts: Sequence[str], folder: Path) -> None:
    """All texts in one process; a text that kills it is left out, and those after it are spoken by another."""
    first = 0
    while first < len(texts):
        forms = [f"(voice_{voice.name})"]
        for i, text in enumerate(texts[first:], first):
            spoken = text.replace("\\", "\\\\").replace('"', '\\"')
            forms.append(
                f'(let ((u (utt.synth (Utterance Text "{spoken}"))))'
                f' (utt.save.wave u "{i}.wav" \'riff) (utt.save.segs u "{i}.segs"))'
            )
        ended = subprocess.run(
            [voice.program, "--pipe"],
            input="\n".join(forms) + "\n",
            encoding="ascii",
            errors="replace",
            capture_output=True,
            cwd=folder,
            timeout=_SECONDS * (len(texts) - first),
        )
        if f"voice_{voice.name}" in ended.stderr:
            raise _missing(voice)
        if ended.returncode == 0:
            return
        first = next((i for i in range(first, len(texts)) if not (folder / f"{i}.segs").is_file()), len(texts)) + 1


def _flite(voice: Voice, texts: Sequence[str], folder: Path, workers: int) -> None:
    """A process for each text, several at a time. flite speaks with another voice where it lacks one: ask first."""
    known = subprocess.run([voice.program, "-lv"], capture_output=True, encoding="ascii", timeout=_SECONDS, check=True)
    if voice.name not in known.stdout.split():
        raise _missing(voice)

    def one(i: int) -> None:
        command = [voice.program, "-voice", voice.name, "-psdur", "-t", texts[i], "-o", f"{i}.wav"]
        ended = subprocess.run(
            command, capture_output=True, encoding="ascii", errors="replace", cwd=folder, timeout=_SECONDS
        )
        if ended.returncode == 0:
            lines = [f"{end} 100 {phone}" for phone, end in _PHONE_END.findall(ended.stdout)]
            (folder / f"{i}.segs").write_text("\n".join(["#", *lines]) + "\n")

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(one, range(len(texts))))


def _missing(voice: Voice) -> FileNotFoundError:
    return FileNotFoundError(
        f"The voice {voice.name} of {voice.program} is not installed: apt-get install {' '.join(voice.packages)}"
    )
