"""What a worker is told, and its share of what all may take on."""

from __future__ import annotations

import pytest

from pipeline.settings import Settings
from pipeline.workers.orders import Orders, share_of

SETTINGS = Settings(workers=3, api_keys="me:k7Qz-2m9Xw-41bVtRp8LcYd", output_mode="obsidian-xml")
NOT_UTF8 = Settings(dump_events="\udcff")


@pytest.mark.parametrize("settings", [SETTINGS, NOT_UTF8])
def test_orders_arrive_as_they_were_given(settings: Settings) -> None:
    orders = Orders(2, settings, (5, 6), 7, 1, ("ws://127.0.0.1:1",), "codex", "a name", "/w")
    assert Orders.from_json(orders.to_json()) == orders


@pytest.mark.parametrize(
    ("whole", "part"), [(0, 0), (1, 1), (2, 1), (3, 1), (4, 2), (256, 86), (300, 100)]
)
def test_a_limit_is_divided_and_rounded_up(whole: int, part: int) -> None:
    limits = ("concurrency", "concurrency_per_key", "queue_size", "requests_per_minute")
    of_all = Settings(workers=3, **dict.fromkeys(limits, whole), codex_hold_turns_max=whole)  # type: ignore[arg-type]
    of_one = share_of(of_all, "/somewhere/store")
    divided = [getattr(of_one, name) for name in (*limits, "codex_hold_turns_max")]
    assert divided == [part] * 5
    assert (of_one.store, of_one.store_mb) == ("/somewhere/store", of_all.store_mb)
