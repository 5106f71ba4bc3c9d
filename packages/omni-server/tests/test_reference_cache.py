"""The cache of reference audio (TT-19): owned arrays, two limits, least recently used first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from omni_core.speech import ReferenceAudio
from omni_server.reference_cache import ReferenceCache, key_of


def clip(value: float, samples: int = 4) -> ReferenceAudio:
    return ReferenceAudio(np.full(samples, value, np.float32), 16000)


def key(name: Any) -> bytes:
    return key_of(str(name))


def test_limits_are_the_contracts() -> None:
    cache = ReferenceCache()

    assert (cache.max_entries, cache.max_bytes) == (1024, 512 * 1024 * 1024)


def test_hits_are_independent_of_each_other_and_of_what_was_put_in() -> None:
    cache, given = ReferenceCache(), clip(1.0)
    cache.put(key("a"), given)

    given.samples[:] = 2.0
    first, second = cache.get(key("a")), cache.get(key("a"))
    assert first is not None
    assert second is not None
    first.samples[:] = 3.0

    assert second.samples.tolist() == [1.0] * 4
    found = cache.get(key("a"))
    assert found is not None
    assert (found.samples.tolist(), found.sample_rate) == ([1.0] * 4, 16000)


def test_arrays_are_owned_contiguous_float32() -> None:
    wide = np.arange(8, dtype=np.float64)[::2]
    cache = ReferenceCache()
    cache.put(key("a"), ReferenceAudio(wide, 8000))

    found = cache.get(key("a"))

    assert found is not None
    assert found.samples.dtype == np.float32
    assert found.samples.flags.c_contiguous
    assert found.samples.flags.owndata
    assert cache.nbytes == 16


def test_the_clip_used_longest_ago_goes_first() -> None:
    cache = ReferenceCache(max_entries=2)
    cache.put(key("a"), clip(1))
    cache.put(key("b"), clip(2))
    cache.get(key("a"))

    cache.put(key("c"), clip(3))

    assert [cache.get(key(name)) is not None for name in "abc"] == [True, False, True]
    assert (len(cache), cache.nbytes) == (2, 32)


def test_bytes_are_a_limit_of_their_own() -> None:
    cache = ReferenceCache(max_bytes=40)
    for name in "abc":
        cache.put(key(name), clip(1))

    assert [cache.get(key(name)) is not None for name in "abc"] == [False, True, True]

    cache.put(key("d"), clip(1, samples=10))

    assert (len(cache), cache.nbytes) == (1, 40)


def test_clip_larger_than_the_limit_is_not_kept_and_drives_nothing_out() -> None:
    cache = ReferenceCache(max_bytes=40)
    cache.put(key("a"), clip(1))

    cache.put(key("b"), clip(1, samples=11))

    assert cache.get(key("b")) is None
    assert cache.get(key("a")) is not None


def test_clip_that_is_put_again_replaces_its_former_self() -> None:
    cache = ReferenceCache()
    cache.put(key("a"), clip(1, samples=8))
    cache.put(key("a"), clip(2))

    found = cache.get(key("a"))

    assert found is not None
    assert found.samples.tolist() == [2.0] * 4
    assert (len(cache), cache.nbytes) == (1, 16)


@pytest.mark.parametrize(("entries", "size"), [(0, 100), (-1, 100), (10, 0), (10, -1)])
def test_limit_of_zero_or_less_turns_it_off(entries: int, size: int) -> None:
    cache = ReferenceCache(entries, size)
    cache.put(key("a"), clip(1))

    assert not cache.is_on
    assert cache.get(key("a")) is None


def test_keys_tell_parts_from_each_other() -> None:
    assert key_of("a", 12) != key_of("a1", 2) != key_of("a", 1, 2)
    assert key_of("\ud800") == key_of("\ud800")
    assert len(key_of("x" * 1_000_000)) == 32
