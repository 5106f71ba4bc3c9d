from __future__ import annotations

from typing import Any

import pytest

from omni_core.capabilities import ModelCapabilities, MtpCapability, MtpSampling

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.engine

OWN = MtpSampling(temperature=0.7, top_k=9)
ASKED = MtpSampling(do_sample=False)


@pytest.fixture
def talker() -> Any:
    """A talker whose frames are the sampled id twice, and whose rows are the sum of all that stands beside them."""
    from omni_core.modelkit.frame_talker import FrameTalker
    from omni_core.modelkit.history import RowHistory

    class Talker(FrameTalker):
        capabilities = ModelCapabilities(computes_inputs=True, mtp=MtpCapability(output_key="codes", num_codes=2, sampling=OWN))
        in_place = ("own", "never_built")

        def __init__(self) -> None:
            super().__init__()
            self.model = torch.nn.Sequential(torch.nn.Linear(3, 3))
            self.own = torch.nn.Sequential(torch.nn.Linear(3, 3))
            self.history = RowHistory(slots=2, positions=4, num_codes=2, text=0)
            self.steps: list[Any] = []

        def make_frames(self, step: Any) -> Any:
            self.steps.append(step)
            return step.token_ids[:, None].repeat(1, 2)

        def next_rows(self, step: Any, codes: Any) -> Any:
            return step.conditioning + codes.sum(1, keepdim=True)

        def _unused(self, *_: Any) -> None:
            """What `read_capabilities` looks for and nobody calls here."""

        omni_begin = omni_embed = omni_end = omni_condition = _unused

    return Talker()


def _asked() -> tuple[Any, ...]:
    return torch.tensor([4, 5]), torch.zeros(2, 3), torch.ones(2, 3), torch.full((2, 3), 0.5)


def test_rows_follow_from_the_frames_that_were_made(talker: Any) -> None:
    rows, codes = talker.mtp(*_asked(), req_infos=[ASKED, OWN], slots=torch.tensor([1, 0]), positions=torch.tensor([2, 3]))

    assert codes.tolist() == [[4, 4], [5, 5]]
    assert rows[:, 0].tolist() == [8.5, 10.5]
    (step,) = talker.steps
    assert (step.sampling, step.slots.tolist(), step.positions.tolist()) == ([ASKED, OWN], [1, 0], [2, 3])
    assert (step.hidden.sum(), step.embeds.sum(), step.uniforms) == (6, 0, None)


def test_the_models_own_settings_are_those_of_rows_that_say_nothing(talker: Any) -> None:
    talker.mtp(*_asked())

    assert talker.steps[0].sampling == [OWN, OWN]
    assert talker.steps[0].slots.shape == (0,)


def test_frames_are_kept_for_the_rows_that_read_them(talker: Any) -> None:
    talker.omni_record(torch.tensor([1]), torch.tensor([3]), torch.tensor([[7, 8]]))

    assert talker.history.codes[1, 3].tolist() == [7, 8]


def test_parts_that_are_overwritten_in_place_are_no_modules_whose_weights_are_taken_away(talker: Any) -> None:
    found = list(talker.modules())

    assert talker.model[0] in found
    assert talker.history in found
    assert not {talker.own, talker.own[0]} & set(found)
    assert {"own.0.weight", "model.0.weight"} <= {name for name, _ in talker.named_parameters()}
