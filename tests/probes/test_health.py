from __future__ import annotations

import pytest

from tests.probes.asking import Asker, component

torch = pytest.importorskip("torch", reason="no CPU build of torch is on offer on this machine")


def test_a_well_device_passes(asker: Asker) -> None:
    asker.components = {"torch": component("2", module="torch")}
    reply = asker.here("health", device="cpu", megabytes=4, n=128)
    assert reply.end["status"] == "pass", reply.end
    assert len(reply.parts) == 4
    assert reply.controls == {"a changed element": True}


def test_an_unwell_device_fails(asker: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    asker.components = {"torch": component("2", module="torch")}
    right = torch.Tensor.to

    def flips_a_bit(tensor: object, *arguments: object, **keywords: object) -> object:
        moved = right(tensor, *arguments, **keywords)
        if arguments == (torch.device("cpu"),) and moved.dtype == torch.bfloat16:
            moved = moved.clone()
            moved[0, 0] = -moved[0, 0]
        return moved

    monkeypatch.setattr(torch.Tensor, "to", flips_a_bit)
    reply = asker.here("health", device="cpu", megabytes=4, n=128)
    assert (reply.end["status"], reply.end["reason"]) == ("fail", "numerics")
    assert reply.parts["product in float32"]["status"] == "pass"
