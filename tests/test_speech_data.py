"""Recordings, transcripts with times, the front end, and the corpora that are read or made."""

import math
import os
import random
import re
import shutil
import wave
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from structloss.tasks.alignment import (
    audio,
    digits,
    extras,
    recordings,
    synthesis,
    timit,
    transcripts,
    vocabulary,
    voices,
    words,
)
from structloss.tasks.alignment.frontend import DIMENSIONS, features, frame_count, frame_of, seconds_of
from structloss.tasks.alignment.phones import ARPABET, SILENCE, SYNTHESISED
from structloss.tasks.alignment.resample import resample
from structloss.tasks.alignment.segments import Segments
from structloss.tasks.alignment.sentences import sentences
from structloss.tasks.g2p import dictionary
from structloss.text import numbered_lines
from structloss.training.task import DataError

DATA = Path(os.environ.get("STRUCTLOSS_DATA", Path(__file__).parents[2] / "shared" / "data")) / "speech" / "fsdd"


def tone(rate: int, frequency: float = 440.0, seconds: float = 0.5, amplitude: float = 0.5) -> np.ndarray:
    return (amplitude * np.sin(2 * np.pi * frequency * np.arange(int(rate * seconds)) / rate)).astype(np.float32)


def write_wave(path: Path, samples: np.ndarray, rate: int) -> Path:
    """Samples (n,) or (n, channels) as a RIFF file of 16 bits."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1 if samples.ndim == 1 else samples.shape[1])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples * 32767).astype("<i2").tobytes())
    return path


def write_sphere(path: Path, samples: np.ndarray) -> Path:
    """What TIMIT calls .wav."""
    fields = [
        "NIST_1A", "   1024", "database_id -s5 TIMIT", f"sample_count -i {len(samples)}", "sample_rate -i 16000",
        "channel_count -i 1", "sample_n_bytes -i 2", "sample_byte_format -s2 01", "sample_sig_bits -i 16", "end_head",
    ]  # fmt: skip
    header = "\n".join(fields).encode() + b"\n"
    path.write_bytes(header.ljust(1024) + (samples * 32767).astype("<i2").tobytes())
    return path


# Recordings


class TestAudio:
    @pytest.fixture(autouse=True)
    def _needs_soundfile(self) -> None:
        pytest.importorskip("soundfile", reason="recordings need the speech extra")

    @pytest.mark.parametrize("rate", [8_000, 11_025, 16_000, 22_050, 32_000, 44_100, 48_000, 96_000])
    def test_any_rate_becomes_16_khz(self, rate: int, tmp_path: Path) -> None:
        found = audio.read(write_wave(tmp_path / "a.wav", tone(rate), rate))
        assert found.dtype == np.float32
        assert len(found) == 8000
        inside = slice(500, -500)
        assert np.abs(found - tone(audio.RATE))[inside].max() < 1e-3

    def test_stereo_is_averaged(self, tmp_path: Path) -> None:
        left, right = tone(16_000, 300), tone(16_000, 1000)
        found = audio.read(write_wave(tmp_path / "a.wav", np.stack([left, right], axis=1), 16_000))
        np.testing.assert_allclose(found, (left + right) / 2, atol=1e-4)

    def test_sphere_headers_of_timit_are_read(self, tmp_path: Path) -> None:
        np.testing.assert_allclose(
            audio.read(write_sphere(tmp_path / "SI1.WAV", tone(16_000))), tone(16_000), atol=1e-4
        )

    def test_flac_and_floats_are_read(self, tmp_path: Path) -> None:
        soundfile = pytest.importorskip("soundfile")
        for name, kind in (("a.flac", "PCM_16"), ("b.wav", "FLOAT"), ("c.wav", "PCM_24")):
            soundfile.write(tmp_path / name, tone(16_000), 16_000, subtype=kind)
            np.testing.assert_allclose(audio.read(tmp_path / name), tone(16_000), atol=1e-4)

    def test_silence_is_a_recording(self, tmp_path: Path) -> None:
        assert not audio.read(write_wave(tmp_path / "a.wav", np.zeros(800), 8_000)).any()

    def test_writing_comes_back_to_the_bit_and_clips(self, tmp_path: Path) -> None:
        samples = (np.arange(-32768, 32768) / 32768).astype(np.float32)
        audio.write(tmp_path / "a.wav", samples)
        np.testing.assert_array_equal(audio.read(tmp_path / "a.wav"), samples)
        audio.write(tmp_path / "b.wav", np.array([2.0, -2.0], np.float32))
        np.testing.assert_array_equal(audio.read(tmp_path / "b.wav"), np.array([32767 / 32768, -1.0], np.float32))
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a.wav", "b.wav"]

    @pytest.mark.parametrize("name", ["a.wav", "a.flac", "a.raw", "a.mp3", "a"])
    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"RIFF",
            b"this is no recording\n" * 100,
            b"RIFF\xff\xff\xff\xffWAVEfmt ",
            bytes(1000),
            b"NIST_1A\n 99\n",
        ],
    )
    def test_what_is_no_recording_is_an_error_that_names_it(self, name: str, content: bytes, tmp_path: Path) -> None:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=re.escape(str(tmp_path / name))):
            audio.read(tmp_path / name)

    def test_a_broken_header_is_an_error(self, tmp_path: Path) -> None:
        path = write_wave(tmp_path / "a.wav", tone(16_000), 16_000)
        content = path.read_bytes()
        for broken in (content[:20], b"RIFX" + content[4:], content[:22] + b"\0\0" + content[24:]):
            path.write_bytes(broken)
            with pytest.raises(DataError, match=r"a\.wav"):
                audio.read(path)

    def test_random_damage_to_a_header_is_read_or_an_error(self, tmp_path: Path) -> None:
        content = write_wave(tmp_path / "a.wav", tone(16_000), 16_000).read_bytes()
        generator = random.Random(0)
        for _ in range(200):
            damaged = bytearray(content[: generator.choice([44, 60, len(content)])])
            for _ in range(generator.randint(1, 4)):
                damaged[generator.randrange(44)] = generator.randrange(256)
            (tmp_path / "b.wav").write_bytes(damaged)
            try:
                assert audio.read(tmp_path / "b.wav").size
            except DataError as error:
                assert "b.wav" in str(error)  # noqa: PT017

    def test_no_samples_missing_files_and_folders_are_errors(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="has no samples"):
            audio.read(write_wave(tmp_path / "a.wav", np.zeros(0), 16_000))
        with pytest.raises(DataError, match="is not there"):
            audio.read(tmp_path / "b.wav")
        with pytest.raises(DataError, match="is not there"):
            audio.read(tmp_path)

    def test_samples_that_are_no_numbers_are_an_error(self, tmp_path: Path) -> None:
        soundfile = pytest.importorskip("soundfile")
        soundfile.write(tmp_path / "a.wav", np.array([0.0, np.nan]), 16_000, subtype="FLOAT")
        with pytest.raises(DataError, match="no numbers"):
            audio.read(tmp_path / "a.wav")

    def test_no_more_is_read_than_is_allowed(self, tmp_path: Path) -> None:
        path = write_wave(tmp_path / "a.wav", tone(8_000, seconds=4), 8_000)
        assert len(audio.read(path, most_hours=4 / 3600)) == 64_000
        with pytest.raises(DataError, match=r"longer than 0\.001 hours"):
            audio.read(path, most_hours=0.001)

    @pytest.mark.parametrize(("rate", "channels"), [(1_000, 1), (400_000, 1), (16_000, 40)])
    def test_odd_rates_and_many_channels_are_errors(self, rate: int, channels: int, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=f"got {rate if channels == 1 else channels}"):
            audio.read(write_wave(tmp_path / "a.wav", np.zeros((100, channels)), rate))


def test_a_missing_package_is_named_with_the_extra() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"Reading needs no-such-thing: pip install 'structloss\[speech\]'"):
        extras.speech_module("no_such_thing.at_all", "Reading")


class TestResampling:
    def test_what_cannot_be_said_at_16_khz_is_not_heard(self) -> None:
        assert np.abs(resample(tone(48_000, 9_000), 48_000, 16_000))[200:-200].max() < 1e-3
        assert np.abs(resample(tone(44_100, 12_000), 44_100, 16_000))[200:-200].max() < 1e-3

    def test_nothing_is_added_above_the_old_nyquist_frequency(self) -> None:
        found = resample(tone(8_000, 3_000, 1.0), 8_000, 16_000)
        spectrum = np.abs(np.fft.rfft(found * np.hanning(len(found))))
        assert spectrum[4_000:].max() < 1e-3 * spectrum.max()

    def test_a_constant_stays_one_whatever_the_rates(self) -> None:
        for rate in (7_919, 8_000, 15_999, 44_100, 192_000):
            found = resample(np.ones(rate // 2, np.float32), rate, 16_000)
            np.testing.assert_allclose(found[200:-200], 1.0, atol=1e-5)

    @given(st.integers(1, 300), st.sampled_from([8_000, 11_025, 15_999, 22_050, 44_100, 48_000]))
    def test_a_click_stays_where_it_was(self, place: int, rate: int) -> None:
        samples = np.zeros(400, np.float32)
        samples[place] = 1.0
        found = resample(samples, rate, 16_000)
        assert len(found) == -(-400 * 16_000 // rate)
        assert abs(int(found.argmax()) / 16_000 - place / rate) <= 0.5 / 16_000 + 1e-9


# The front end


class TestFrontEnd:
    @pytest.fixture(autouse=True)
    def _needs_fbank(self) -> None:
        pytest.importorskip("kaldi_native_fbank", reason="the front end needs the speech extra")

    @pytest.mark.parametrize("hop", [1.0, 5.0, 10.0, 12.5, 25.0])
    @pytest.mark.parametrize("count", [1, 79, 80, 159, 160, 161, 399, 400, 401, 16_000, 16_079, 16_080])
    def test_there_are_as_many_frames_as_the_count_says(self, hop: float, count: int) -> None:
        found = features(np.random.default_rng(0).normal(0, 0.1, count).astype(np.float32), hop)
        assert found.shape == (frame_count(count, hop), DIMENSIONS)
        assert found.dtype == np.float32
        assert np.isfinite(found).all()

    @pytest.mark.parametrize("normalise", [False, True])
    def test_silence_has_finite_features(self, normalise: bool) -> None:
        found = features(np.zeros(16_000, np.float32), normalise=normalise)
        assert np.isfinite(found).all()
        assert not normalise or not found.any()

    @pytest.mark.parametrize("hop", [5.0, 10.0])
    def test_frames_are_centred_where_the_convention_says(self, hop: float) -> None:
        for frame in (7, 20, 33):
            samples = np.zeros(8_000, np.float32)
            samples[int((frame + 0.5) * hop * 16)] = 1.0
            energy = features(samples, hop)[:, 13]
            loud = np.flatnonzero(energy > energy.min() + 1)
            assert (loud[0] + loud[-1]) / 2 == pytest.approx(frame, abs=0.5)

    def test_energy_and_derivatives_are_what_they_say(self) -> None:
        samples = np.random.default_rng(1).normal(0, 0.1, 8_000).astype(np.float32)
        found = features(samples)
        window = samples[20 * 160 + 80 - 200 :][:400].astype(np.float64)
        assert found[20, 13] == pytest.approx(np.log(((window - window.mean()) ** 2).sum()), abs=1e-3)
        for column in (0, 5, 13, 20):
            slope = np.polyfit(np.arange(-2, 3), found[18:23, column], 1)[0]
            assert found[20, column + 14] == pytest.approx(slope, abs=1e-4)

    def test_normalised_columns_have_mean_0_and_variance_1(self) -> None:
        found = features(np.random.default_rng(2).normal(0, 0.1, 16_000).astype(np.float32), normalise=True)
        np.testing.assert_allclose(found.mean(0), 0, atol=1e-5)
        np.testing.assert_allclose(found.std(0), 1, atol=1e-4)

    def test_nothing_is_random(self) -> None:
        samples = tone(16_000)
        np.testing.assert_array_equal(features(samples), features(samples))

    @pytest.mark.parametrize("samples", [np.zeros(0), np.zeros((2, 3)), np.array([0.0, np.nan]), np.array([np.inf])])
    def test_what_is_no_samples_is_an_error(self, samples: np.ndarray) -> None:
        with pytest.raises(ValueError, match=r"^samples: got"):
            features(samples.astype(np.float32))


@given(st.integers(0, 10**7), st.sampled_from([1.0, 5.0, 10.0, 12.5, 25.0]))
def test_frames_and_times_are_inverse(frame: int, hop: float) -> None:
    assert frame_of(seconds_of(frame, hop), hop) == frame


@given(st.integers(80, 10**9), st.sampled_from([5.0, 10.0]))
def test_the_end_of_a_recording_is_the_end_of_its_frames(samples: int, hop: float) -> None:
    assert frame_of(samples / 16_000, hop) == frame_count(samples, hop)


@pytest.mark.parametrize("hop", [0.0, -5.0, 0.5, 26.0, 10.01, float("nan"), float("inf")])
def test_a_hop_is_a_whole_number_of_samples(hop: float) -> None:
    with pytest.raises(ValueError, match="hop_ms: got"):
        frame_count(16_000, hop)


# Transcripts

names = st.text("abcdefghij0123456789@{}~'\"_-+^:.#", min_size=1, max_size=4)
on_samples = st.lists(st.tuples(names, st.integers(2, 5_000)), min_size=1, max_size=12).map(
    lambda rows: Segments(
        tuple(name for name, _ in rows), tuple(np.cumsum([0] + [n for _, n in rows], dtype=int) / 16_000)
    )
)


@pytest.mark.parametrize(
    ("file", "xwaves"), [("a.TextGrid", False), ("a.lab", False), ("a.lab", True), ("a.phn", False), ("a.segs", False)]
)
@given(on_samples)
def test_every_format_comes_back(
    tmp_path_factory: pytest.TempPathFactory, file: str, xwaves: bool, made: Segments
) -> None:
    path = tmp_path_factory.mktemp("transcripts") / file
    transcripts.write(path, made, xwaves=xwaves)
    found = transcripts.read(path)
    assert found.phones == made.phones
    assert found.boundaries == pytest.approx(made.boundaries, abs=1e-9)
    assert [other.name for other in path.parent.iterdir()] == [file]


def test_the_formats_are_those_of_others(tmp_path: Path) -> None:
    wanted = Segments((SILENCE, "dh", "ax"), (0.0, 0.22, 0.25, 0.3125))
    (tmp_path / "a.segs").write_text("#\n0.2200 100 pau\n0.2500 100 dh\n0.3125 100 ax\n")
    (tmp_path / "a.lab").write_text("signal a\nnfields 1\n#\n  0.2200 121 pau ; x\n 0.25 121 dh\n 0.3125 121 ax\n")
    (tmp_path / "b.LAB").write_text("0 2200000 sil\n2200000 2500000 dh -31.5 the\n\n2500000 3125000 ax\n")
    (tmp_path / "c.PHN").write_text("0 3520 h#\n3520 4000 dh\n4000 5000 ax\n")
    for name in ("a.segs", "a.lab", "b.LAB", "c.PHN"):
        found = transcripts.read(tmp_path / name)
        assert found.boundaries == pytest.approx(wanted.boundaries)
        assert found.phones[1:] == wanted.phones[1:]


def test_gaps_are_silence(tmp_path: Path) -> None:
    (tmp_path / "a.phn").write_text("1600 3200 a\n4800 6400 b\n6400 8000 sil\n9600 11200 c\n12800 14400 sil\n")
    found = transcripts.read(tmp_path / "a.phn")
    assert found.phones == ("sil", "a", "sil", "b", "sil", "c", "sil")
    assert found.boundaries == pytest.approx((0, 0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.9))


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("a.phn", "0 100 a\n50 200 b\n", r"line 2: got 'b' from 0.003125 seconds on, but 'a' ends at 0.00625"),
        ("a.phn", "0 100 a\n100 100 b\n", "line 2: got 'b' from 0.00625 to 0.00625 seconds"),
        ("a.phn", "0 100 a\n\n100 b\n", "line 3: got '100 b', but wanted start, end and phone, times in samples"),
        ("a.phn", "0 1.5 a\n", "line 1: got '0 1.5 a', but wanted"),
        ("a.phn", "-5 10 a\n", "line 1: got '-5 10 a', but wanted"),
        ("a.phn", "0 ² a\n", "line 1: got"),
        ("a.phn", f"0 1{'0' * 5000} a\n", "line 1: got"),
        ("a.phn", "0 999999999999999 a\n", "line 1: got 'a' from 0 to"),
        ("a.phn", "", "a.phn: got no phone at all"),
        ("a.lab", "0 5e5 a\n", "line 1: got '0 5e5 a', but wanted start, end and phone, times in units of 100 ns"),
        ("a.lab", "#\n0.5 100 a\n0.4 100 b\n", "line 3: got 'b' from 0.5 to 0.4 seconds"),
        ("a.lab", "#\n0.5 100\n", "line 2: got '0.5 100', but wanted end in seconds, colour and phone"),
        ("a.lab", "#\nnan 100 a\n", "line 2: got 'nan 100 a'"),
        ("a.segs", "0.5 100 a\n", "got no line that is a bare #"),
        ("a.segs", "#\n", "a.segs: got no phone at all"),
        ("a.txt", "0 1 a\n", "got a transcript named '.txt', but wanted .TextGrid"),
        ("a.phn", b"0 1 \xff\n", "line 1: is not UTF-8"),
    ],
)
def test_what_is_wrong_with_a_transcript_is_said_with_its_line(
    tmp_path: Path, file: str, content: str | bytes, sentence: str
) -> None:
    (tmp_path / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=rf"{re.escape(str(tmp_path))}.*{sentence}"):
        transcripts.read(tmp_path / file)


def test_other_spaces_are_letters_of_a_name(tmp_path: Path) -> None:
    made = Segments(("a\u00a0b", "\u2028", "e\u0301\u200d"), (0.0, 0.1, 0.2, 0.3))
    for file in ("a.TextGrid", "a.lab", "a.phn", "a.segs"):
        transcripts.write(tmp_path / file, made)
        assert transcripts.read(tmp_path / file).phones == made.phones
    with pytest.raises(ValueError, match="no white space"):
        transcripts.write(tmp_path / "a.phn", Segments(("a\nb",), (0.0, 1.0)))


@pytest.mark.parametrize("text", ["room 7", "cafe\u0301", "he\u00adllo", "\u0915\u094d\u0937"])
def test_what_the_dictionary_cannot_say_is_an_error_and_never_left_out(text: str) -> None:
    pytest.importorskip("pocketsphinx", reason="the dictionary needs the speech extra")
    with pytest.raises(DataError, match="text: the dictionary lacks"):
        words.phones_of(text, "text")
    assert words.phones_of("rock-solid", "text") == words.phones_of("rock solid", "text")


def test_a_missing_or_huge_transcript_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not there"):
        transcripts.read(tmp_path / "a.phn")
    with (tmp_path / "a.TextGrid").open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(DataError, match="has 1073741824 bytes"):
        transcripts.read(tmp_path / "a.TextGrid")


def test_what_a_format_cannot_say_is_not_written(tmp_path: Path) -> None:
    for segments, sentence in (
        (Segments(("new york",), (0.0, 1.0)), "no white space"),
        (Segments(("a", "b"), (0.0, 1.0, 1.00001)), "got 'b' shorter than"),
    ):
        with pytest.raises(ValueError, match=sentence):
            transcripts.write(tmp_path / "a.phn", segments)
    assert not list(tmp_path.iterdir())


class TestTextGrids:
    SHORT = (
        'File type = "ooTextFile"\nObject class = "TextGrid"\n\n0\n1\n<exists>\n2\n'
        '"TextTier"\n"points"\n0\n1\n1\n0.5\n"x"\n'
        '"IntervalTier"\n"phones"\n0\n1\n2\n0.25\n0.5\n"a"\n0.5\n0.75\n"b ""c"""\n'
    )

    @pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
    def test_the_short_format_and_every_encoding(self, encoding: str, tmp_path: Path) -> None:
        (tmp_path / "a.TextGrid").write_bytes(self.SHORT.encode(encoding))
        found = transcripts.read(tmp_path / "a.TextGrid")
        assert found == Segments(("sil", "a", 'b "c"', "sil"), (0.0, 0.25, 0.5, 0.75, 1.0))

    def test_another_tier(self, tmp_path: Path) -> None:
        transcripts.write(tmp_path / "a.TextGrid", Segments(("new york",), (0.0, 1.0)), tier='my "words"')
        assert transcripts.read(tmp_path / "a.TextGrid", tier='my "words"').phones == ("new york",)
        with pytest.raises(DataError, match=r"a\.TextGrid: got no tier 'phones'; its tiers are 'my \"words\"'"):
            transcripts.read(tmp_path / "a.TextGrid")

    @pytest.mark.parametrize(
        ("old", "new", "sentence"),
        [
            ("0.5\n0.75", "0.4\n0.75", "tier 'phones', interval 2: got .* from 0.4 seconds on, but 'a' ends at 0.5"),
            ("0.5\n0.75", "0.5\n0.5", "tier 'phones', interval 2: got .* from 0.5 to 0.5"),
            ("0.5\n0.75", "0.5\nlate", "line 25: got 'b \"c\"', but wanted an end of tier 'phones', a number"),
            ("0.5\n0.75", "0.5\n0.7_5", "line 24: got '0.7_5', but wanted an end of tier 'phones', a number"),
            ('"phones"\n0\n1\n2', '"phones"\n0\n1\n3', "line 25: ends before a time of tier 'phones'"),
            ('"phones"\n0\n1\n2', '"phones"\n0\n1\n1', "line 23: got '0.5' after the last tier"),
            ('"phones"\n0\n1\n2', '"phones"\n0\n1\n-2', "line 19: got -2, but wanted the number of entries"),
            ('"phones"\n0\n1\n', '"phones"\n0\n1e9\n', "tier 'phones': ends at 1e.09 seconds, but wanted"),
            ('"b ""c"""\n', '"b', "line 25: got a text without its end"),
            ('"IntervalTier"', '"TextTier"', "."),
            ('"IntervalTier"', '"Tier"', "line 15: got a tier of the class 'Tier', but wanted IntervalTier"),
            (SHORT, "", "line 1: ends before the type of file"),
            (SHORT, '"a" "b"', "line 1: is no TextGrid in Praat's text format"),
            (SHORT, "[" * 100_000, "line 1: ends before the type of file"),
            (SHORT, "\0" * 100, "line 1: ends before the type of file"),
        ],
    )
    def test_what_is_wrong_is_said_with_the_tier(self, old: str, new: str, sentence: str, tmp_path: Path) -> None:
        (tmp_path / "a.TextGrid").write_text(self.SHORT.replace(old, new))
        with pytest.raises(DataError, match=rf"a\.TextGrid.*{sentence}"):
            transcripts.read(tmp_path / "a.TextGrid")

    def test_a_file_that_was_cut_off_is_an_error(self, tmp_path: Path) -> None:
        made = Segments(("a", "b", "c"), (0.0, 0.1, 0.2, 0.3))
        transcripts.write(tmp_path / "a.TextGrid", made)
        content = (tmp_path / "a.TextGrid").read_bytes().rstrip()
        for size in range(len(content) - 1):
            (tmp_path / "a.TextGrid").write_bytes(content[:size])
            with pytest.raises(DataError):
                transcripts.read(tmp_path / "a.TextGrid")

    @given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=4), st.text())
    def test_names_come_back_as_they_are(
        self, tmp_path_factory: pytest.TempPathFactory, names: list[str], tier: str
    ) -> None:
        path = tmp_path_factory.mktemp("names") / "a.TextGrid"
        phones = tuple(name.strip(" \t\r\n") or "sil" for name in names)
        made = Segments(phones, tuple(0.1 * k for k in range(len(phones) + 1)))
        transcripts.write(path, made, tier)
        assert transcripts.read(path, tier) == made

    @pytest.mark.parametrize("form", ["short_textgrid", "long_textgrid"])
    def test_praatio_writes_what_we_read_and_reads_what_we_write(self, form: str, tmp_path: Path) -> None:
        praatio = pytest.importorskip("praatio.utilities.textgrid_io", reason="praatio is for tests only")
        made = Segments(("sil", 'b "c"', "ŋ̍"), (0.0, 0.125, 0.25, 1.5))
        tier = {"class": "IntervalTier", "name": "phones", "xmin": 0.0, "xmax": 1.5, "entries": list(made)}
        text = praatio.getTextgridAsStr({"xmin": 0.0, "xmax": 1.5, "tiers": [tier]}, form, includeBlankSpaces=False)
        path = tmp_path / "a.TextGrid"
        for ends in ("\n", "\r\n", "\r"):
            path.write_bytes(text.replace("\n", ends).encode())
            assert transcripts.read(path) == made
        transcripts.write(path, made)
        (found,) = praatio.parseTextgridStr(path.read_text(encoding="utf-8"))["tiers"]
        assert [(float(a), float(b), name) for a, b, name in found["entries"]] == list(made)

    def test_points_are_no_intervals(self, tmp_path: Path) -> None:
        (tmp_path / "a.TextGrid").write_text(self.SHORT)
        with pytest.raises(DataError, match="tier 'points': got points, but wanted intervals"):
            transcripts.read(tmp_path / "a.TextGrid", tier="points")


class TestSegments:
    @pytest.mark.parametrize(
        ("phones", "boundaries"),
        [
            ((), (0.0,)),
            (("a",), (0.0,)),
            (("a",), (0.1, 0.2)),
            (("a",), (0.0, 0.0)),
            (("a", "b"), (0.0, 0.2, 0.1)),
            (("a",), (0.0, float("nan"))),
            (("a",), (0.0, 1e6)),
            ((" ",), (0.0, 1.0)),
        ],
    )
    def test_boundaries_increase_from_0_and_names_are_not_empty(
        self, phones: tuple[str, ...], boundaries: tuple[float, ...]
    ) -> None:
        with pytest.raises(ValueError, match=r"^(boundaries|phones): "):
            Segments(phones, boundaries)

    def test_another_end(self) -> None:
        segments = Segments(("a", "b"), (0.0, 0.5, 1.0))
        assert segments.until(1.01) == Segments(("a", "b"), (0.0, 0.5, 1.01))
        assert segments.until(1.5) == Segments(("a", "b", "sil"), (0.0, 0.5, 1.0, 1.5))
        assert segments.until(0.75) == Segments(("a", "b"), (0.0, 0.5, 0.75))
        assert Segments(("a", "sil"), (0.0, 0.5, 1.0)).until(1.5) == Segments(("a", "sil"), (0.0, 0.5, 1.5))
        with pytest.raises(ValueError, match=r"'b' starts at 0\.5"):
            segments.until(0.5)

    def test_silences_that_meet_become_one(self) -> None:
        segments = Segments(("h#", "pau", "a", "a", "pau", "pau"), (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0))
        renamed = segments.renamed({"h#": "sil", "pau": "sil", "a": "aa"})
        assert renamed == Segments(("sil", "aa", "aa", "sil"), (0.0, 2.0, 3.0, 4.0, 6.0))


# Folders


def test_a_folder_of_recordings(tmp_path: Path) -> None:
    pytest.importorskip("soundfile", reason="recordings need the speech extra")
    (tmp_path / "ann").mkdir()
    for name in ("ann/a", "b", "c"):
        write_wave(tmp_path / f"{name}.wav", tone(8_000), 8_000)
    (tmp_path / "ann" / "a.lab").write_text("0 2000000 x\n")
    (tmp_path / "b.phn").write_text("0 8040 y\n")
    first, second = recordings.in_folder(tmp_path)
    assert (first.name, first.speaker, second.name) == ("ann/a", "ann", "b")
    assert first.read().segments == Segments(("x", "sil"), (0.0, 0.2, 0.5))
    assert second.read().segments == Segments(("y",), (0.0, 0.5))
    (tmp_path / "b.phn").write_text("0 80000 y\n")
    with pytest.raises(DataError, match=r"b\.phn: ends at 5\.000 seconds, but .*b\.wav at 0\.500"):
        second.read()
    with pytest.raises(DataError, match="is not there"):
        recordings.in_folder(tmp_path / "d")
    (tmp_path / "e").mkdir()
    with pytest.raises(DataError, match="got no recording with a transcript"):
        recordings.in_folder(tmp_path / "e")


# TIMIT


def timit_tree(folder: Path, upper: bool, train: int = 12, test: int = 3) -> Path:
    """Speakers with sa1 and two sentences each."""
    for part, speakers in (("train", train), ("test", test)):
        for number in range(speakers):
            for sentence in ("sa1", "si7", "sx8"):
                stem = f"{part}/dr{number % 3}/f{number:03d}/{sentence}"
                path = folder / (stem.upper() if upper else stem)
                path.parent.mkdir(parents=True, exist_ok=True)
                write_sphere(path.with_suffix(".WAV" if upper else ".wav"), tone(16_000, seconds=0.1))
                path.with_suffix(".PHN" if upper else ".phn").write_text("0 400 h#\n400 800 ix\n800 1600 q\n")
    return folder


class TestTimit:
    def test_61_phones_become_39(self) -> None:
        assert len(timit.FOLDING) == 60
        assert len(set(timit.FOLDING.values())) == 39
        assert all(timit.FOLDING[phone] == phone for phone in set(timit.FOLDING.values()) - {SILENCE})
        assert timit.GLOTTAL_STOP not in timit.FOLDING

    def test_the_glottal_stop_goes_to_the_phone_before(self, tmp_path: Path) -> None:
        path = tmp_path / "a.phn"
        path.write_text("0 100 q\n100 200 h#\n200 300 pau\n300 400 tcl\n400 500 t\n500 600 q\n600 700 q\n700 800 ao\n")
        found = timit.segments(path)
        assert found.phones == ("sil", "t", "aa")
        assert found.boundaries == pytest.approx([0, 400 / 16e3, 700 / 16e3, 800 / 16e3])
        path.write_text("0 100 q\n")
        with pytest.raises(DataError, match="glottal stops"):
            timit.segments(path)
        path.write_text("0 100 xx\n")
        with pytest.raises(DataError, match="got the phone 'xx', which is none of TIMIT's 61"):
            timit.segments(path)

    @pytest.mark.parametrize("upper", [False, True])
    @pytest.mark.parametrize("below", ["", "TIMIT"])
    def test_a_tree(self, upper: bool, below: str, tmp_path: Path) -> None:
        pytest.importorskip("soundfile", reason="recordings need the speech extra")
        timit_tree(tmp_path / below, upper)
        found = timit.parts(tmp_path, seed=0, sizes=(10, 8, 4))
        assert (len(found.classifier), len(found.alignment), len(found.holdout), len(found.test)) == (10, 8, 4, 6)
        drawn = [recording.name for recording in (*found.classifier, *found.alignment, *found.holdout)]
        assert len(set(drawn)) == 22
        assert not any("sa1" in name for name in drawn)
        assert found.test[0].name == "dr0/f000/si7"
        assert found.test[0].speaker == "f000"
        speech = found.test[0].read()
        assert speech.segments == Segments(("sil", "ih"), (0.0, 0.025, 0.1))
        assert timit.parts(tmp_path, seed=0, sizes=(10, 8, 4)) == found
        assert timit.parts(tmp_path, seed=1, sizes=(10, 8, 4)).classifier != found.classifier

    def test_the_order_does_not_depend_on_the_case_of_letters(self, tmp_path: Path) -> None:
        both = [timit_tree(tmp_path / name, upper) for name, upper in (("a", False), ("b", True))]
        first, second = (timit.parts(folder, seed=3, sizes=(10, 8, 4)) for folder in both)
        assert [r.name for r in first.classifier] == [r.name for r in second.classifier]

    def test_what_is_missing_is_said(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="got no folder TRAIN"):
            timit.recordings(tmp_path, "train")
        with pytest.raises(DataError, match="got no folder TRAIN"):
            timit.recordings(tmp_path / "not there", "train")
        timit_tree(tmp_path, False)
        with pytest.raises(DataError, match=r"has 24 recordings to train on, but wanted 1500 \+ 1796 \+ 100"):
            timit.parts(tmp_path, seed=0)
        (tmp_path / "test" / "dr0" / "f000" / "si7.wav").unlink()
        with pytest.raises(DataError, match=r"si7\.phn: has no \.wav beside it"):
            timit.recordings(tmp_path, "test")


# Sentences and voices


class TestSentences:
    def test_they_are_what_the_seed_says_and_all_different(self) -> None:
        found = sentences(3000, seed=5)
        assert found == sentences(3000, seed=5)
        assert found[:50] == sentences(50, seed=5)
        assert len(set(found)) == 3000
        assert set(found) != set(sentences(3000, seed=6))
        assert {len(sentence.split()) for sentence in found} == set(range(5, 13))
        assert sentences(0, seed=0) == []
        for sentence in found:
            voices.check_text(sentence)
            assert re.fullmatch(r"[A-Z][A-Za-z ,]+[.?]", sentence)

    def test_every_word_is_in_the_dictionary_and_every_phone_is_spoken(self) -> None:
        pytest.importorskip("pocketsphinx", reason="the dictionary needs the speech extra")
        known = {line.split()[0]: line.split()[1:] for _, line in numbered_lines(dictionary.path())}
        lists = (value for name, value in vars(vocabulary).items() if name.isupper())
        spoken = {word for values in lists for entry in values for word in entry.lower().split()}
        spoken |= {word for sentence in sentences(5000, seed=0) for word in re.findall("[a-z]+", sentence.lower())}
        assert not spoken - set(known)
        often = [word for sentence in sentences(100, seed=0) for word in re.findall("[a-z]+", sentence.lower())]
        assert {phone.lower() for word in often for phone in known[word]} == set(ARPABET)

    @pytest.mark.parametrize("n", [-1, 10**9])
    def test_a_number_that_makes_no_sense_is_an_error(self, n: int) -> None:
        with pytest.raises(ValueError, match=f"n: got {n}"):
            sentences(n, seed=0)


def test_every_phone_of_a_voice_is_one_of_40() -> None:
    assert set(SYNTHESISED.values()) == {*ARPABET, SILENCE}
    assert len(ARPABET) == 39


@pytest.mark.parametrize("text", ["", "...", "caf\u00e9", "a\nb", "a\0b", "a" * 2000])
def test_what_no_voice_reads_is_an_error(text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="sentences: got"):
        synthesis.synthesise([text], "flite-slt", tmp_path)


def test_unknown_voices_and_formats_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="voice: got 'nobody', but wanted one of festival-kal"):
        synthesis.synthesise(["a b"], "nobody", tmp_path)
    with pytest.raises(ValueError, match=r"suffix: got '\.srt'"):
        synthesis.synthesise(["a b"], "flite-slt", tmp_path, suffix=".srt")


@pytest.mark.parametrize("name", voices.VOICES)
def test_a_missing_program_is_an_error_with_its_package(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=f"apt-get install {' '.join(voices.VOICES[name].packages)}"):
        synthesis.synthesise(["Hello there."], name, tmp_path)


@pytest.mark.parametrize(("program", "voice"), [("festival", "nobody"), ("flite", "nobody")])
def test_a_missing_voice_is_an_error_with_its_package(program: str, voice: str, tmp_path: Path) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed: apt-get install {program}")
    with pytest.raises(FileNotFoundError, match="apt-get install some-package"):
        voices.speak(voices.Voice(program, voice, ("some-package",)), ["Hello there."], tmp_path)


@pytest.mark.parametrize("name", voices.VOICES)
class TestVoices:
    TEXTS = (*sentences(4, seed=2), 'He said "hello" (twice) \\ and left; 50% of it!', "Stop")

    @pytest.fixture(autouse=True)
    def _needs_the_voice(self, name: str, tmp_path: Path) -> None:
        pytest.importorskip("soundfile", reason="recordings need the speech extra")
        try:
            voices.speak(voices.voice_of(name), ["Hello."], tmp_path)
        except FileNotFoundError as missing:
            pytest.skip(str(missing))

    def test_speech_fits_its_times(self, name: str, tmp_path: Path) -> None:
        counts: list[int] = []
        made = synthesis.synthesise(self.TEXTS, name, tmp_path / "out", workers=2, progress=counts.append)
        assert not made.dropped
        assert counts == [len(self.TEXTS)]
        assert made.recordings == recordings_without_reader(recordings.in_folder(tmp_path / "out"), name)
        for recording, text in zip(made.recordings, self.TEXTS, strict=True):
            assert recording.audio.with_suffix(".txt").read_text() == text + "\n"
            with wave.open(str(recording.audio)) as file:
                assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (16_000, 1, 2)
            speech = recording.read()
            phones, boundaries = speech.segments.phones, speech.segments.boundaries
            assert set(phones) <= {*ARPABET, SILENCE}
            assert phones[0] == phones[-1] == SILENCE
            assert not any(a == b == SILENCE for a, b in pairwise(phones))
            assert boundaries[-1] == pytest.approx(len(speech.samples) / 16_000)
            frames = speech.samples[: len(speech.samples) // 80 * 80].reshape(-1, 80)
            loud = 10 * np.log10((frames**2).mean(1) + 1e-10)
            before = loud[4 : max(5, int(boundaries[1] * 200) - 4)]  # kal may start with a click
            assert np.median(before) < loud.max() - 30
            onset = np.flatnonzero(loud > loud.max() - 30)
            onset = onset[onset >= 4][0] * 0.005
            assert -0.02 < onset - boundaries[1] < 0.25  # a stop starts silent, a fricative soft

    def test_the_same_sentence_is_the_same_speech(self, name: str, tmp_path: Path) -> None:
        first, second = (
            synthesis.synthesise(self.TEXTS[:1], name, tmp_path / out, suffix=".lab").recordings[0]
            for out in ("one", "two")
        )
        assert first.audio.read_bytes() == second.audio.read_bytes()
        assert first.transcript.read_bytes() == second.transcript.read_bytes()

    def test_times_that_do_not_fit_are_dropped_and_counted(
        self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def damaged(voice: voices.Voice, texts: list[str], folder: Path, workers: int) -> None:
            voices.speak(voice, texts, folder, workers)
            segs = [folder / f"{i}.segs" for i in range(4)]
            segs[0].write_text(segs[0].read_text() + "99.0 100 pau\n")
            segs[1].write_text(segs[1].read_text() + "0.1 100 pau\n")
            segs[2].write_text(segs[2].read_text().replace(" 100 pau", " 100 xx"))
            segs[3].unlink()

        monkeypatch.setattr(synthesis, "speak", damaged)
        made = synthesis.synthesise(self.TEXTS, name, tmp_path / "out")
        assert len(made.recordings) == len(self.TEXTS) - 4
        reasons = list(made.dropped.values())
        for reason, wanted in zip(
            reasons, ["but the wave at", "got 'pau' from", "the phone 'xx'", "is not there"], strict=True
        ):
            assert wanted in reason
        assert len(list((tmp_path / "out").glob("*.wav"))) == len(made.recordings)


def recordings_without_reader(found: list[recordings.Recording], speaker: str) -> list[recordings.Recording]:
    """As `synthesise` names them: the folder is not the speaker."""
    return [recordings.Recording(r.name, speaker, r.audio, r.transcript) for r in found]


def test_festival_goes_on_after_a_text_that_kills_it(tmp_path: Path) -> None:
    try:
        voice = voices.voice_of("festival-kal")
        voices.speak(voice, ["Hello.", "", "Good bye."], tmp_path)
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    assert (tmp_path / "0.segs").is_file()
    assert (tmp_path / "2.segs").is_file()


# Digits


class TestDigits:
    @pytest.fixture(autouse=True)
    def _needs_soundfile(self) -> None:
        pytest.importorskip("soundfile", reason="recordings need the speech extra")

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        for digit in range(10):
            for speaker in ("ann", "bob"):
                for index in range(2):
                    samples = tone(8_000, 100.0 * (digit + 1), 0.05 + 0.01 * index)
                    write_wave(tmp_path / f"{digit}_{speaker}_{index}.wav", samples, 8_000)
        (tmp_path / "README.txt").write_text("not a digit")
        return tmp_path

    def test_words_follow_each_other_exactly(self, folder: Path) -> None:
        made = digits.utterances(folder, 20, seed=0, speakers=("ann", "bob"), lengths=(2, 4))
        assert {speech.speaker for speech in made} == {"ann", "bob"}
        assert {len(speech.segments) for speech in made} == {2, 3, 4}
        for speech in made:
            assert speech.segments.duration * 16_000 == len(speech.samples)
            for start, end, word in speech.segments:
                piece = speech.samples[round(start * 16_000) : round(end * 16_000)]
                peak = np.abs(np.fft.rfft(piece, 16_000)).argmax()
                assert peak == pytest.approx(100 * (digits.WORDS.index(word) + 1), abs=10)

    def test_the_seed_decides(self, folder: Path) -> None:
        first, second, third = (digits.utterances(folder, 5, seed, speakers=("ann",)) for seed in (0, 0, 1))
        assert [s.segments for s in first] == [s.segments for s in second] != [s.segments for s in third]
        for a, b in zip(first, second, strict=True):
            np.testing.assert_array_equal(a.samples, b.samples)

    def test_what_is_wrong_is_said(self, folder: Path) -> None:
        with pytest.raises(DataError, match="got no recording by 'george'; there are ann, bob"):
            digits.utterances(folder, 1, seed=0)
        with pytest.raises(DataError, match="is not there"):
            digits.utterances(folder / "none", 1, seed=0)
        (folder / "empty").mkdir()
        with pytest.raises(DataError, match="got no recording named as"):
            digits.utterances(folder / "empty", 1, seed=0)
        with pytest.raises(ValueError, match="lengths: got"):
            digits.utterances(folder, 1, seed=0, lengths=(3, 2))
        with pytest.raises(ValueError, match="count, speakers: got"):
            digits.utterances(folder, 1, seed=0, speakers=())

    @pytest.mark.skipif(not DATA.is_dir(), reason=f"{DATA} is not there: set STRUCTLOSS_DATA")
    def test_real_people(self) -> None:
        assert not set(digits.TRAIN) & set(digits.TEST)
        for speakers in (digits.TRAIN, digits.TEST):
            made = digits.utterances(DATA, 10, seed=0, speakers=speakers)
            assert {speech.speaker for speech in made} <= set(speakers)
            for speech in made:
                assert 3 <= len(speech.segments) <= 8
                assert speech.samples.dtype == np.float32
                assert 0.05 < np.abs(speech.samples).max() < 1.5
                assert all(0.1 < end - start < 2.5 for start, end, _ in speech.segments)


@pytest.mark.skipif(not DATA.is_dir(), reason="the spoken digits are not there: set STRUCTLOSS_DATA")
def test_words_off_the_shelf() -> None:
    from structloss.reproduce.alignment import off_the_shelf
    from structloss.tasks.alignment import digits

    spoken = digits.utterances(DATA, 6, 0, digits.TEST)
    found = off_the_shelf(spoken, words=True)
    off = [
        abs(place / 100 - time)
        for starts, speech in zip(found, spoken, strict=True)
        for place, time in zip(starts or [math.inf] * len(speech.segments), speech.segments.starts, strict=True)
    ]
    assert sum(distance <= 0.04 for distance in off) / len(off) > 0.3
