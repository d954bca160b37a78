"""The exercises of chapter 8: right answers pass, likely wrong ones are named."""

import math

import numpy as np
import pytest
import torch

from bookkit.checks.masks import check_both, check_detector, check_layers, check_window
from tests.exercises import named_mistakes


def triangle(ids, diagonal=0):
    length = ids.size(1)
    return torch.ones(length, length, dtype=torch.bool).tril(diagonal)


def words(ids, pad_id):
    return (ids != pad_id)[:, None, None, :]


def sees_future(model, ids, compare=lambda j: slice(0, j), tokens=None):
    for j in tokens or range(1, ids.size(1)):
        changed = ids.clone()
        changed[:, j] = (changed[:, j] + 1) % 10
        moved = model(changed)[:, compare(j)] - model(ids)[:, compare(j)]
        if moved.numel() and moved.abs().max() > 1e-5:
            return True
    return False


def largest(model, ids, measure):
    """The largest `measure` of a change before the token that was changed."""
    found = []
    for j in range(1, ids.size(1)):
        changed = ids.clone()
        changed[:, j] = (changed[:, j] + 1) % 10
        found.append(measure((model(changed) - model(ids))[:, :j]).max())
    return max(found)


def without_abs(model, ids):
    return largest(model, ids, lambda change: change) > 1e-5


def turned_round(model, ids):
    return largest(model, ids, lambda change: -change) > 1e-5


def compared(differ):
    """A detector that changes each token in turn and compares all outputs before it."""

    def sees(model, ids):
        for j in range(1, ids.size(1)):
            changed = ids.clone()
            changed[:, j] = (changed[:, j] + 1) % 10
            if differ(model(changed)[:, :j], model(ids)[:, :j]):
                return True
        return False

    return sees


def lengths_differ(a, b):
    return not torch.allclose(a.norm(dim=-1), b.norm(dim=-1), atol=1e-4)


def any_change(model, ids):
    changed = (ids + 1) % 10
    return (model(changed) - model(ids)).abs().max() > 1e-5


def all_at_once(model, ids):
    changed = (ids + 1) % 10
    changed[:, 0] = ids[:, 0]
    return ((model(changed) - model(ids))[:, 0].abs() > 1e-5).any()


generator = torch.Generator().manual_seed(1)


def at_random(model, ids):
    for j in range(1, ids.size(1)):
        changed = ids.clone()
        changed[:, j] = torch.randint(10, (1,), generator=generator)
        if (model(changed) - model(ids))[:, :j].abs().max() > 1e-5:
            return True
    return False


def tolerant(model, ids):
    return largest(model, ids, torch.abs) > 0.5


def with_the_changed_one(model, ids):
    return sees_future(model, ids, compare=lambda j: slice(0, j + 1))


def two_before(model, ids):
    return sees_future(model, ids, compare=lambda j: slice(0, max(j - 1, 0)))


def only_the_last(model, ids):
    return sees_future(model, ids, tokens=[ids.size(1) - 1])


def only_the_neighbour(model, ids):
    return sees_future(model, ids, compare=lambda j: slice(j - 1, j))


def in_place(model, ids):
    for j in range(1, ids.size(1)):
        past = model(ids)[:, :j]
        ids[:, j] = (ids[:, j] + 1) % 10
        if (model(ids)[:, :j] - past).abs().max() > 1e-5:
            return True
    return False


def prefixes(model, ids):
    """Another right detector: a prefix alone must give what it gives inside."""
    return any(
        (model(ids)[:, :end] - model(ids[:, :end])).abs().max() > 1e-5
        for end in range(1, ids.size(1))
    )


def window_mask(length, window):
    everything = torch.ones(length, length, dtype=torch.bool)
    return everything.tril() & everything.triu(1 - window)


def back(length, nearest, farthest):
    """The mask of the positions so many places back."""
    places = torch.arange(length)[:, None] - torch.arange(length)
    return (places >= nearest) & (places <= farthest)


def layers_needed(length, window):
    return math.ceil((length - 1) / (window - 1))


@pytest.mark.parametrize(
    ("check", "answer"),
    [
        (check_both, (lambda ids, pad_id: words(ids, pad_id) & triangle(ids),)),
        (
            check_both,
            (lambda ids, pad: words(ids, pad) & words(ids, pad).mT & triangle(ids),),
        ),
        (check_detector, (sees_future,)),
        (check_detector, (prefixes,)),
        (check_detector, (compared(lambda a, b: not a.allclose(b, atol=1e-4)),)),
        (check_detector, (compared(lambda a, b: (a - b).norm() > 1e-4),)),
        (check_detector, (lambda m, i: torch.tensor([prefixes(m, i)]),)),
        (check_detector, (lambda m, i: np.bool_(prefixes(m, i)),)),
        (check_detector, (lambda m, i: int(prefixes(m, i)),)),
        (check_both, (lambda i, pad: (words(i, pad) & triangle(i)).numpy(),)),
        (check_both, (lambda i, pad: (words(i, pad) & triangle(i)).tolist(),)),
        (check_window, (window_mask,)),
        (check_window, (lambda n, w: window_mask(n, w).numpy(),)),
        (check_window, (lambda n, w: window_mask(n, w).tolist(),)),
        (check_layers, (layers_needed,)),
    ],
)
def test_a_right_answer_passes(check, answer):
    assert repr(check(*answer)).startswith("✓")


WRONG = [
    (check_window, lambda n, w: window_mask(n, w + 1), "One column too many"),
    (check_window, lambda n, w: ~window_mask(n, w), "Inverted"),
    (check_window, lambda n, w: window_mask(n, n), "causal mask"),
    (check_window, lambda n, w: window_mask(n, w) | window_mask(n, w).T, "ahead too"),
    (check_window, lambda n, w: window_mask(n, w).float(), "should be boolean, of"),
    (check_window, lambda n, w: window_mask(n, 1), "draw the rows"),
    (check_window, lambda n, w: window_mask(n, w - 1), "One column too few"),
    (check_window, lambda n, w: window_mask(n, w).T, "the upper one"),
    (
        check_window,
        lambda n, w: window_mask(6, w) & (torch.ones(n, n) > 0),
        "It runs on the first example, but for `n` = 5, `w` = 2 your code raised",
    ),
    (check_window, lambda n, w: back(n, 1, w), "attends to itself, too"),
    (check_layers, lambda n, w: -(-n // w), "includes the position itself"),
    (check_layers, lambda n, w: max(0, -(-(n - w) // (w - 1))), "One layer too few"),
    (check_layers, lambda n, w: float(layers_needed(n, w) + 2), "10 layers, not 12."),
    (check_layers, lambda n, w: 6, "Measured for"),
    (check_layers, lambda n, w: math.ceil(n / (w - 1)), "length - 1 places away"),
    (check_layers, lambda n, w: (n - 1) // (w - 1) + 1, "where it divides evenly"),
    (check_both, lambda ids, pad: ~(words(ids, pad) & triangle(ids)), "Inverted"),
    (check_both, lambda ids, pad: words(ids, pad) | triangle(ids), "the masks with or"),
    (check_both, lambda ids, pad: words(ids, pad) & triangle(ids).T, "upper one"),
    (
        check_both,
        lambda ids, pad: words(ids, pad).mT & triangle(ids),
        "padded queries, the",
    ),
    (check_both, lambda ids, pad: words(ids, pad) & triangle(ids, 1), "should predict"),
    (
        check_both,
        lambda ids, pad: words(ids, pad) & triangle(ids, -1),
        "attend to itself",
    ),
    (check_both, words, "padding mask alone"),
    (check_both, lambda ids, pad: triangle(ids), "causal mask alone"),
    (check_both, lambda ids, pad: (words(ids, pad) & triangle(ids))[:, 0], "heads"),
    (
        check_both,
        lambda ids, pad: (words(ids, pad) & triangle(ids)).float(),
        "boolean",
    ),
    (check_both, lambda ids, pad: words(ids, 3) & triangle(ids), "use pad_id"),
    (check_both, lambda ids, pad: words(ids, 0) & triangle(ids), "You masked id 0"),
    (
        check_both,
        lambda ids, pad: words(ids, pad).expand(-1, 1, ids.size(1), -1),
        "future is still visible",
    ),
    (
        check_both,
        lambda ids, pad: triangle(ids).expand(len(ids), 1, -1, -1),
        "padding is still visible",
    ),
    (check_both, lambda ids, pad: ids.nothing, "AttributeError"),
    (check_both, lambda ids, pad: True, "a tensor of booleans, not a bool"),
    (check_both, lambda ids, pad: (ids != pad) & triangle(ids), "fit side by side"),
    (
        check_both,
        lambda ids, pad: words(ids, pad) & ~triangle(ids),
        "the future alone",
    ),
    (
        check_both,
        lambda ids, pad: ~words(ids, pad) & ~triangle(ids),
        "Both masks are inverted",
    ),
    (
        check_both,
        lambda ids, pad: words(ids, pad) & torch.ones(5, 5).tril().bool(),
        "first example written in?",
    ),
    (check_both, lambda ids, pad: ~words(ids, pad) & triangle(ids), "!= became =="),
    (check_detector, lambda m, i: sees_future(m, i, tokens=range(2, 8)), "second"),
    (check_detector, without_abs, "smaller"),
    (check_detector, turned_round, "larger"),
    (check_detector, compared(lambda a, b: (a - b).sum().abs() > 1e-5), "the sum, or"),
    (
        check_detector,
        compared(lambda a, b: abs(a.mean() - b.mean()) > 1e-6),
        "number by number",
    ),
    (check_detector, compared(lengths_differ), "the length"),
    (check_detector, compared(lambda a, b: abs(a.norm() - b.norm()) > 1e-4), "length"),
    (
        check_detector,
        compared(lambda a, b: (a - b)[0, :, 0].abs().max() > 1e-5),
        "into the last number",
    ),
    (
        check_detector,
        compared(lambda a, b: (a - b)[0, :, -1].abs().max() > 1e-5),
        "into the first number",
    ),
    (
        check_detector,
        compared(lambda a, b: (a.argmax(-1) != b.argmax(-1)).any()),
        "not the place of the largest",
    ),
    (check_detector, lambda m, i: not sees_future(m, i), "the wrong way round"),
    (check_detector, lambda model, ids: True, "calls every model leaking"),
    (check_detector, any_change, "compare only the outputs before it"),
    (check_detector, all_at_once, "compare all outputs before it"),
    (check_detector, at_random, "to a different one"),
    (check_detector, lambda m, i: [sees_future(m, i)], "True or False, not a list"),
    (check_detector, lambda m, i: str(sees_future(m, i)), "without quotes"),
    (check_detector, lambda m, i: 5, "True or False, not 5"),
    (check_detector, tolerant, "A small leak"),
    (check_detector, with_the_changed_one, "honest causal model"),
    (check_detector, two_before, "off by one"),
    (check_detector, only_the_last, "every token in turn"),
    (check_detector, only_the_neighbour, "last token to the first"),
    (check_detector, lambda model, ids: False, "without any mask"),
    (check_detector, in_place, "changed `ids` in place"),
    (check_detector, lambda model, ids: model(ids), "not a tensor of shape"),
]


test_a_wrong_answer_is_named = named_mistakes(WRONG)
