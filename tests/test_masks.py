import torch
from hypothesis import given
from strategies import lengths, token_ids

from transformer import causal_mask, padding_mask


@given(lengths)
def test_each_position_sees_itself_and_the_past(length) -> None:
    mask = causal_mask(length)
    for query in range(length):
        for key in range(length):
            assert mask[query, key].item() == (key <= query)


@given(token_ids(padded=True))
def test_padding_is_hidden_from_every_query_of_its_own_row_only(ids) -> None:
    mask = padding_mask(ids, pad_id=0)
    seen = mask.expand(len(ids), 2, ids.size(1), ids.size(1))
    for row, sentence in enumerate(ids.tolist()):
        for key, token in enumerate(sentence):
            assert (seen[row, :, :, key] == (token != 0)).all()


def test_masks_meet_by_and() -> None:
    ids = torch.tensor([[5, 6, 0]])
    both = causal_mask(3) & padding_mask(ids, pad_id=0)
    expected = [[True, False, False], [True, True, False], [True, True, False]]
    assert both[0, 0].tolist() == expected


def test_a_mask_is_made_on_the_device_that_is_asked_for() -> None:
    assert causal_mask(2, device="meta").device.type == "meta"
