"""`python -m matrix`, as the sessions of noxfile.py call it."""

import signal
import sys

if __name__ == "__main__":
    # Until a campaign runs there is nothing to tidy up, and an exception in the middle of reading
    # data can be swallowed by the library that reads it. `nohup` and the like are respected.
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    try:
        from matrix.commands.cli import main
    except ModuleNotFoundError as missing:
        sys.exit(
            f"error: {missing.name} is not installed here. Start it by nox, as in `nox -s matrix`, "
            "with .nox/matrix/bin/python after that, or install the group `host` of pyproject.toml."
        )

    main()
