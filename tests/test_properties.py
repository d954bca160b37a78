"""What must hold whatever the shapes, lengths, masks and weights."""

import itertools
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import (
    attention_inputs,
    models,
    one_head,
    ragged,
    seeds,
    several_heads,
    shake,
    token_ids,
    vocab_size,
)
from torch import Tensor, nn
from torch.func import functional_call
from torch.testing import assert_close

from transformer import (
    DecoderLayer,
    EncoderLayer,
    MultiHeadAttention,
    Transformer,
    TransformerConfig,
    attention_weights,
    causal_mask,
    padding_mask,
    scaled_dot_product_attention,
)
from transformer.decoding.search import as_batch
from transformer.decoding.step import CachedDecoder
from transformer.training.config import TrainingConfig
from transformer.training.loop import train
from transformer.training.loss import label_smoothed_loss

orders = st.permutations(range(7))
in_both_modes = pytest.mark.parametrize(
    "training", [False, True], ids=["eval", "train"]
)
each_depth = pytest.mark.parametrize("depth", [1, 2, 3, 4])


def close(found: Tensor, expected: Tensor) -> None:
    assert_close(found, expected, rtol=0, atol=1e-10)


def with_noise(seed: int, model: nn.Module, *inputs: Tensor) -> Tensor:
    """The same dropout each time: it depends on the seed and the shapes alone."""
    torch.manual_seed(seed)
    return model(*inputs)


def others(ids: Tensor) -> Tensor:
    """Random tokens, each another than the one in its place."""
    step = torch.randint(1, vocab_size - 3, ids.shape)
    return 3 + (ids - 3 + step) % (vocab_size - 3)


# The past and the future


@in_both_modes
@each_depth
@settings(max_examples=12)
@given(st.data())
def test_the_past_does_not_change_with_the_future(depth, training, data) -> None:
    model = data.draw(models(decoder_layers=st.just(depth), dropout=0.3))
    model.train(training)
    source = data.draw(token_ids(padded=True))
    target = data.draw(token_ids(batch=len(source), least=2))
    at, seed = data.draw(st.integers(1, target.size(1) - 1)), data.draw(seeds)
    changed = target.clone()
    changed[:, at:] = others(target[:, at:])
    with torch.no_grad():
        before = with_noise(seed, model, source, target)
        after = with_noise(seed, model, source, changed)
    assert after[:, :at].equal(before[:, :at])
    if not training:  # where dropout may drop the token that is another
        assert not after[:, at:].equal(before[:, at:])


@pytest.mark.plain  # checked shapes would make it slow
@in_both_modes
@each_depth
@settings(max_examples=8)
@given(st.data())
def test_the_past_has_no_gradient_from_the_future(depth, training, data) -> None:
    model = data.draw(models(decoder_layers=st.just(depth), dropout=0.3))
    model.train(training)
    source = data.draw(token_ids(padded=True))
    target = data.draw(token_ids(batch=len(source), least=2))
    placed: list[Tensor] = []

    def remember(module: nn.Module, inputs: object, out: Tensor) -> None:
        out.retain_grad()
        placed.append(out)

    model.position.register_forward_hook(remember)
    for at in range(1, target.size(1)):
        logits = model(source, target)
        (torch.randn_like(logits) * logits)[:, :at].sum().backward()
        of_source, of_target = placed[-2:]
        assert (of_target.grad[:, at:] == 0).all()
        if not training:  # where dropout may drop all there is
            assert (of_target.grad[:, at - 1] != 0).any()
            assert (of_source.grad != 0).any()


# Padding


@in_both_modes
@given(models(dropout=0.3), token_ids(padded=True), st.data(), seeds)
def test_what_is_under_padding_never_matters(
    training, model, source, data, seed
) -> None:
    model.train(training)
    target = data.draw(token_ids(padded=True, batch=len(source)))
    source_mask, real = padding_mask(source, 0), target != 0

    def outputs(noise: float) -> Tensor:
        with torch.no_grad():
            torch.manual_seed(seed)
            memory = model.encode(source)
            memory = memory + noise * (source == 0)[..., None]
            return model.decode(target, memory, source_mask)[real]

    before = outputs(0.0)
    with torch.no_grad():  # the vectors that padding is given, on both sides
        model.source_embedding.table.weight[0] += 10 * torch.randn(())
        model.target_embedding.table.weight[0] -= 10 * torch.randn(())
    assert outputs(100.0).equal(before)


@pytest.mark.plain  # checked shapes would make it slow
@given(models(), token_ids(padded=True), st.data(), st.integers(1, 5))
def test_more_padding_changes_nothing(model, source, data, extra) -> None:
    target = data.draw(token_ids(padded=True, batch=len(source)))
    longer = nn.functional.pad(source, (0, extra))
    further = nn.functional.pad(target, (0, extra))
    with torch.no_grad():
        before = model(source, target)
        close(model(longer, target), before)
        close(model(longer, further)[:, : target.size(1)], before)


# The batch


@pytest.mark.plain  # checked shapes would make it slow
@given(models(), token_ids(padded=True), st.data())
def test_company_in_the_batch_does_not_matter(model, source, data) -> None:
    target = data.draw(token_ids(padded=True, batch=len(source)))
    with torch.no_grad():
        together = model(source, target)
        for row, (ids, labels) in enumerate(zip(source, target, strict=True)):
            ids, labels = ids[ids != 0], labels[labels != 0]
            alone = model(ids[None], labels[None])
            close(together[row : row + 1, : len(labels)], alone)


# Attention


@given(st.one_of(one_head, several_heads()), orders)
def test_permuting_keys_and_values_together_changes_nothing(case, order) -> None:
    attend, _, query, key, value, mask = case
    order = [index for index in order if index < key.size(-2)]
    close(
        attend(query, key[..., order, :], value[..., order, :], mask[..., order]),
        attend(query, key, value, mask),
    )


@given(st.one_of(one_head, several_heads()), orders)
def test_permuting_queries_permutes_outputs(case, order) -> None:
    attend, _, query, key, value, mask = case
    order = [index for index in order if index < query.size(-2)]
    close(
        attend(query[..., order, :], key, value, mask[..., order, :]),
        attend(query, key, value, mask)[..., order, :],
    )


@given(st.one_of(one_head, several_heads()))
def test_weights_are_a_distribution_over_what_may_be_attended(case) -> None:
    weights = case.weights(case.query, case.key, case.mask)
    allowed = case.mask.expand_as(weights)
    assert (weights[allowed] > 0).all()
    assert (weights[~allowed] == 0).all()
    close(weights.sum(-1), allowed.any(-1).to(weights.dtype))


@given(attention_inputs())
def test_outputs_lie_in_the_convex_hull_of_the_values_allowed(inputs) -> None:
    query, key, value, mask = inputs
    out = scaled_dot_product_attention(query, key, value, mask)
    # In the hull means: in no direction further out than the furthest value.
    directions = torch.randn(value.size(-1), 20, dtype=value.dtype)
    directions = torch.cat((directions, torch.eye(value.size(-1)).to(value)), dim=-1)
    allowed = mask.expand(*out.shape[:-1], key.size(-2)).unsqueeze(-1)
    reach = (value @ directions).unsqueeze(-3)
    furthest = reach.masked_fill(~allowed, -torch.inf).amax(-2)
    nearest = reach.masked_fill(~allowed, torch.inf).amin(-2)
    some = allowed.any(-2).squeeze(-1)
    assert (out @ directions <= furthest + 1e-9)[some].all()
    assert (out @ directions >= nearest - 1e-9)[some].all()


@given(attention_inputs(), several_heads(), st.floats(-50, 50))
def test_a_constant_added_to_all_scores_changes_nothing(inputs, case, constant) -> None:
    # The same vector added to every key adds the same number to all scores of a query.
    query, key, value, mask = inputs
    shifted = key + constant * torch.randn(key.size(-1), dtype=key.dtype)
    close(attention_weights(query, shifted, mask), attention_weights(query, key, mask))
    close(
        scaled_dot_product_attention(query, shifted, value, mask),
        scaled_dot_product_attention(query, key, value, mask),
    )
    layer, _, *inputs = case
    before = layer(*inputs)
    with torch.no_grad():
        layer.key_proj.bias += constant * torch.randn_like(layer.key_proj.bias)
    close(layer(*inputs), before)


@given(several_heads(), st.permutations(range(4)))
def test_heads_permuted_with_their_slices_change_nothing(case, order) -> None:
    layer, _, *inputs, mask = case
    before = layer(*inputs, mask)
    order = torch.tensor([head for head in order if head < layer.num_heads])
    rows = torch.arange(before.size(-1)).view(layer.num_heads, -1)[order].flatten()
    with torch.no_grad():
        for proj in (layer.query_proj, layer.key_proj, layer.value_proj):
            proj.weight.copy_(proj.weight[rows].clone())
            proj.bias.copy_(proj.bias[rows].clone())
        layer.output_proj.weight.copy_(layer.output_proj.weight[:, rows].clone())
    close(layer(*inputs, mask[:, order]), before)


# Decoding


@settings(max_examples=20)
@given(models(), ragged, st.integers(1, 9), seeds)
def test_cached_decoding_equals_uncached(model, batch, length, seed) -> None:
    torch.manual_seed(seed)
    source = as_batch(model, batch, length)
    target = torch.randint(3, vocab_size, (len(batch), length))
    order = torch.randperm(len(batch))
    with torch.inference_mode():
        expected = model(source, target)
        state = CachedDecoder(model).prefill(source, length)
        for position in range(length):
            close(state.step(target[:, position]), expected[:, position])
            if position == length // 2:  # rows change places, leave, come twice
                rows = torch.cat((order[:2], order[:1]))[: len(batch)]
                state.reorder(rows)
                expected, target = expected[rows], target[rows]


# Training


@pytest.fixture
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.plain  # checked shapes would make it slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_same_seed_gives_the_same_training_run_bit_for_bit(seed) -> None:
    examples = [([a, b], [b, a]) for a, b in itertools.product(range(3, 8), repeat=2)]
    sizes = {"d_model": 16, "num_heads": 2, "d_ff": 24, "dropout": 0.2}
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 2}

    def run(start: int, order: int) -> tuple[list[float], Tensor]:
        torch.manual_seed(start)
        model = Transformer(TransformerConfig(9, 9, max_length=8, **sizes, **layers))
        config = TrainingConfig(epochs=2, batch_tokens=60, seed=order)
        losses = [step.loss for step in train(model, examples, config)]
        weights = [weight.detach().flatten() for weight in model.parameters()]
        return losses, torch.cat(weights)

    losses, weights = run(seed, seed)
    assert len(losses) > 2
    again, same = run(seed, seed)
    assert (again, same.equal(weights)) == (losses, True)
    for other in (run(seed + 1, seed), run(seed, seed + 1)):
        assert other[0] != losses
        assert not other[1].equal(weights)


# Gradients


def agrees_with_finite_differences(module: nn.Module, *inputs: Tensor, **masks) -> None:
    """The gradient of every input and every parameter, by torch's `gradcheck`."""
    shake(module)
    module.double()
    names = [name for name, _ in module.named_parameters()]
    weights = [weight.detach().requires_grad_() for weight in module.parameters()]

    def run(*tensors: Tensor) -> Tensor:
        parameters = dict(zip(names, tensors[len(inputs) :], strict=True))
        return functional_call(module, parameters, tensors[: len(inputs)], masks)

    inputs = tuple(x.requires_grad_() for x in inputs)
    assert torch.autograd.gradcheck(run, (*inputs, *weights))


def double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


# The last query may attend to nothing.
HOLES = torch.tensor([[True, False, False], [True, True, False], [False] * 3])
SECOND_IS_SHORT = torch.tensor([[True] * 3, [True, True, False]])[:, None, None]


@pytest.mark.parametrize("mask", [None, HOLES], ids=["open", "masked"])
@given(seeds)
@settings(max_examples=5)
def test_gradient_of_attention(mask, seed) -> None:
    torch.manual_seed(seed)
    inputs = [double(1, 2, 3, 2).requires_grad_() for _ in "qkv"]
    assert torch.autograd.gradcheck(
        lambda *qkv: scaled_dot_product_attention(*qkv, mask), inputs
    )


# From here on, one draw has so many weights that another finds nothing more.


@pytest.mark.parametrize("mask", [None, HOLES], ids=["open", "masked"])
def test_gradient_of_multi_head_attention(mask) -> None:
    inputs = [double(2, 3, 4) for _ in "qkv"]
    agrees_with_finite_differences(MultiHeadAttention(4, 2), *inputs, mask=mask)


@pytest.mark.plain  # checked shapes would make it slow
@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
def test_gradient_of_an_encoder_layer(norm_first) -> None:
    layer = EncoderLayer(4, 2, 3, norm_first=norm_first)
    agrees_with_finite_differences(layer, double(2, 3, 4), mask=SECOND_IS_SHORT)


@pytest.mark.plain  # checked shapes would make it slow
@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
def test_gradient_of_a_decoder_layer(norm_first) -> None:
    layer = DecoderLayer(4, 2, 3, norm_first=norm_first)
    masks = {"source_mask": SECOND_IS_SHORT, "target_mask": causal_mask(2)}
    agrees_with_finite_differences(layer, double(2, 2, 4), double(2, 3, 4), **masks)


@given(token_ids(padded=True), st.floats(0, 0.9))
@settings(max_examples=10)
def test_gradient_of_the_label_smoothed_loss(targets, smoothing) -> None:
    logits = double(*targets.shape, vocab_size).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda logits: label_smoothed_loss(logits, targets, smoothing), logits
    )


@pytest.mark.plain  # checked shapes would make it slow
@pytest.mark.parametrize(
    ("tied", "norm_first"), [(False, False), (True, True)], ids=["untied", "tied"]
)
def test_gradient_of_a_whole_model(tied, norm_first) -> None:
    sizes = {"d_model": 4, "num_heads": 2, "d_ff": 3, "max_length": 4, "dropout": 0.0}
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    options = {"norm_first": norm_first, "tie_embeddings": tied}
    model = Transformer(TransformerConfig(6, 6, **sizes, **layers, **options))
    shake(model)
    model.double()
    source = torch.tensor([[3, 4, 5], [5, 0, 0]])
    target = torch.tensor([[1, 4, 3], [1, 5, 0]])
    labels = torch.tensor([[4, 3, 2], [5, 2, 0]])
    names = [name for name, _ in model.named_parameters()]
    weights = [weight.detach().requires_grad_() for weight in model.parameters()]

    def loss(*tensors: Tensor) -> Tensor:
        parameters = dict(zip(names, tensors, strict=True))
        return label_smoothed_loss(
            functional_call(model, parameters, (source, target)), labels
        )

    assert torch.autograd.gradcheck(loss, weights)
