"""What a command needs beyond the library's own dependencies: all that is missing, in one sentence."""

from collections.abc import Iterable
from importlib.util import find_spec

PACKAGES = {  # extra: its packages, module and name
    "train": {name: name for name in ("lightning", "safetensors", "matplotlib", "tensorboardX")},
    "sklearn": {"sklearn": "scikit-learn"},
    "speech": {"kaldi_native_fbank": "kaldi-native-fbank", "soundfile": "soundfile", "pocketsphinx": "pocketsphinx"},
    "plot": {"matplotlib": "matplotlib"},
}
OF_TASKS = {"speech": ("train", "speech")}  # what training a task needs, where it is more than the extra `train`


def need(command: str, extras: Iterable[str]) -> None:
    """Raise a ModuleNotFoundError that names every package that is missing and the one command that installs them.

    Example:
        >>> need("structloss demo", ["train", "sklearn"])
    """
    missing = {
        extra: [name for module, name in PACKAGES[extra].items() if find_spec(module) is None] for extra in extras
    }
    lacking = [extra for extra, names in missing.items() if names]
    if lacking:
        names = list(dict.fromkeys(name for extra in lacking for name in missing[extra]))
        are = "is not installed" if len(names) == 1 else "are not installed"
        raise ModuleNotFoundError(
            f"{command} needs {', '.join(names)}, which {are}: pip install 'structloss[{','.join(lacking)}]'"
        )
