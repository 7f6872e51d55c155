"""The launcher of one node: torchrun, and a switch that ends it with its ranks.

    python -s -P probes/cp_agent.py FOLDER [NODE]

`FOLDER` has the order that `probes/cp_launch.py` wrote; every node sees it. The node's number is
given, or is that of the Slurm task. The agent keeps a connection to who gave the order: when that
closes, for whatever reason and on whichever node, the agent kills itself, and the kernel its ranks
with it. Over the connection goes where the nodes meet, and back what torchrun says of ranks that
ended otherwise than they should.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any, Final

ROOM: Final = Path(__file__).resolve().parent
ORDER: Final = "order.json"
NODE: Final = "MATRIX_CP_NODE"
ADDRESSES_LIMIT_S: Final = 20.0


def make_probes_importable() -> None:
    """Make `probes` importable from its folder without touching `sys.path`, as the runner does."""
    spec = importlib.util.spec_from_file_location("runner", ROOM / "runner.py")
    assert spec is not None
    assert spec.loader is not None
    runner = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(runner)
    runner.make_package_importable(ROOM)


def connect(order: dict[str, Any], **hello: Any) -> socket.socket:
    """A connection to who gave the order, by the first of its addresses that answers.

    Raises:
        OSError: none does.
    """
    error: OSError = OSError("no address is known")
    for host in order["hosts"]:
        try:
            made = socket.create_connection((host, order["port"]), timeout=ADDRESSES_LIMIT_S)
        except OSError as refused:
            error = refused
            continue
        made.settimeout(None)
        # A node that vanishes closes nothing by itself.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        send(made, {"token": order["token"], **hello})
        return made
    raise error


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    """Send one message, a line of JSON."""
    connection.sendall(json.dumps(message).encode() + b"\n")


def output_to(file: Path) -> None:
    """Send all output of this process and its children to a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def main() -> None:
    """Start torchrun where the nodes meet; it never returns."""
    folder = Path(sys.argv[1])
    node = int(sys.argv[2] if len(sys.argv) > 2 else os.environ["SLURM_PROCID"])
    make_probes_importable()
    from probes.runner import die_with_the_host

    die_with_the_host()
    order = json.loads((folder / ORDER).read_text(encoding="utf-8"))
    output_to(folder / f"agent-{node}.log")
    host = "127.0.0.1" if order["one_host"] else socket.gethostname()
    with socket.socket() as looked:
        looked.bind(("", 0))
        port = looked.getsockname()[1]
    control = connect(order, agent=node, pid=os.getpid(), host=host, port=port)
    lines = control.makefile("r", encoding="utf-8")
    endpoint = json.loads(lines.readline() or "{}").get("endpoint")
    if endpoint is None:
        os._exit(1)
    threading.Thread(target=_obey, args=(lines,), daemon=True).start()
    send(control, _run(folder, node, order, host=host, endpoint=endpoint))
    sys.stderr.flush()
    os._exit(0)


def _obey(lines: Any) -> None:
    """Pass on questions to ranks; die when nobody is there to ask them."""
    try:
        for line in lines:
            # Only processes of this node are named.
            os.kill(int(json.loads(line)["where"]), signal.SIGUSR1)
    finally:
        os.kill(os.getpid(), signal.SIGKILL)


def _run(
    folder: Path, node: int, order: dict[str, Any], *, host: str, endpoint: str
) -> dict[str, Any]:
    """What torchrun came to: `ranks`, the exit statuses of those that failed, or `broke`."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    command = [
        f"--nnodes={order['nodes']}",
        f"--nproc-per-node={order['ranks_per_node']}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={endpoint}",
        f"--rdzv-id={order['token'][:12]}",
        f"--rdzv-conf=is_host={int(node == 0)},join_timeout={order['start_limit_s']:.0f}",
        f"--local-addr={host}",
        "--max-restarts=0",
        "--monitor-interval=0.1",
        "--no-python",
        sys.executable,
        "-s",
        "-P",
        str(ROOM / "cp_rank.py"),
        str(folder),
    ]
    # Where nodes meet, they are numbered anew; a rank says on which of ours it is.
    os.environ[NODE] = str(node)
    try:
        torchrun(command)
    except ChildFailedError as error:
        return {"ranks": {str(rank): one.exitcode for rank, one in error.failures.items()}}
    except BaseException as error:  # noqa: BLE001 - told to who gave the order
        return {"broke": f"{type(error).__name__}: {error}"[:500]}
    return {"ranks": {}}


if __name__ == "__main__":
    main()
