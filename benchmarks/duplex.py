"""What realtime sessions cost: how many one core sustains, what a hop through the server adds, what an idle one holds.

Run: python benchmarks/duplex.py [--sessions 1 16 64] [--seconds 8] [--idle 500] [--json]

Everything runs in one process and one thread without sockets, from a client's JSON text to the server's, and what counts is
processor time, so that the machine's other work changes nothing. The model is a unit model of 80 ms with eight recurrent layers
of 512 in NumPy: it reads 8 MB of weights for one session as for many, as a real one does. `echo` is a model that costs nothing.

Latency is of a virtual load: units of all sessions arrive evenly on a time line of their own, 12.5 a second for each session,
wait while the server works, and are worked on for as long as that really takes. It is from a unit's arrival to the text of what
it gave.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import gc
import json
import os
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import psutil
from rows import Row, as_json, as_table

from omni_core.deploy.duplex import DuplexPlan, DuplexSettings
from omni_core.deploy.frontends import Frontend
from omni_core.errors import DependencyError
from omni_duplex.manager import Attachment, SessionManager, Tools
from omni_duplex.model import (
    AudioIn,
    AudioOut,
    Capabilities,
    DuplexModel,
    DuplexStream,
    Fence,
    Output,
    ReplicaPort,
    SessionConfig,
)
from omni_duplex.protocol.ga import GaDialect

RATE = 24_000
UNIT_S = 0.08
UNIT = round(RATE * UNIT_S)
WIDTH = 512
LAYERS = 8


@dataclass
class Stream(DuplexStream):
    """One session's state."""

    model: Network
    state: np.ndarray[Any, Any] = field(default_factory=lambda: np.zeros((LAYERS, WIDTH), np.float32))

    async def step(self, unit: AudioIn) -> AsyncIterator[Output]:
        (outputs,) = self.model.forward([(self, unit)])
        for output in outputs:
            yield output

    async def close(self) -> None:
        """Hold nothing that must be freed."""


class Network(DuplexModel):
    """A recurrent network that turns a unit into a unit; without layers it gives back what it hears."""

    plugin_id = "network"

    def __init__(self, layers: int = LAYERS) -> None:
        random = np.random.default_rng(0)
        self._weights = [random.standard_normal((WIDTH, WIDTH), np.float32) / WIDTH**0.5 for _ in range(layers)]

    def capabilities(self, replica_cap: int) -> Capabilities:
        return Capabilities(sessions_per_replica=replica_cap, silence_fills=False)

    async def open(self, config: SessionConfig, replica: ReplicaPort, fence: Fence) -> DuplexStream:
        return Stream(self)

    def forward(self, units: Sequence[tuple[Any, AudioIn]]) -> Sequence[Sequence[Output]]:
        """Return what each unit gives, with one pass over the weights."""
        pcm: Any = np.stack([unit.pcm for _, unit in units])
        if self._weights:
            values: Any = np.tanh(pcm[:, :WIDTH])
            for layer, weight in enumerate(self._weights):
                values = np.tanh(values @ weight + np.stack([stream.state[layer] for stream, _ in units]))
                for row, (stream, _) in zip(values, units, strict=True):
                    stream.state[layer] = row
            pcm = np.tile(values * 0.1, 4)[:, :UNIT]
        return [[AudioOut(row, RATE, unit.fence)] for row, (_, unit) in zip(pcm, units, strict=True)]


class BatchedNetwork(Network):
    """The same, for several sessions at once."""

    async def step_many(self, units: Sequence[tuple[DuplexStream, AudioIn]]) -> Sequence[Sequence[Output]]:
        return self.forward(units)


class Load:
    """Open sessions and the messages that go through them."""

    def __init__(self, model: DuplexModel, sessions: int, ear: Any = None) -> None:
        settings = DuplexSettings(max_sessions=sessions, max_sessions_per_replica=sessions, idle_ttl_s=None)
        frontend = Frontend(0, (), sessions)
        plan = DuplexPlan(settings, (), (frontend,))
        tools = Tools(ear=ear, max_lead_s=None)
        self.manager = SessionManager(model, plan, frontend, lambda group: None, tools)  # type: ignore[arg-type,return-value]
        self._count = sessions
        self.open: list[Attachment] = []
        tone = (np.sin(np.arange(UNIT) / 9) * 9000).astype("<i2").tobytes()
        self._text = json.dumps({"type": "input_audio_buffer.append", "audio": base64.b64encode(tone).decode()})

    async def __aenter__(self) -> Load:
        for _ in range(self._count):
            actor = await self.manager.open(GaDialect(), SessionConfig(model="network", turn_detection=None))
            self.open.append(self.manager.attach(actor))
        for attachment in self.open:
            await attachment.channel.get()  # session.created
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.manager.close()

    async def hop(self, numbers: Sequence[int]) -> None:
        """Let these sessions hear a unit each and wait for what it gave, as text."""
        for number in numbers:
            await self.open[number].actor.receive(json.loads(self._text))
        for number in numbers:
            kind = ""
            while kind != "response.output_audio.delta":
                event = await self.open[number].channel.get()
                assert isinstance(event, dict), f"the session ended with {event}"
                json.dumps(event)
                kind = event["type"]


async def sustained(model: DuplexModel, sessions: int, seconds: float) -> list[float]:
    """Return how many sessions one core would keep up with, of each of several rounds."""
    found = []
    async with Load(model, sessions) as load:
        everyone = range(sessions)
        await load.hop(everyone)
        rounds = 5
        units = max(1, round(seconds / UNIT_S / rounds))
        for _ in range(rounds):
            began = time.process_time()
            for _ in range(units):
                await load.hop(everyone)
            found.append(sessions * units * UNIT_S / (time.process_time() - began))
    return found


async def latencies(model: DuplexModel, sessions: int, seconds: float) -> list[float]:
    """Return the milliseconds that each unit of a virtual load took."""
    found: list[float] = []
    async with Load(model, sessions) as load:
        await load.hop(range(sessions))
        arrivals = [(at * UNIT_S + n * UNIT_S / sessions, n) for at in range(round(seconds / UNIT_S)) for n in range(sessions)]
        now, index = 0.0, 0
        while index < len(arrivals):
            now = max(now, arrivals[index][0])
            last = index + 1
            # What waits by now is taken together where the model can, and never twice for one session.
            while model.batches and last < len(arrivals) and arrivals[last][0] <= now and last - index < sessions:
                last += 1
            began = time.process_time()
            await load.hop([number for _, number in arrivals[index:last]])
            now += time.process_time() - began
            found += [(now - at) * 1000 for at, _ in arrivals[index:last]]
            index = last
    return found


async def idle_memory(sessions: int, ear: Any = None) -> float:
    """Return the KiB that a session holds which does nothing."""
    process = psutil.Process()
    model = Network(0)
    async with Load(model, 20, ear):
        gc.collect()
    before = process.memory_info().rss
    async with Load(model, sessions, ear):
        gc.collect()
        return (process.memory_info().rss - before) / sessions / 1024


def _ears() -> Any:
    try:
        from omni_duplex.vad.ear import silero_ears

        return silero_ears(None)
    except DependencyError:
        return None


async def measure(sessions: Sequence[int], seconds: float, idle: int) -> list[Row]:
    """Return every row."""
    rows = []
    models = {"echo": Network(0), "network": Network(), "network, batched": BatchedNetwork()}
    for count in sessions:
        for name, model in models.items():
            found = await sustained(model, count, seconds)
            rows.append(Row.of(f"sessions one core sustains, {name}, {count} open", found, "sessions"))
    for count in sessions:
        for name, model in models.items():
            found = await latencies(model, count, seconds)
            for percent in (50, 95, 99):
                value = float(np.percentile(found, percent))
                rows.append(Row(f"event in to event out, {name}, {count} open, p{percent}", len(found), value, "ms"))
    rows.append(Row("memory of an idle session", idle, await idle_memory(idle), "KiB"))
    if (ears := _ears()) is not None:
        rows.append(Row("memory of an idle session with an ear", idle, await idle_memory(idle, ears), "KiB"))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--seconds", type=float, default=8.0, help="of audio for each session")
    parser.add_argument("--idle", type=int, default=500, help="idle sessions")
    parser.add_argument("--json", action="store_true", help="print rows as JSON")
    options = parser.parse_args()
    rows = asyncio.run(measure(options.sessions, options.seconds, options.idle))
    print(as_json(rows) if options.json else as_table(rows))


if __name__ == "__main__":
    main()
