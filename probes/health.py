"""Is this GPU well?

Uses torch alone, none of the software under test: memory that keeps what is written to it, copies
through pinned memory and back, and products in float32 and bfloat16 against the CPU. Asked before a
combination is blamed, to tell a broken machine from a broken combination.

Products of n x n matrices are compared with float64 on the CPU. The error of an element is at most
n 2^-24 times the same product of absolute values (sums in float32, in any order), and in bfloat16
one rounding of the result more, 2^-8 of its value.

Control: one changed element must be noticed.
"""

from __future__ import annotations

from typing import Any, Final

from probes.devices import use_device, wait
from probes.session import Session

PROBE: Final = {
    "id": "health",
    "needs": ["gpu:sm90", "torch"],
    "required": False,
    "group": "health",
    "time_limit_s": 120,
    "parameters": {
        "quick": {"device": "cuda", "megabytes": 256, "n": 512},
        "thorough": {"device": "cuda", "megabytes": 8192, "n": 2048},
    },
}


def run(probe: Session) -> None:
    """Memory, copies, products."""
    torch = probe.load("torch")
    device = use_device(probe, torch)
    n = int(probe.parameters["n"])
    random = torch.Generator().manual_seed(probe.seed)

    with probe.check("memory keeps what is written") as check:
        with probe.tested("call", "write and read memory"):
            count = int(probe.parameters["megabytes"]) * (1 << 18)
            written = torch.arange(count, dtype=torch.int32, device=device)
            inverted = written.bitwise_not()
            sums = (written + inverted).ne(-1).sum().item()
            wait(torch, device)
        check.expect(sums == 0, "numerics", f"{sums} of {count} numbers changed")
        del written, inverted

    one = torch.randn((n, n), generator=random)
    other = torch.randn((n, n), generator=random)
    with probe.check("copies through pinned memory") as check:
        with probe.tested("call", "copy to the device and back"):
            pinned = one.pin_memory() if device.type == "cuda" else one
            back = pinned.to(device, non_blocking=True).cpu()
        check.expect(torch.equal(back, one), "numerics", "a copy came back changed")

    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        with probe.check(f"product in {name}") as check:
            a, b = one.to(dtype), other.to(dtype)
            with probe.tested("call", f"multiply in {name}"):
                product = (a.to(device) @ b.to(device)).cpu()
            exceeds = _exceeds(torch, a, b, product)
            check.measure["elements_out_of_bounds_count"] = exceeds
            check.expect(exceeds == 0, "numerics", f"{exceeds} elements are out of bounds")

    changed = (one @ other).clone()
    changed[n // 2, n // 3] += 0.5
    probe.control("a changed element", failed=_exceeds(torch, one, other, changed) == 1)
    if device.type == "cuda":
        probe.measure(gpu_name=torch.cuda.get_device_name(), torch_cuda=torch.version.cuda)


def _exceeds(torch: Any, a: Any, b: Any, product: Any) -> int:
    """How many elements of a product are further from the exact one than rounding explains."""
    a, b = a.double(), b.double()
    exact = a @ b
    bound = a.shape[1] * 2.0**-24 * (a.abs() @ b.abs())
    if product.dtype == torch.bfloat16:
        bound = bound + 2.0**-8 * exact.abs()
    return int(((product.double() - exact).abs() > bound).sum().item())
