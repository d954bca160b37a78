"""Batches: padding, shifted targets, batches of similar length."""

import hashlib
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from transformer.phrasebook.grammar import phrasebook_examples, sample_pairs
from transformer.text.batches import (
    batches_by_tokens,
    example_length,
    make_batch,
    pad,
    split_by_tokens,
)

sequences = st.lists(st.lists(st.integers(3, 9), max_size=6), min_size=1, max_size=5)


@given(sequences.filter(any), st.integers(0, 2))
def test_pad_keeps_every_sequence(rows, pad_id):
    table = pad(rows, pad_id)
    assert table.dtype == torch.int64
    assert table.shape == (len(rows), max(map(len, rows)))
    for row, ids in zip(table.tolist(), rows, strict=True):
        assert row[: len(ids)] == ids
        assert set(row[len(ids) :]) <= {pad_id}


@pytest.mark.plain  # a generator is no Sequence
def test_pad_reads_a_generator():
    assert pad([each] for each in range(3)).tolist() == [[0], [1], [2]]


@pytest.mark.parametrize("rows", [[], [[]], [[], []]])
def test_pad_refuses_nothing(rows):
    with pytest.raises(ValueError, match=f"got {len(rows)} sequences without"):
        pad(rows)


@pytest.mark.parametrize("special", [(), (9, 10, 11)])
def test_labels_are_the_decoder_input_one_step_ahead(special):
    pad_id, bos_id, eos_id = special or (0, 1, 2)
    batch = make_batch([([3, 4], [5]), ([6], [7, 8])], *special)
    assert batch.source.tolist() == [[3, 4], [6, pad_id]]
    assert batch.decoder_input.tolist() == [[bos_id, 5, eos_id], [bos_id, 7, 8]]
    assert batch.labels.tolist() == [[5, eos_id, pad_id], [7, 8, eos_id]]


def test_an_example_needs_room_for_bos_or_eos():
    assert example_length(([3, 4, 5], [6])) == 3
    assert example_length(([3], [6, 7, 8])) == 4
    assert example_length(([3], [])) == 1


lengths_and_budgets = st.integers(1, 12).flatmap(
    lambda longest: st.tuples(
        st.lists(st.integers(1, longest), max_size=60), st.integers(longest, 60)
    )
)


@given(lengths_and_budgets, st.integers(0, 99))
def test_batches_use_each_index_once_within_the_budget(case, seed):
    lengths, budget = case
    split = split_by_tokens(lengths, budget)
    batches = batches_by_tokens(lengths, budget, random.Random(seed))
    for found in (split, batches):
        every = sorted(index for batch in found for index in batch)
        assert every == list(range(len(lengths)))
        for batch in found:
            assert len(batch) * max(lengths[index] for index in batch) <= budget
    rising = [lengths[index] for batch in split for index in batch]
    assert rising == sorted(lengths)
    assert batches == batches_by_tokens(lengths, budget, random.Random(seed))
    shapes = [
        sorted([lengths[i] for i in batch] for batch in x) for x in (split, batches)
    ]
    assert shapes[0] == shapes[1]  # chance decides who, and in which order


@pytest.mark.parametrize(
    ("lengths", "budget", "sizes"),
    [([2] * 5, 4, [1, 2, 2]), ([1, 1, 3, 3, 3], 6, [1, 2, 2]), ([5], 5, [1])],
)
def test_a_batch_takes_all_that_it_can(lengths, budget, sizes):
    batches = batches_by_tokens(lengths, budget, random.Random(0))
    assert sorted(map(len, batches)) == sizes


def test_equal_lengths_keep_their_order_when_split():
    assert split_by_tokens([2, 1, 2, 1, 2], 4) == [[1, 3], [0, 2], [4]]
    assert split_by_tokens([], 4) == []


def test_equal_lengths_meet_at_random():
    one, other = (batches_by_tokens([3] * 100, 30, random.Random(s)) for s in (0, 1))
    assert not {frozenset(batch) for batch in one} & {frozenset(b) for b in other}
    lengths = [*range(1, 41)]
    widths = [max(b) for b in batches_by_tokens(lengths, 80, random.Random(0))]
    assert widths != sorted(widths)  # not the short ones first


@pytest.mark.plain
@pytest.mark.parametrize(
    ("lengths", "budget", "message"),
    [
        ([3, 9], 8, r"1\.\.8, got 9"),
        ([1, 9], 8, r"1\.\.8, got 9"),
        ([0, 3], 8, r"1\.\.8, got 0"),
        ([3], 0, "batch_tokens .* got 0"),
    ],
)
def test_batches_refuse_what_does_not_fit(lengths, budget, message):
    with pytest.raises(ValueError, match=message):
        batches_by_tokens(lengths, budget, random.Random(0))
    with pytest.raises(ValueError, match=message):
        split_by_tokens(lengths, budget)


@pytest.mark.plain  # the grammar has no shapes
def test_batches_of_a_seed_are_those_of_every_printed_number():
    examples = phrasebook_examples(sample_pairs(500, seed=0))
    lengths = [example_length(example) for example in examples]
    batches = [
        batches_by_tokens(lengths, 300, random.Random(seed)) for seed in (0, "1 2")
    ]
    digest = hashlib.sha256(repr(batches).encode()).hexdigest()
    assert digest[:16] == "a0d9189972e02884"
