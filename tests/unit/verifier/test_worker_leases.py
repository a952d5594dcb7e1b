from __future__ import annotations

from contracts.ports import SessionOpened
from contracts.receipt import Receipt
from tests.unit.verifier.desk import Desk
from tests.unit.verifier.rig import Client
from verifier.jobs import Open, Verify


def test_lapsed_leases_are_found_between_turns() -> None:
    desk = Desk()
    desk.ask("open", Open(desk.rig.opening(lease_ms=1500)))
    desk.drain()
    desk.rig.clock.advance_ms(1200)
    desk.worker.step()
    assert len(desk.rig.scripted.slots) == 1
    desk.rig.clock.advance_ms(1200)
    desk.worker.step()
    assert desk.rig.scripted.slots == []


def test_a_lease_does_not_lapse_while_the_callers_own_call_waits() -> None:
    desk = Desk()
    opening = desk.rig.opening((1, 2, 3, 4, 5, 6, 7, 8), session_id="s", lease_ms=1500)
    desk.ask("open", Open(opening))
    desk.worker.step()
    assert "open" not in desk.answers
    desk.rig.clock.advance_ms(60_000)
    desk.drain()
    assert isinstance(desk.answers["open"], SessionOpened)
    desk.ask("verify", Verify(Client(desk.rig.engine, opening, opening.prompt.tolist()).request()))
    desk.rig.clock.advance_ms(60_000)
    desk.drain()
    assert isinstance(desk.answers["verify"], Receipt)
