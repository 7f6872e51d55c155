"""`python -m matrix`, as the sessions of noxfile.py call it."""

import signal

if __name__ == "__main__":
    # Until a campaign runs there is nothing to tidy up, and an exception in the middle of reading
    # data can be swallowed by the library that reads it. `nohup` and the like are respected.
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    from matrix.commands.cli import main

    main()
