"""Import modules, so that Python keeps the bytecode of all that they load.

    <environment's python> -s -P probes/precompile.py MODULE...

Every probe is a process of its own, and most of its first seconds would go into compiling the same
thousand modules. Run by the host once for each environment, before any probe and with no git tree
on the path: no probe can write where this bytecode is read from, and none of a candidate patch's
code runs here. A module that can't be imported is none of our business here; a probe will say so.

Standard library only.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys


def main(modules: list[str]) -> int:
    """Import each; the status is 0 whatever came of it."""
    for name in modules:
        package, _, attribute = name.partition(":")
        with contextlib.suppress(BaseException):
            module = importlib.import_module(package)
            if attribute:
                getattr(module, attribute)
    sys.stdout.flush()
    # Exit handlers of what was imported say nothing here, and some have crashed.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
