"""The `structloss` command, or the sentence that says what it needs: the library itself needs no command line."""

import sys


def main() -> None:
    """Run the command line."""
    try:
        from structloss.cli import app
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in ("typer", "rich", "click"):
            raise
        sys.exit("structloss: the command line needs typer and rich: pip install 'structloss[cli]'")
    app()


if __name__ == "__main__":
    main()
