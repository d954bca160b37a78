"""The recurrent translator of the benchmarks: the peer is what it is said to be."""

import dataclasses
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_runs import ROOT, SMALL, equal, state

from transformer.data import pad
from transformer.masks import padding_mask
from transformer.model import Transformer
from transformer.translation import TINY, Lesson, RunFolder, mean_loss

sys.path.insert(0, str(ROOT / "benchmarks"))

import recurrent

pytestmark = pytest.mark.plain  # the package's functions are given another model

SETTINGS = recurrent.Recurrent(**dataclasses.asdict(SMALL))


def model(seed=0, types=12):
    made = dataclasses.replace(SETTINGS, seed=seed, types=types).model(types)
    with torch.no_grad():  # a table of small numbers would make all words alike
        made.table.weight.mul_(4)
    return made.eval()


sentences = st.lists(
    st.lists(st.integers(3, 11), min_size=1, max_size=7), min_size=1, max_size=4
)


def hidden(net, sources, targets):
    source = pad(sources, 0)
    seen = padding_mask(source, 0)
    return net.decode(pad(targets, 0), net.encode(source), seen)


@given(sentences, st.integers(0, 99), st.data())
def test_company_and_padding_change_nothing(sources, seed, data):
    net = model(seed)
    targets = [data.draw(st.lists(st.integers(3, 11), min_size=1)) for _ in sources]
    together = hidden(net, sources, targets)
    for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
        alone = hidden(net, [source], [target])[0]
        torch.testing.assert_close(together[row, : len(target)], alone)


@given(sentences, st.integers(0, 99))
def test_the_past_does_not_change_with_the_future(sources, seed):
    net = model(seed)
    told = [[3, 4, 5, 6]] * len(sources)
    other = [[3, 4, 9, 10]] * len(sources)
    one, two = hidden(net, sources, told), hidden(net, sources, other)
    assert torch.equal(one[:, :2], two[:, :2])
    assert not torch.equal(one[:, 2], two[:, 2])


@given(sentences, st.integers(0, 99))
def test_one_beam_takes_the_likeliest_word(sources, seed):
    net = model(seed)
    for source, said in zip(sources, net.beam_search(sources, 9, 1, 1.0), strict=True):
        logits = net.output(hidden(net, [source], [[1, *said]]))[0]
        logits[:, :2] = -torch.inf
        likeliest = logits.argmax(dim=-1).tolist()
        assert likeliest == [*said, 2] or (len(said) == 9 and likeliest[:9] == said)


@given(sentences, st.integers(0, 99))
def test_a_beam_finds_together_what_it_finds_alone(sources, seed):
    net = model(seed)
    alone = [net.beam_search([source], 9, 3, 1.0)[0] for source in sources]
    assert net.beam_search(sources, 9, 3, 1.0) == alone


def test_it_is_as_large_as_the_transformer_beside_it():
    ours = sum(w.numel() for w in TINY.model(TINY.types).parameters())
    tiny = recurrent.Recurrent(**dataclasses.asdict(TINY)).model(TINY.types)
    assert not isinstance(tiny, Transformer)
    theirs = sum(w.numel() for w in tiny.parameters())
    assert abs(theirs - ours) < 0.01 * ours


def test_a_run_that_was_cut_ends_in_the_same_weights(lessons, tmp_path, monkeypatch):
    recurrent.follow(lessons, SETTINGS, tmp_path / "whole")
    saved = RunFolder.save

    def cut(kept, trainee, step):
        saved(kept, trainee, step)
        if step > 20:
            raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "save", cut)
    with pytest.raises(KeyboardInterrupt):
        recurrent.follow(lessons, SETTINGS, tmp_path / "cut")
    monkeypatch.undo()
    recurrent.follow(lessons, SETTINGS, tmp_path / "cut")
    assert equal(state(tmp_path / "cut"), state(tmp_path / "whole"))
    curve = recurrent.curve(tmp_path / "cut")
    assert [point["epoch"] for point in curve] == [1, 2, 3]
    assert curve[-1]["loss"] < curve[0]["loss"]


def test_the_kept_weights_are_those_of_the_lowest_loss(lessons, tmp_path):
    recurrent.follow(lessons, SETTINGS, tmp_path)
    translator = recurrent.best(tmp_path, lessons, SETTINGS)
    lesson = Lesson(translator.model, 0.0, False).eval()
    loss = mean_loss(lesson, lessons.check, SETTINGS.part_tokens)
    lowest = min(point["checked"] for point in recurrent.curve(tmp_path))
    assert round(loss, 4) == lowest
    sentences = [source for source, _ in lessons.check_pairs]
    assert translator.translate(sentences, 1) == [
        translator.translate([sentence], 1)[0] for sentence in sentences
    ]


def test_its_folder_is_not_taken_for_a_transformers(lessons, tmp_path):
    RunFolder(tmp_path, SMALL, {})
    with pytest.raises(ValueError, match="another run: its network is None, here rec"):
        RunFolder(tmp_path, SETTINGS, {})
