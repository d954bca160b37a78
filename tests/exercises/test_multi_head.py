"""Chapter 05's exercises: the answer is right, likely mistakes are named."""

import math

import torch

from bookkit.checks.multi_head import check_question, check_sizes, check_two
from tests.exercises import named_mistakes, right_answers


def asking(*places, strength=12.0, shape=(8, 4)):
    weight = torch.zeros(shape)
    for row, column in places:
        weight[row, column] = strength
    return weight


def mixed(x, w_q, w_k, w_v, scale=None, axis=-1):
    scores = (x @ w_q) @ (x @ w_k).mT / math.sqrt(scale or w_q.size(-1))
    return scores.softmax(axis) @ (x @ w_v)


def joined(parts):
    return parts.transpose(0, 1).flatten(1)


def both(w_q, w_k, w_v, w_o):
    slices = w_o.view(len(w_v), w_v.size(-1), -1)
    return w_q @ w_k.mT / math.sqrt(w_q.size(-1)), w_v @ slices


def scaled(divisor):
    """Multi-head attention, its scores divided by another number."""

    def multi_head(x, w_q, w_k, w_v, w_o):
        scale = divisor(x.size(-1), len(w_q), w_q.size(-1))
        return joined(mixed(x, w_q, w_k, w_v, scale**2)) @ w_o

    return multi_head


def reshaped(x, w_q, w_k, w_v, w_o):
    """One large matrix for all heads, made by a reshape alone."""

    def project(w):
        wide = x @ w.reshape(x.size(-1), -1)
        return wide.unflatten(-1, (len(w), -1)).transpose(0, 1)

    scores = project(w_q) @ project(w_k).mT / math.sqrt(w_q.size(-1))
    return joined(scores.softmax(-1) @ project(w_v)) @ w_o


def three_heads(w_q, w_k, w_v, w_o):
    slices = w_o.split(w_v.size(-1))
    qk = [w_q[i] @ w_k[i].T / math.sqrt(w_q.size(-1)) for i in range(3)]
    return qk, [w_v[i] @ slices[i] for i in range(3)]


def by_einsum(w_q, w_k, w_v, w_o):
    slices = w_o.unflatten(0, (len(w_v), -1))
    qk = torch.einsum("hak,hbk->hab", w_q, w_k) / w_k.shape[-1] ** 0.5
    return qk, torch.einsum("hav,hvb->hab", w_v, slices)


def by_loop(w_q, w_k, w_v, w_o):
    qk, ov, d_v = [], [], w_v.size(-1)
    for i in range(len(w_q)):
        qk.append(w_q[i] @ w_k[i].T / w_q.size(-1) ** 0.5)
        ov.append(w_v[i] @ w_o[i * d_v : (i + 1) * d_v])
    return qk, ov


def altered(qk=lambda qk: qk, ov=lambda ov: ov):
    """The two matrices, one of them changed."""

    def changed(*weights):
        first, second = both(*weights)
        return qk(first), ov(second)

    return changed


def with_slices(slices):
    """The two matrices, with w_o cut up for the heads in another way."""
    return lambda q, k, v, o: (both(q, k, v, o)[0], v @ slices(o, *v.shape))


RIGHT = [
    (check_question, asking((2, 1), strength=20.0).double()),
    (check_question, asking((2, 1)).tolist()),
    (check_sizes, lambda x, q, k, v, o: joined(mixed(x, q, k, v)) @ o),
    (check_sizes, lambda x, q, k, v, o: (joined(mixed(x, q, k, v)) @ o).numpy()),
    (check_two, by_einsum),
    (check_two, by_loop),
    (check_two, lambda *w: [each.flip(0) for each in both(*w)]),  # heads have no order
    (check_two, lambda *w: [each.tolist() for each in both(*w)]),
]

WRONG = [
    (check_question, asking((2, 1)).T, "transposed"),
    (check_question, torch.zeros(4, 4), "rows"),
    (check_question, asking((1, 2)), "swapped"),
    (
        check_question,
        asking((0, 2), (1, 2), (2, 2), (3, 2)),
        "does not attend to the action",
    ),
    (check_question, torch.nn.Linear(8, 4), "not a layer"),
    (check_question, asking((2, 1), strength=-12.0), "sign"),
    (check_question, asking((2, 1), strength=3.0), "in the right place"),
    (
        check_question,
        asking((0, 1), (1, 1), (2, 1), (3, 1), strength=6.0),
        "other words have a query as well",
    ),
    (check_question, asking((2, 0), (2, 1)), "other kinds"),
    (check_question, asking((2, 1), strength=0.0), "All entries are 0"),
    (check_question, asking((0, 1)), "The row of places is empty"),
    (check_question, asking((2, 0)), "does not attend to the action"),
    (check_question, asking((0, 1), (2, 1)), "Other words"),
    (
        check_question,
        asking((2, 1)) + asking((4, 1), strength=5.0),
        "depends on the code",
    ),
    (check_question, "visite", "tensor"),
    (check_question, asking((2, 1), strength=float("inf")), "finite"),
    (check_sizes, lambda x, q, k, v, o: joined(mixed(x, q, k, v, 5)) @ o, "√d_v"),
    (check_sizes, lambda x, q, k, v, o: joined(mixed(x, q, k, v, 8)) @ o, "√d_model"),
    (check_sizes, lambda x, q, k, v, o: joined(mixed(x, q, k, v, 1)) @ o, "nothing"),
    (
        check_sizes,
        lambda x, q, k, v, o: joined(mixed(x, q, k, v, x.size(-1) // len(q))) @ o,
        "divided by √(d_model / h)",
    ),
    (check_sizes, scaled(lambda d, h, d_k: (d / h) ** 0.5), "by √(d_model / h)"),
    (check_sizes, scaled(lambda d, h, d_k: d_k), "divided by d_k"),
    (check_sizes, scaled(lambda d, h, d_k: d_k**-0.5), "which multiplies"),
    (
        check_sizes,
        lambda x, q, k, v, o: joined((x @ q) @ (x @ k).mT @ (x @ v)) @ o,
        "and the scale is, too",
    ),
    (
        check_sizes,
        lambda x, q, k, v, o: joined(mixed(x, q, k, v)) @ o / len(q),
        "the mean over the heads",
    ),
    (check_sizes, scaled(lambda d, h, d_k: 6**0.5), "but not for 2 heads"),
    (check_sizes, reshaped, "does not put the matrices side by side"),
    (
        check_sizes,
        lambda x, q, k, v, o: joined(mixed(x, q, k, v, axis=0)) @ o,
        "over the heads",
    ),
    (
        check_sizes,
        lambda x, q, k, v, o: mixed(x, q, k, v).reshape(len(x), -1) @ o,
        "mixes several words",
    ),
    (
        check_sizes,
        lambda x, q, k, v, o: mixed(x, q, k, v).permute(1, 2, 0).flatten(1) @ o,
        "interleaved",
    ),
    (
        check_sizes,
        lambda x, q, k, v, o: joined(mixed(x, q, k, v, axis=-2)) @ o,
        "over the queries",
    ),
    (check_sizes, lambda x, q, k, v, o: joined(mixed(x, q, k, v)), "not projected"),
    (
        check_sizes,
        lambda x, q, k, v, o: (
            joined((x @ q) @ (x @ k).mT / q.size(-1) ** 0.5 @ (x @ v)) @ o
        ),
        "softmax is missing",
    ),
    (check_sizes, lambda x, q, k, v, o: mixed(x, q, k, v), "shape"),
    (check_sizes, lambda x, q, k, v, o: joined(mixed(x, q, q, v)) @ o, "one matrix"),
    (
        check_sizes,
        lambda x, q, k, v, o: joined(mixed(x, k, q, v)) @ o,
        "keys are swapped",
    ),
    (check_sizes, lambda x, q, k, v, o: x, "compare one head"),
    (
        check_sizes,
        lambda x, q, k, v, o: joined(mixed(x, q, k, v).flip(0)) @ o,
        "reverse order",
    ),
    (
        check_sizes,
        lambda x, q, k, v, o: x + joined(mixed(x, q, k, v)) @ o,
        "You added x",
    ),
    (check_two, altered(qk=lambda qk: qk * 6**0.5), "divided by nothing"),
    (check_two, altered(qk=lambda qk: qk * (6 / 4) ** 0.5), "divided by √d_v"),
    (check_two, altered(qk=lambda qk: qk * (6 / 8) ** 0.5), "divided by √d_model"),
    (check_two, altered(qk=lambda qk: qk / 6**0.5), "divided by d_k"),
    (check_two, altered(qk=lambda qk: qk.mT), "qk is transposed"),
    (check_two, altered(qk=lambda qk: qk.sum(0)), "one qk for all heads"),
    (check_two, altered(ov=lambda ov: ov.sum(0)), "one ov for all heads"),
    (check_two, altered(qk=lambda qk: qk.flip(0)), "qk is wrong"),
    (check_two, lambda *w: both(*w)[::-1], "swapped"),
    (check_two, lambda *w: both(*w)[0], "two tensors"),
    (check_two, altered(qk=lambda qk: qk[:, :6]), "The shape of qk"),
    (check_two, altered(ov=lambda ov: ov.mT), "ov is transposed"),
    (check_two, altered(ov=lambda ov: ov / 3), "number of heads"),
    (check_two, altered(ov=lambda ov: ov.roll(1, 0)), "one head's term"),
    (
        check_two,
        with_slices(lambda o, h, d, k: o.view(k, h, d).transpose(0, 1)),
        "every third row",
    ),
    (
        check_two,
        with_slices(lambda o, h, d, k: o.view(h, k, d).flip(0)),
        "in the reverse order",
    ),
    (check_two, with_slices(lambda o, h, d, k: o[:k]), "the first slice"),
    (check_two, with_slices(lambda o, h, d, k: o), "want transposing"),
    (check_two, three_heads, "but not for 2 heads"),
    (
        check_two,
        with_slices(lambda o, h, d, k: o.reshape(3, 4, 8)),
        "but not for 2 heads",
    ),
    (
        check_two,
        lambda q, k, v, o: (q @ k.mT / 6**0.5, both(q, k, v, o)[1]),
        "but not for 2 heads",
    ),
]


def test_three_dots_for_both_are_no_answer_yet():
    assert check_two(lambda *weights: (..., ...)).kind == "unanswered"


test_right = right_answers(RIGHT)


test_mistake_is_named = named_mistakes(WRONG)
