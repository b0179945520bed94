"""One set of phones for all English voices: the 39 of CMUdict without stress, in lower case, and silence."""

SILENCE = "sil"

ARPABET = (
    "aa", "ae", "ah", "ao", "aw", "ay", "b", "ch", "d", "dh", "eh", "er", "ey", "f", "g", "hh", "ih", "iy", "jh", "k",
    "l", "m", "n", "ng", "ow", "oy", "p", "r", "s", "sh", "t", "th", "uh", "uw", "v", "w", "y", "z", "zh",
)  # fmt: skip

# What festival and flite say beyond CMUdict: reduced vowels, syllabic consonants, flaps, and their names of silence.
SYNTHESISED: dict[str, str] = {
    **{phone: phone for phone in ARPABET},
    "ax": "ah", "axr": "er", "ix": "ih", "ux": "uw",
    "el": "l", "em": "m", "en": "n", "dx": "t", "nx": "n", "hv": "hh",
    "pau": SILENCE, "h#": SILENCE, "#": SILENCE, "brth": SILENCE, "ssil": SILENCE,
}  # fmt: skip
