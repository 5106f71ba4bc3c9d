"""A step's codes and hidden states on their way from the scheduler to the output processor."""

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


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_hidden_states_find_their_requests_long_ones_without_a_copy(dtype: str) -> None:
    import torch

    from omni_core.engine.ar.wire import SHORT_BYTES, CapturedRows, pack_states, unpack

    lengths = [None, 3, 1, None, SHORT_BYTES, 1, 2]
    states = [None if n is None else torch.randn(2, n, 4).to(getattr(torch, dtype)) for n in lengths]
    for size in (1, 3, 128):
        outputs = [
            SimpleNamespace(request_id=str(index), pooling_output=None if rows is None else CapturedRows(0, rows))
            for index, rows in enumerate(states)
        ]
        pack_states(outputs, size)
        long = outputs[4].pooling_output
        packed = [output.pooling_output for output in outputs if output.pooling_output is not None]
        found = {}
        for base in range(0, len(outputs), size):
            found |= dict(unpack(outputs[base : base + size]))

        assert states[4] is not None
        assert long.data_ptr() == states[4].data_ptr()
        assert len(packed) == {1: 5, 3: 4, 128: 2}[size]
        assert set(found) == {str(index) for index, rows in enumerate(states) if rows is not None}
        assert all(torch.equal(found[str(index)], rows) for index, rows in enumerate(states) if rows is not None)
        assert all(output.pooling_output is None for output in outputs)


def test_a_part_of_a_prompt_is_no_output_and_its_statistics_go_to_the_next() -> None:
    import torch

    from omni_core.engine.ar.client import ArOutputProcessor

    seen = []
    request = SimpleNamespace()
    base = SimpleNamespace(request_states={"a": request}, omni_rows={"a": []})

    class Processor(ArOutputProcessor):
        def __init__(self) -> None:
            self.__dict__.update(vars(base))

    def output(tokens: list[int], stats: object, events: list[str] | None) -> SimpleNamespace:
        rows = torch.zeros(2, 1, 4)
        return SimpleNamespace(
            request_id="a", new_token_ids=tokens, finish_reason=None, prefill_stats=stats, events=events, pooling_output=rows
        )

    parent = ArOutputProcessor.__mro__[1]
    processor = Processor()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parent, "process_outputs", lambda self, outputs: seen.append(outputs))
        processor.process_outputs([output([], "stats", ["queued"])])
        processor.process_outputs([output([], None, ["scheduled"])])
        last = output([7], None, None)
        processor.process_outputs([last])
        processor.process_outputs([output([8], None, None)])

    assert [len(outputs) for outputs in seen] == [0, 0, 1, 1]
    assert (last.prefill_stats, last.events) == ("stats", ["queued", "scheduled"])
    assert seen[3][0].events is None
    assert len(processor.omni_rows["a"]) == 4
