"""Payloads come back as they were sent, and bytes that are no payload are refused without harm."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from omni_core import payload as payload_module
from omni_core.errors import ServiceError
from omni_core.payload import EncodedPayload, decode_payload, encode_payload

DTYPES = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="?"),
    hnp.unsigned_integer_dtypes(endianness="?"),
    hnp.floating_dtypes(endianness="?"),
    hnp.complex_number_dtypes(endianness="?"),
    hnp.datetime64_dtypes(endianness="?"),
    hnp.byte_string_dtypes(max_len=7),
    hnp.unicode_string_dtypes(max_len=7, endianness="?"),
)
ARRAYS = hnp.arrays(DTYPES, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=20),
    st.binary(max_size=20),
)
VALUES = st.recursive(
    PLAIN | ARRAYS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
PAYLOADS = st.dictionaries(st.text(max_size=8), VALUES, max_size=5)


def assert_same(sent: Any, got: Any) -> None:
    if isinstance(sent, np.ndarray):
        assert isinstance(got, np.ndarray)
        assert got.dtype == sent.dtype
        assert got.shape == sent.shape
        assert got.tobytes() == sent.tobytes()
    elif isinstance(sent, dict):
        assert list(got) == list(sent)
        for key in sent:
            assert_same(sent[key], got[key])
    elif isinstance(sent, list):
        assert len(got) == len(sent)
        for one, other in zip(sent, got, strict=True):
            assert_same(one, other)
    else:
        assert type(got) is type(sent)
        assert got == sent


def forge(values: Any, arrays: list[list[Any]], body: bytes) -> bytes:
    """Return bytes with a header that may lie."""
    header = msgspec.msgpack.encode([values, arrays])
    front = struct.pack("<Q", len(header)) + header
    return front + bytes(-len(front) % 64) + body


@given(PAYLOADS)
def test_a_payload_comes_back_as_it_was_sent(payload: dict[str, Any]) -> None:
    assert_same(payload, decode_payload(encode_payload(payload)))


@given(PAYLOADS, PAYLOADS)
def test_a_payload_whose_form_was_met_before_comes_back_as_it_was_sent(payload: dict[str, Any], other: dict[str, Any]) -> None:
    first = encode_payload(payload)
    encode_payload(other)

    second = encode_payload(payload)

    assert second == first
    assert_same(payload, decode_payload(first))
    assert_same(payload, decode_payload(second))


@pytest.mark.parametrize(
    ("one", "other"),
    [(0.0, -0.0), (1, True), (0, False), (1, 1.0), ("a", b"a"), (np.zeros(2, "<f4"), np.zeros(2, ">f4"))],
    ids=str,
)
def test_values_that_are_equal_and_not_the_same_have_forms_of_their_own(one: Any, other: Any) -> None:
    for value in (one, other, one):
        got = decode_payload(encode_payload({"x": value, "y": np.ones(3)}))["x"]

        assert_same(value, got)
        assert repr(got) == repr(value)


def test_arrays_of_one_form_keep_their_own_bytes() -> None:
    for start in range(3):
        wide = np.arange(start, start + 12, dtype=np.int16).reshape(3, 4)

        for array in (wide[:, :2], wide.T[:3, :2], np.asfortranarray(wide[:, :2])):
            assert_same(array, decode_payload(encode_payload({"x": array}))["x"])


def test_no_more_forms_are_kept_than_there_is_room_for() -> None:
    for size in range(payload_module._FORMS_KEPT + 10):
        sent = {"x": np.zeros(size, np.uint8)}
        assert_same(sent, decode_payload(encode_payload(sent)))

    assert len(payload_module._sent) <= payload_module._FORMS_KEPT
    assert len(payload_module._read) <= payload_module._FORMS_KEPT


def test_nothing_that_a_request_said_is_kept() -> None:
    for words in ("a text of someone's own", b"bytes of someone's own"):
        decode_payload(encode_payload({"x": np.ones(2), "words": words}))
        decode_payload(encode_payload({"x": np.ones(2), "more": {"words": words}}))

    kept = repr((payload_module._sent, payload_module._read))
    assert "someone" not in kept


def test_a_form_that_was_met_before_is_held_against_each_buffer() -> None:
    whole = encode_payload({"x": np.arange(40)})
    decode_payload(whole)

    for cut in (whole[:-1], whole + b"x", whole[:64], whole[:9]):
        with pytest.raises(ServiceError):
            decode_payload(cut)


@given(PAYLOADS)
def test_nbytes_is_the_exact_size(payload: dict[str, Any]) -> None:
    encoded = EncodedPayload(payload)

    assert len(encoded.to_bytes()) == encoded.nbytes


@given(PAYLOADS)
def test_pieces_are_in_order_and_do_not_overlap(payload: dict[str, Any]) -> None:
    end = 0

    for offset, piece in EncodedPayload(payload).pieces():
        assert offset >= end
        end = offset + len(piece)


@given(PAYLOADS, st.data())
def test_every_truncation_is_refused(payload: dict[str, Any], data: st.DataObject) -> None:
    whole = encode_payload(payload)
    length = data.draw(st.integers(0, len(whole) - 1))

    with pytest.raises(ServiceError):
        decode_payload(whole[:length])


@given(PAYLOADS)
def test_bytes_after_a_payload_are_refused(payload: dict[str, Any]) -> None:
    with pytest.raises(ServiceError):
        decode_payload(encode_payload(payload) + bytes(64))


@settings(max_examples=300)
@given(PAYLOADS, st.data())
def test_corrupt_bytes_give_a_payload_or_a_service_error(payload: dict[str, Any], data: st.DataObject) -> None:
    whole = bytearray(encode_payload(payload))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))

    try:
        got = decode_payload(bytes(whole))
    except ServiceError:
        return
    assert isinstance(got, dict)


@settings(max_examples=300)
@given(st.binary(max_size=300))
def test_noise_is_refused(noise: bytes) -> None:
    with pytest.raises(ServiceError):
        decode_payload(noise)


MAP = {"m": {"x": {"a": 0}}}
LIES = {
    "negative offset": forge(MAP, [["<f4", [4], -64, 16]], bytes(16)),
    "offset between the arrays' places": forge(MAP, [["<f4", [2], 8, 8]], bytes(16)),
    "negative size": forge(MAP, [["<f4", [4], 64, -16]], bytes(48)),
    "size beyond the buffer": forge(MAP, [["<f4", [400], 0, 1600]], bytes(16)),
    "shape larger than the size": forge(MAP, [["<f4", [2**40], 0, 16]], bytes(16)),
    "shape smaller than the size": forge(MAP, [["<f4", [3], 0, 16]], bytes(16)),
    "shape left to be inferred": forge(MAP, [["<f4", [-1], 0, 16]], bytes(16)),
    "two negative dimensions": forge(MAP, [["<f4", [-2, -2], 0, 16]], bytes(16)),
    "shape that overflows": forge(MAP, [["<f4", [2**62, 2**62, 16], 0, 0]], b""),
    "empty shape that overflows": forge(MAP, [["<f4", [0, 2**62, 2**62], 0, 0]], b""),
    "too many dimensions": forge(MAP, [["<f4", [1] * 1000, 0, 4]], bytes(4)),
    "objects": forge(MAP, [["|O8", [2], 0, 16]], bytes(16)),
    "structured dtype": forge(MAP, [["i4,i4", [2], 0, 16]], bytes(16)),
    "dtype of no size": forge(MAP, [["<U0", [2**40], 0, 0]], b""),
    "dtype of absurd size": forge(MAP, [["<U9999999999", [0], 0, 0]], b""),
    "unknown dtype": forge(MAP, [["<f3", [2], 0, 6]], bytes(6)),
    "torch attribute that is no dtype": forge(MAP, [["load", [2], 0, 8]], bytes(8)),
    "array index beyond the arrays": forge({"m": {"x": {"a": 1}}}, [["<f4", [4], 0, 16]], bytes(16)),
    "negative array index": forge({"m": {"x": {"a": -1}}}, [["<f4", [4], 0, 16]], bytes(16)),
    "array index that is a bool": forge({"m": {"x": {"a": False}}}, [["<f4", [4], 0, 16]], bytes(16)),
    "array index that is a text": forge({"m": {"x": {"a": "0"}}}, [["<f4", [4], 0, 16]], bytes(16)),
    "unknown node": forge({"m": {"x": {"z": 0}}}, [], b""),
    "node with two entries": forge({"m": {}, "a": 0}, [], b""),
    "key that is no text": forge({"m": {1: 2}}, [], b""),
    "extension type": forge({"m": {"x": msgspec.msgpack.Ext(5, b"x")}}, [], b""),
    "list at the top": forge([1, 2], [], b""),
    "header of absurd size": struct.pack("<Q", 2**63) + bytes(120),
    "deep nesting": struct.pack("<Q", 100_000) + b"\x91" * 100_000 + bytes(56),
    "list of absurd length": struct.pack("<Q", 6) + b"\x92\xdd\xff\xff\xff\xff" + bytes(50),
}


@pytest.mark.parametrize("data", LIES.values(), ids=LIES)
def test_a_header_that_lies_is_refused(data: bytes) -> None:
    with pytest.raises(ServiceError):
        decode_payload(data)


def test_arrays_are_views_of_the_buffer() -> None:
    data = bytearray(encode_payload({"x": np.zeros(4, np.int32)}))
    got = decode_payload(data)["x"]

    got[0] = 7

    assert decode_payload(data)["x"][0] == 7


def test_arrays_of_read_only_bytes_are_read_only() -> None:
    got = decode_payload(encode_payload({"x": np.zeros(4)}))["x"]

    assert not got.flags.writeable


def test_arrays_are_aligned_wherever_the_buffer_lies() -> None:
    data = encode_payload({"x": np.arange(8.0)})
    shifted = memoryview(bytearray(b"." + data))[1:]

    got = decode_payload(shifted)["x"]

    assert got.flags.aligned
    assert got.tolist() == list(range(8))


def test_a_strided_array_travels_by_its_values() -> None:
    array = np.arange(24).reshape(4, 6)[::2, ::-3]

    got = decode_payload(encode_payload({"x": array}))["x"]

    assert got.tolist() == array.tolist()


def test_tuples_come_back_as_lists_and_scalars_as_plain_values() -> None:
    got = decode_payload(encode_payload({"t": (1, "a"), "f": np.float32(0.5), "b": np.bool_(True), "i": np.int16(-3)}))

    assert got == {"t": [1, "a"], "f": 0.5, "b": True, "i": -3}


def test_a_scalar_without_a_plain_form_comes_back_as_an_array() -> None:
    got = decode_payload(encode_payload({"c": np.complex64(1 + 2j), "d": np.datetime64("2030-01-02")}))

    assert got["c"].shape == ()
    assert got["c"][()] == 1 + 2j
    assert got["d"].dtype == np.dtype("<M8[D]")


UNFIT = {
    "a set": {"meta": {"tags": {1}}},
    "an object array": {"meta": {"tags": np.array([None])}},
    "a structured array": {"meta": {"tags": np.zeros(2, "i4,f4")}},
    "a masked array": {"meta": {"tags": np.ma.masked_equal(np.arange(3), 1)}},
    "a function": {"meta": {"tags": len}},
}


@pytest.mark.parametrize("payload", UNFIT.values(), ids=UNFIT)
def test_a_value_that_cannot_travel_is_named_by_its_place(payload: dict[str, Any]) -> None:
    with pytest.raises(ServiceError, match=r"payload\.meta\.tags"):
        encode_payload(payload)


@pytest.mark.parametrize("payload", [{"x": 2**64}, {"x": "\ud800"}, {1: "x"}, {"x": {2: 3}}, [1], None], ids=repr)
def test_other_unfit_payloads_are_service_errors(payload: Any) -> None:
    with pytest.raises(ServiceError):
        encode_payload(payload)


def test_a_payload_that_contains_itself_is_a_service_error() -> None:
    payload: dict[str, Any] = {}
    payload["x"] = payload

    with pytest.raises(ServiceError, match="deeply"):
        encode_payload(payload)


@pytest.mark.engine
@pytest.mark.filterwarnings("ignore:ComplexHalf support:UserWarning")
@pytest.mark.parametrize("writable", [True, False])
def test_dtypes_that_only_torch_has_come_back_as_tensors(writable: bool) -> None:
    torch = pytest.importorskip("torch")
    names = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "complex32")
    sent = {name: torch.arange(6).to(getattr(torch, name)).reshape(2, 3) for name in names}
    data = encode_payload(sent)

    got = decode_payload(bytearray(data) if writable else data)

    for name, tensor in sent.items():
        assert got[name].dtype == tensor.dtype
        assert got[name].shape == tensor.shape
        assert got[name].view(torch.uint8).tolist() == tensor.view(torch.uint8).tolist()


@pytest.mark.engine
def test_other_tensors_come_back_as_arrays() -> None:
    torch = pytest.importorskip("torch")
    sent = {"grad": torch.ones(2, 3, requires_grad=True), "turned": torch.arange(6).reshape(2, 3).T}
    sent |= {"conj": torch.tensor([1 + 2j]).conj(), "empty": torch.empty(0, 4, dtype=torch.bfloat16)}

    got = decode_payload(encode_payload(sent))

    assert got["grad"].tolist() == [[1.0] * 3] * 2
    assert got["turned"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert got["conj"].tolist() == [1 - 2j]
    assert got["empty"].shape == (0, 4)
    assert got["empty"].dtype == torch.bfloat16


@pytest.mark.engine
def test_a_tensor_without_memory_is_a_service_error() -> None:
    torch = pytest.importorskip("torch")

    with pytest.raises(ServiceError, match=r"payload\.x"):
        encode_payload({"x": torch.empty(3, device="meta")})
    with pytest.raises(ServiceError, match=r"payload\.x"):
        encode_payload({"x": torch.eye(3).to_sparse()})
