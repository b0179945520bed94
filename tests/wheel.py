"""Install the wheel with what it depends on and nothing else, and use it as its first user would.

    python tests/wheel.py dist        # the folder that `make wheel` writes

In a new environment: the first Python example of the README runs, importing takes the light road, and every command
that wants an extra says which.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIGHT = "import sys, structloss; print([x for x in ('lightning', 'sklearn', 'matplotlib', 'rich') if x in sys.modules])"


def run(*command: str | Path, ends: int = 0) -> str:
    """What a command printed; an error unless it ended as it should."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, cwd=tempfile.gettempdir())
    if done.returncode != ends:
        sys.exit(f"{' '.join(map(str, command))[:200]}: ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def expect(text: str, wanted: str) -> None:
    """Stop unless the text has what is wanted."""
    if wanted not in text:
        sys.exit(f"got {text!r}, but wanted {wanted!r} in it")
    print(f"  {text.strip().splitlines()[-1] if text.strip() else ''}")


def main() -> None:
    [wheel] = Path(sys.argv[1]).resolve().glob("*.whl")
    example = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert example is not None
    with tempfile.TemporaryDirectory() as folder:
        scripts = Path(folder) / ("Scripts" if sys.platform == "win32" else "bin")
        pip = [scripts / "python", "-m", "pip", "--disable-pip-version-check"]
        run(sys.executable, "-m", "venv", folder)
        run(*pip, "install", "-q", "-c", ROOT / "constraints.txt", wheel)
        print(f"{wheel.name}: installed with {len(run(*pip, 'freeze').splitlines()) - 1} packages that it needs")
        print("the README's first example:")
        run(scripts / "python", "-c", example.group(1))
        expect(run(scripts / "python", "-c", LIGHT), "[]")
        print("without any extra:")
        expect(run(scripts / "structloss", "demo", ends=1), "pip install 'structloss[cli]'")
        run(*pip, "install", "-q", "-c", ROOT / "constraints.txt", f"structloss[cli] @ {wheel.as_uri()}")
        print("with the command line alone:")
        expect(run(scripts / "structloss", "--version"), "structloss ")
        for command, extras in (
            ("demo", "train,sklearn,speech"),
            ("train g2p", "train"),
            ("train speech", "train,speech"),
        ):
            expect(run(scripts / "structloss", *command.split(), ends=2), f"pip install 'structloss[{extras}]'")


if __name__ == "__main__":
    main()
