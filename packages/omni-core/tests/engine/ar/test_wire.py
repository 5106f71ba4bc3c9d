"""A step's codes on their way from the scheduler to the output processor."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

pytestmark = pytest.mark.engine


def test_every_row_finds_its_request_in_slices_of_any_size() -> None:
    from omni_core.engine.ar.wire import pack, unpack

    codes = np.arange(40, dtype=np.int32).reshape(10, 4)
    numbers = [None, 3, None, 0, 9, 5, None, 2]

    for size in (1, 3, 8, 128):
        outputs = [SimpleNamespace(request_id=str(index), pooling_output=number) for index, number in enumerate(numbers)]
        pack(outputs, codes, size)
        found = {}
        for base in range(0, len(outputs), size):
            found |= {name: row.tolist() for name, row in unpack(outputs[base : base + size])}

        assert found == {str(i): codes[number].tolist() for i, number in enumerate(numbers) if number is not None}
        assert all(output.pooling_output is None for output in outputs)


def test_a_step_without_codes_packs_nothing() -> None:
    from omni_core.engine.ar.wire import pack, unpack

    outputs = [SimpleNamespace(request_id="a", pooling_output=None)]

    pack(outputs, np.empty((0, 4), dtype=np.int32), 128)

    assert list(unpack(outputs)) == []
