"""Where the head is, and the token that is shared with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from omni_core.engine.remote.settings import HeadAddress, address_towards, addresses, check_head, check_own_address, read_token
from omni_core.errors import ConfigError


def test_token_comes_from_the_environment_and_leaves_it() -> None:
    """SB-10."""
    environ = {"OMNI_TOKEN": "from the environment\n"}

    assert read_token(None, environ) == "from the environment"
    assert environ == {}


def test_given_token_beats_the_environment_and_may_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("in the file\n")

    assert read_token("on the line", {"OMNI_TOKEN": "from the environment"}) == "on the line"
    assert read_token(f"@{tmp_path / 'token'}", {}) == "in the file"


def test_no_token_is_none() -> None:
    assert read_token(None, {}) == ""


def test_unreadable_file_and_short_token_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read") as unreadable:
        read_token(f"@{tmp_path / 'nowhere'}", {})
    with pytest.raises(ConfigError, match="fewer than 8 bytes") as short:
        read_token(None, {"OMNI_TOKEN": "1234567"})
    with pytest.raises(ConfigError, match="fewer than 8 bytes"):
        read_token("", {})

    assert unreadable.value.where == "--omni-token"
    assert short.value.where == "OMNI_TOKEN"


def test_token_is_needed_off_loopback_only() -> None:
    """SB-10."""
    check_head("127.0.0.1", "")
    check_head("localhost", "")
    check_head("192.0.2.1", "a long secret")
    for address in ("192.0.2.1", "2001:db8::1"):
        with pytest.raises(ConfigError, match="there is no token") as refused:
            check_head(address, "")
        assert "OMNI_TOKEN" in refused.value.hint


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "*", ""])
def test_address_that_workers_could_not_use_is_refused(address: str) -> None:
    """SB-10: the head listens at the address that it gives, and nowhere else."""
    with pytest.raises(ConfigError, match="no address of one host"):
        check_head(address, "a long secret")


def test_own_address_is_one_of_this_host() -> None:
    check_own_address("127.0.0.2", "--omni-replica-address")
    with pytest.raises(ConfigError, match="no address of this host") as foreign:
        check_own_address("192.0.2.1", "--omni-replica-address")

    assert foreign.value.where == "--omni-replica-address"


def test_unknown_host_is_an_error_with_the_flag() -> None:
    with pytest.raises(ConfigError, match="not known") as unknown:
        addresses("no.such.host.invalid", "--omni-replica-address")

    assert unknown.value.where == "--omni-replica-address no.such.host.invalid"


def test_address_towards_loopback_is_loopback() -> None:
    assert address_towards("127.0.0.1", 26000) == "127.0.0.1"


def test_address_shows_no_token() -> None:
    """SB-10."""
    address = HeadAddress("::1", 26000, "a long secret")

    assert "secret" not in repr(address) + str(address)
    assert str(address) == "[::1]:26000"
