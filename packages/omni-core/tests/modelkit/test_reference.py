from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from omni_core.errors import RequestError
from omni_core.modelkit.reference import check_samples, resample


def test_a_recording_is_copied_as_float32() -> None:
    samples = np.zeros(100, np.float64)

    checked = check_samples(samples, 100, mono=True)
    wide = check_samples(samples, 100, mono=False)

    assert (checked.dtype, checked.shape, wide.shape) == (np.float32, (100,), (100, 1))
    assert not np.shares_memory(checked, samples)


@pytest.mark.parametrize(
    ("samples", "rate", "mono", "fact"),
    [
        (np.zeros((100, 2)), 100, True, "mono floats"),
        (np.zeros((100, 0)), 100, False, r"\[n, channels\]"),
        (np.zeros((100, 1, 1)), 100, False, r"\[n, channels\]"),
        (np.zeros(100, np.int16), 100, True, "int16"),
        (np.zeros(100), 0, True, "sample rate 0"),
        (np.zeros(99), 100, True, "0.99 s"),
        (np.zeros(3001), 100, True, "30.01 s"),
        (np.full(100, np.nan), 100, True, "not finite"),
    ],
    ids=["stereo", "none", "3d", "int", "rate", "short", "long", "nan"],
)
def test_a_recording_that_cannot_be_used_is_refused(samples: np.ndarray[Any, Any], rate: int, mono: bool, fact: str) -> None:
    with pytest.raises(RequestError, match=fact) as caught:
        check_samples(samples, rate, mono=mono)

    assert caught.value.param == "ref_audio"


def test_the_same_rate_changes_nothing() -> None:
    samples = np.ones(10, np.float32)

    assert resample(samples, 10, 10) is samples
