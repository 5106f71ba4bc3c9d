from __future__ import annotations

from typing import Any

import pytest

from omni_core.capabilities import MtpSampling

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.engine

GREEDY = MtpSampling(do_sample=False)
VOCAB = 8


def _choose(rows: list[MtpSampling], logits: Any, uniforms: Any) -> list[int]:
    from omni_core.modelkit.code_sampling import CodeSampling

    return CodeSampling.of(rows, VOCAB, torch.device("cpu")).choose(logits, uniforms).tolist()


def _draw(row: MtpSampling, logits: Any, count: int) -> Any:
    uniforms = torch.rand(count, VOCAB, generator=torch.Generator().manual_seed(1))
    return torch.tensor(_choose([row] * count, logits.expand(count, VOCAB), uniforms)).bincount(minlength=VOCAB)


@pytest.fixture
def logits() -> Any:
    return torch.tensor([0.0, 3.0, 1.0, 2.9, -1.0, 0.5, -9.0, 2.0])


@pytest.mark.parametrize(
    "row",
    [GREEDY, MtpSampling(temperature=0), MtpSampling(top_k=1), MtpSampling(top_p=1e-6)],
    ids=["no sampling", "temperature 0", "top-k 1", "tiny top-p"],
)
def test_settings_that_leave_one_candidate_take_the_most_likely(row: MtpSampling, logits: Any) -> None:
    assert _draw(row, logits, 50).tolist() == [0, 50, 0, 0, 0, 0, 0, 0]


def test_codes_come_as_often_as_their_probability_says(logits: Any) -> None:
    counts = _draw(MtpSampling(temperature=2.0), logits, 20_000)

    expected = torch.softmax(logits / 2.0, -1) * 20_000
    assert ((counts - expected).abs() < 5 * expected.sqrt() + 5).all()


def test_top_k_keeps_the_best(logits: Any) -> None:
    counts = _draw(MtpSampling(top_k=3, temperature=5.0), logits, 500)

    assert counts.nonzero().flatten().tolist() == [1, 3, 7]


def test_top_p_keeps_the_fewest_that_reach_it(logits: Any) -> None:
    probabilities = torch.softmax(logits, -1).sort(descending=True).values.cumsum(-1)
    between = float((probabilities[1] + probabilities[2]) / 2)

    counts = _draw(MtpSampling(top_p=between), logits, 500)

    assert counts.nonzero().flatten().tolist() == [1, 3, 7]


def test_company_does_not_change_a_row(logits: Any) -> None:
    generator = torch.Generator().manual_seed(3)
    rows = [MtpSampling(top_k=3), GREEDY, MtpSampling(top_p=0.7), MtpSampling(temperature=3.0), MtpSampling(top_k=5, top_p=0.9)]
    batch = torch.randn(len(rows), VOCAB, generator=generator)
    uniforms = torch.rand(len(rows), VOCAB, generator=generator)

    alone = [_choose([row], batch[i : i + 1], uniforms[i : i + 1])[0] for i, row in enumerate(rows)]

    assert _choose(rows, batch, uniforms) == alone


def test_the_edges_of_the_random_numbers_are_harmless(logits: Any) -> None:
    for value in (0.0, float(torch.nextafter(torch.tensor(1.0), torch.tensor(0.0)))):
        (code,) = _choose([MtpSampling(top_k=2)], logits[None], torch.full((1, VOCAB), value))
        assert code in (1, 3)


def test_without_numbers_some_are_drawn(logits: Any) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        codes = _choose([MtpSampling(temperature=5.0)] * 40, logits.expand(40, VOCAB), None)

    assert len(set(codes)) > 3


def test_penalty_lowers_what_was_there_before(logits: Any) -> None:
    from omni_core.modelkit.code_sampling import CodeSampling

    rows = [MtpSampling(do_sample=False, repetition_penalty=1.2), MtpSampling(do_sample=False)]
    seen = torch.zeros(2, VOCAB, dtype=torch.bool)
    seen[:, 1] = True

    chosen = CodeSampling.of(rows, VOCAB, torch.device("cpu")).choose(logits.expand(2, VOCAB), None, seen)

    assert chosen.tolist() == [3, 1]


def test_penalty_lowers_negative_logits_too() -> None:
    from omni_core.modelkit.code_sampling import CodeSampling

    settings = CodeSampling.of([MtpSampling(do_sample=False, repetition_penalty=2.0)], 2, torch.device("cpu"))

    assert settings.choose(torch.tensor([[-1.0, -1.5]]), None, torch.tensor([[True, False]])).tolist() == [1]
