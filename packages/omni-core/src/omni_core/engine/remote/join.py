"""The worker's side of registration: it asks until the head answers, and returns a connection and a place in the group."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from omni_core.engine.channel import Channel
from omni_core.engine.messages import ToHost
from omni_core.engine.remote.connection import connect_tcp
from omni_core.engine.remote.messages import (
    NONCE_BYTES,
    SAME_VERSION,
    Challenge,
    Hello,
    Refused,
    Register,
    ToWorker,
    Welcome,
    decode,
    difference,
    is_proven,
    preamble,
    prove,
)
from omni_core.engine.remote.settings import HeadAddress, WorkerOptions, addresses
from omni_core.errors import ConfigError, DeadlineError, ServiceError

logger = logging.getLogger(__name__)

ANSWER_S = 3.0
"""Seconds without an answer after which the handshake begins anew: the head may have been started again meanwhile."""
PAUSE_S = 0.5
REMINDER_S = 30.0


@dataclass(frozen=True)
class Link:
    """A worker's place at the head."""

    channel: Channel[ToHost]
    group: str
    replica: int


async def join(context: zmq.asyncio.Context, options: WorkerOptions, offer: Callable[[], Register]) -> Link:
    """Register with the head and connect to it.

    Args:
        context: ZeroMQ's.
        options: Where the head is, and for how long to try.
        offer: Returns what to register, with an empty proof. It is called in a thread, since it may look up names.

    Raises:
        ConfigError: The head refuses this worker, or is none that knows the token.
        DeadlineError: There was no head within `head_timeout_s`.
    """
    loop = asyncio.get_running_loop()
    begun = loop.time()
    reminded, why = begun, "nobody answers"
    while True:
        try:
            async with asyncio.timeout_at(begun + options.head_timeout_s):
                link = await _try(context, options, offer)
        except TimeoutError:
            pass
        except (OSError, ServiceError) as error:
            why = str(error)
        else:
            if isinstance(link, Link):
                return link
            why = link or why
        now = loop.time()
        if now >= begun + options.head_timeout_s:
            raise DeadlineError(
                f"stage {options.stage_id} found no head at {options.address} within {options.head_timeout_s:g} s: {why}",
                hint="start the head, correct --omni-master-address and --omni-master-port, or raise --omni-head-timeout",
            )
        if now - reminded >= REMINDER_S:
            reminded = now
            logger.warning("still no head at %s: %s", options.address, why)
        await asyncio.sleep(PAUSE_S)


async def _try(context: zmq.asyncio.Context, options: WorkerOptions, offer: Callable[[], Register]) -> Link | str:
    """Go through the handshake once; return why it is worth another try if it was not answered."""
    dealer = context.socket(zmq.DEALER)
    try:
        await _configure(dealer, options.address)
        nonce = secrets.token_bytes(NONCE_BYTES)
        answer = await _ask(dealer, Hello(nonce), options.address)
        if not isinstance(answer, Challenge):
            return _reason(answer, options.address)
        nonces = nonce + answer.nonce
        answer = await _ask(dealer, prove(await asyncio.to_thread(offer), options.address.token, nonces), options.address)
        if not isinstance(answer, Welcome):
            return _reason(answer, options.address)
    finally:
        dealer.close()
    if not is_proven(answer, options.address.token, nonces):
        where = f"the head at {options.address}"
        raise ConfigError("it does not know the token of this worker", where=where, hint="see who listens there")
    return Link(await _connect(options, answer), answer.group, answer.replica)


async def _connect(options: WorkerOptions, answer: Welcome) -> Channel[Any]:
    try:
        return await connect_tcp(
            options.address.host,
            answer.port,
            answer.ticket,
            ToHost,
            f"the head at {options.address}",
            own_address=options.replica_address,
            silence_s=options.heartbeat_timeout_s,
        )
    except OSError as error:
        reason = error.strerror or "there was no answer"
        where = f"port {answer.port} for stage messages at {options.address.host}"
        raise ServiceError(f"the head answers, but there is no connection: {reason}", where=where) from error


async def _configure(dealer: zmq.asyncio.Socket, address: HeadAddress) -> None:
    try:
        # In a thread: a name server may take its time, and other replicas of this worker have to be heard meanwhile.
        ip = (await asyncio.to_thread(addresses, address.host))[0]
    except ConfigError as error:
        # Names of a cluster are known only once the head's container is there.
        raise ServiceError(error.message) from error
    dealer.setsockopt(zmq.LINGER, 0)
    dealer.setsockopt(zmq.IPV6, int(":" in ip))
    dealer.connect(f"tcp://[{ip}]:{address.port}" if ":" in ip else f"tcp://{ip}:{address.port}")


async def _ask(dealer: zmq.asyncio.Socket, question: Any, address: HeadAddress) -> Challenge | Welcome | Refused | None:
    """Send a message and return the answer; None where there is none in time."""
    try:
        async with asyncio.timeout(ANSWER_S):
            await dealer.send(msgspec.msgpack.encode(question))
            data = await dealer.recv()
    except TimeoutError:
        return None
    who = f"the head at {address}"
    different = difference(preamble(data))
    if different:
        raise ConfigError(f"its version is not this worker's: {different}", where=who, hint=SAME_VERSION)
    answer: Challenge | Welcome | Refused = decode(data, ToWorker, who)
    return answer


def _reason(answer: Challenge | Welcome | Refused | None, address: HeadAddress) -> str:
    """Return why there is no place at the head yet.

    Raises:
        ConfigError: There never will be.
    """
    if not isinstance(answer, Refused):
        return "nobody answers" if answer is None else "it answered with something else"
    if answer.final:
        raise ConfigError(f"the head refuses this worker: {answer.message}", where=f"the head at {address}", hint=answer.hint)
    return answer.message
