from __future__ import annotations

from omni_core.modelkit.cache import BoundedCache


def test_a_result_is_made_once() -> None:
    cache: BoundedCache[list[int]] = BoundedCache(2)

    first = cache.get("a", lambda: [1])

    assert cache.get("a", lambda: [2]) is first


def test_the_result_used_longest_ago_goes_first() -> None:
    cache: BoundedCache[int] = BoundedCache(2)
    for key in ("a", "b", "a", "c"):
        cache.get(key, lambda: 1)

    assert cache.get("a", lambda: 2) == 1
    assert cache.get("b", lambda: 2) == 2


def test_a_cache_without_entries_keeps_nothing() -> None:
    cache: BoundedCache[int] = BoundedCache(0)
    cache.get("a", lambda: 1)

    assert cache.get("a", lambda: 2) == 2
