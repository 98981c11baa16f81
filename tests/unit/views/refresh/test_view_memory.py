"""What is kept of groups is written again only where that has paid off."""

from __future__ import annotations

from iscp.views.refresh.view_memory import SERVED_LEAST, StoringWorth


def test_it_is_written_again_once_it_has_served_often_enough_on_average() -> None:
    worth = StoringWorth()
    assert worth.write()
    worth.served += SERVED_LEAST - 1
    assert not worth.write()
    worth.served += 1
    assert worth.write()
    assert not worth.write(), "both of them have to have paid off"
    worth.served += SERVED_LEAST
    assert worth.write()
