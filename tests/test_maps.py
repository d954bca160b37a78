"""What attention maps and the ablation of heads must and must not change."""

from threading import Event, Thread

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import models, token_ids, vocab_size
from torch import nn

from transformer import (
    Head,
    LanguageModel,
    LanguageModelConfig,
    MultiHeadAttention,
    PromptDecoder,
    Transformer,
    TransformerConfig,
    ablate_heads,
    attention_maps,
    greedy_search,
)
from transformer.beyond.gpt2 import GPT2
from transformer.beyond.modern import PARTS, exchange_parts
from transformer.decoder import DecoderLayer
from transformer.maps import (
    AttentionMaps,
    all_heads,
    attention_layers,
    self_attention_maps,
)

PAD = 0


def small(**options) -> Transformer:
    sizes = {"d_model": 12, "num_heads": 3, "d_ff": 8, "dropout": 0.2}
    layers = {"num_encoder_layers": 2, "num_decoder_layers": 3}
    config = TransformerConfig(vocab_size, vocab_size, **(sizes | layers | options))
    return Transformer(config).double()


def ids(batch: int = 2, length: int = 5) -> torch.Tensor:
    return torch.randint(3, vocab_size, (batch, length))


def hooks(model: nn.Module) -> int:
    return sum(len(module._forward_pre_hooks) for module in model.modules())


@given(models(), token_ids(padded=True), st.data())
def test_the_maps_are_weights(model, source, data) -> None:
    target = data.draw(token_ids(padded=True))[:1].expand(len(source), -1)
    maps = attention_maps(model, source, target)
    config = model.config
    n, m, heads = source.size(1), target.size(1), config.num_heads
    stacks = (config.num_encoder_layers, *[config.num_decoder_layers] * 2)
    for weights, layers, (q, k) in zip(
        maps, stacks, ((n, n), (m, m), (m, n)), strict=True
    ):
        assert weights.shape == (len(source), layers, heads, q, k)
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    padding = (source == PAD)[:, None, None, None, :]
    assert (maps.encoder.masked_select(padding) == 0).all()
    assert (maps.cross.masked_select(padding) == 0).all()
    assert (maps.masked.triu(1) == 0).all()


def test_a_mask_given_by_name_is_seen() -> None:
    class Named(DecoderLayer):
        def forward(self, x, memory, source_mask=None, target_mask=None):
            own, cross = self.self_attention, self.cross_attention
            x = self.residuals[0](x, lambda x: own(x, x, x, mask=target_mask))
            x = self.residuals[1](
                x, lambda x: cross(x, key=memory, value=memory, mask=source_mask)
            )
            return self.residuals[2](x, self.feed_forward)

    model, target = small().eval(), ids()
    expected = attention_maps(model, target, target)
    for layer in model.decoder.layers:
        layer.__class__ = Named
    found = attention_maps(model, target, target)
    assert all(one.equal(other) for one, other in zip(found, expected, strict=True))


@given(models(), token_ids(padded=True))
@settings(max_examples=15)
def test_a_sentence_alone_has_the_maps_that_it_has_in_a_batch(model, source) -> None:
    together = attention_maps(model, source, source)
    for row, sentence in enumerate(source):
        alone = sentence[sentence != PAD][None]
        n = alone.size(1)
        for one, many in zip(
            attention_maps(model, alone, alone), together, strict=True
        ):
            torch.testing.assert_close(one[0], many[row, ..., :n, :n])


@pytest.mark.parametrize("training", [True, False])
def test_maps_leave_the_model_as_it_was(training) -> None:
    model = small().train(training)
    model.encoder.eval()  # a mode of its own is kept as well
    modes = [module.training for module in model.modules()]
    source, target = ids(), ids()
    state = torch.get_rng_state()
    before = model(source, target)
    torch.set_rng_state(state)
    maps = attention_maps(model, source, target)
    assert torch.equal(torch.get_rng_state(), state)  # no dropout was drawn
    assert torch.equal(model(source, target), before)
    assert [module.training for module in model.modules()] == modes
    assert hooks(model) == 0
    assert not any(weights.requires_grad for weights in maps)


def beside(model, action) -> Thread:
    """A thread that acts as soon as a pass has embedded its source."""
    other = Thread(target=action)

    def start(*_: object) -> None:
        hook.remove()
        other.start()
        other.join(0.2)

    hook = model.source_embedding.register_forward_hook(start)
    return other


def test_passes_of_other_threads_are_not_in_the_maps() -> None:
    model, source, target = small().eval(), ids(), ids()
    expected = attention_maps(model, source, target)
    other = beside(model, lambda: model(ids(3, 4), ids(3, 6)))
    found = attention_maps(model, source, target)
    other.join()
    assert all(one.equal(other) for one, other in zip(found, expected, strict=True))


def test_looking_changes_nothing_for_other_threads() -> None:
    """A pass in training mode meanwhile is one in training mode."""
    model, modes = small().train(), []
    other = beside(model, lambda: modes.extend(m.training for m in model.modules()))
    attention_maps(model, ids(), ids())
    other.join()
    assert modes
    assert all(modes)


def test_a_failure_leaves_no_hook_and_keeps_the_mode() -> None:
    model = small().train()
    with pytest.raises(ValueError, match="target ids"):
        attention_maps(model, ids(), ids() + vocab_size)
    assert hooks(model) == 0
    assert all(module.training for module in model.modules())


@pytest.mark.plain
def test_each_source_needs_a_target() -> None:
    with pytest.raises(ValueError, match="2 sources and 3 targets"):
        attention_maps(small(), ids(2), ids(3))


def test_every_head_is_listed_once() -> None:
    model = small()
    heads = all_heads(model)
    assert len(heads) == len(set(heads)) == (2 + 3 + 3) * 3
    assert heads[0] == Head("encoder", 0, 0)
    assert heads[-1] == Head("cross", 2, 2)
    assert list(attention_layers(model)) == list(AttentionMaps._fields)


@pytest.mark.plain  # checked shapes would make it slow
@given(models(), token_ids(), st.data())
def test_an_ablated_head_is_one_whose_output_weights_are_zero(
    model, source, data
) -> None:
    heads = data.draw(st.sets(st.sampled_from(all_heads(model)), min_size=1))
    with torch.no_grad(), ablate_heads(model, *heads):
        ablated = model(source, source)
    for kind, layer, number in heads:
        attention = attention_layers(model)[kind][layer]
        d_k = model.config.d_model // model.config.num_heads
        with torch.no_grad():
            attention.output_proj.weight[:, number * d_k : (number + 1) * d_k] = 0
    with torch.no_grad():
        torch.testing.assert_close(ablated, model(source, source))


def test_heads_are_back_afterwards() -> None:
    model = small().eval()
    source, target = ids(), ids()
    with torch.no_grad():
        before = model(source, target)
        with ablate_heads(model, Head("cross", 1, 2)):
            one = model(source, target)
            with ablate_heads(model, Head("encoder", 0, 0)):
                two = model(source, target)
            assert torch.equal(model(source, target), one)
        assert torch.equal(model(source, target), before)
        with ablate_heads(model):
            assert torch.equal(model(source, target), before)
    assert not torch.allclose(one, before)
    assert not torch.allclose(two, one)


def test_heads_are_back_after_an_error() -> None:
    model = small()

    def fail() -> None:
        with ablate_heads(model, Head("masked", 0, 1)):
            assert hooks(model) == 1
            raise RuntimeError("out")

    with pytest.raises(RuntimeError, match="out"):
        fail()
    assert hooks(model) == 0


def test_an_ablated_head_has_no_gradient() -> None:
    model = small().eval()
    attention = model.encoder.layers[1].self_attention
    with ablate_heads(model, Head("encoder", 1, 1)):
        model(ids(), ids()).square().sum().backward()
    slopes = attention.value_proj.weight.grad.unflatten(0, (3, -1)).abs().amax((1, 2))
    assert slopes[1] == 0
    assert slopes[[0, 2]].min() > 0


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (Head("decoder", 0, 0), "one of encoder, masked, cross, got 'decoder'"),
        (Head("encoder", 2, 0), r"encoder attention has layers 0\.\.1, got 2"),
        (Head("masked", -1, 0), r"masked attention has layers 0\.\.2, got -1"),
        (Head("cross", 1, 3), r"layer 1 of cross attention has heads 0\.\.2, got 3"),
        (Head("cross", 1, -1), "got -1"),
        pytest.param(
            [Head("cross", 1, 1)],
            r"a head is \(kind, layer, number\), got \[Head",
            marks=pytest.mark.plain,  # checked types are refused before
        ),
        pytest.param("cross", "is .*, got 'cross'", marks=pytest.mark.plain),
    ],
)
def test_a_head_that_is_not_there_is_refused(head, message) -> None:
    model = small()
    with (
        pytest.raises(ValueError, match=message),
        ablate_heads(model, Head("encoder", 0, 0), head),
    ):
        pytest.fail("nothing may run")
    assert hooks(model) == 0


def compiled_whole(model: nn.Module) -> nn.Module:
    return torch.compile(model, backend="eager")


def compiled_in_place(model: nn.Module) -> nn.Module:
    model.compile(backend="eager")
    return model


def compiled_inside(model: nn.Module) -> nn.Module:
    for number, layer in enumerate(model.decoder.layers):
        model.decoder.layers[number] = torch.compile(layer, backend="eager")
    model.encoder.compile(backend="eager")
    return model


@pytest.mark.plain  # the checker of shapes is not compiled
@pytest.mark.parametrize(
    "compiling", [compiled_whole, compiled_in_place, compiled_inside]
)
def test_a_compiled_model_is_looked_at_as_it_is_written(compiling) -> None:
    model, batch = small().eval(), (ids(), ids())
    expected = attention_maps(model, *batch)
    compiled = compiling(model)
    with torch.no_grad():
        compiled(*batch)
    maps = attention_maps(compiled, *batch)
    for one, other in zip(maps, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.plain
@pytest.mark.parametrize(
    "compiling", [compiled_whole, compiled_in_place, compiled_inside]
)
def test_heads_of_a_compiled_model_are_not_ablated(compiling) -> None:
    """Its code would not call the hook: nothing would be switched off."""
    compiled = compiling(small().eval())
    with (
        pytest.raises(ValueError, match="compiled"),
        ablate_heads(compiled, Head("cross", 2, 1)),
    ):
        pytest.fail("nothing may run")


@pytest.mark.plain
def test_threads_that_overlap_leave_other_models_compiled() -> None:
    torch.compiler.reset()
    model, batch = small().eval(), (ids(), ids())
    graphs, first_is_in, second_is_in = [], Event(), Event()

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    def first() -> None:
        with ablate_heads(model, Head("cross", 2, 1)):
            first_is_in.set()
            second_is_in.wait(5)

    other = Thread(target=first)
    other.start()
    assert first_is_in.wait(5)
    with ablate_heads(model, Head("cross", 1, 1)):
        second_is_in.set()
        other.join()
        attention_maps(model, *batch)
        torch.compile(nn.Linear(2, 2), backend=backend)(torch.randn(1, 2))
    torch.compile(nn.Linear(3, 3), backend=backend)(torch.randn(1, 3))
    assert len(graphs) == 2


def test_a_layer_in_two_places_has_two_maps() -> None:
    model = small().eval()
    model.encoder.layers[1] = model.encoder.layers[0]
    maps = attention_maps(model, ids(), ids())
    assert maps.encoder.shape[1] == 2
    assert not maps.encoder[:, 0].equal(maps.encoder[:, 1])


def test_a_layer_in_two_kinds_of_place_is_refused() -> None:
    model = small()
    model.decoder.layers[0].self_attention = model.encoder.layers[0].self_attention
    with pytest.raises(ValueError, match="two kinds of place"):
        attention_maps(model, ids(), ids())


def test_attention_that_shows_no_weights_is_named() -> None:
    class Blind(torch.nn.Module):
        def forward(self, query, key, value, mask=None):
            return query

    model = small()
    model.encoder.layers[1].self_attention = Blind()
    with pytest.raises(ValueError, match=r"^encoder attention, Blind, has no weights"):
        attention_maps(model, ids(), ids())
    assert hooks(model) == 0


class Halved(MultiHeadAttention):
    """Its weights are inherited, and not those that it uses."""

    def attend(self, query, keys_values, mask=None, positions=None):
        return super().attend(query / 2, keys_values, mask, positions)


class HalvedAndShown(Halved):
    """This one says which weights it uses."""

    def weights(self, query, key, mask=None):
        return super().weights(query / 2, key, mask)


def test_weights_that_a_layer_does_not_use_are_not_shown() -> None:
    model, text = small().eval(), text_model()
    model.decoder.layers[1].cross_attention.__class__ = Halved
    message = "cross attention, Halved, overrides attend and inherits weights"
    with pytest.raises(ValueError, match=message):
        attention_maps(model, ids(), ids())
    text.encoder.layers[0].self_attention.__class__ = Halved
    with pytest.raises(ValueError, match="masked attention, Halved, overrides attend"):
        self_attention_maps(text, ids())
    model.decoder.layers[1].cross_attention.__class__ = HalvedAndShown
    attention_maps(model, ids(), ids())
    layer = model.encoder.layers[0].self_attention
    layer.forward = lambda query, *_: query
    with pytest.raises(ValueError, match=r"encoder attention, .* overrides forward"):
        attention_maps(model, ids(), ids())


def test_a_layer_that_does_not_run_is_named() -> None:
    model = small().eval()
    model.encoder.layers[1].forward = lambda x, mask=None: x
    with pytest.raises(ValueError, match=r"encoder attention ran in 1 of 2 layers"):
        attention_maps(model, ids(), ids())


@pytest.mark.parametrize("kind", ["Transformer", "LanguageModel", "rotary, in groups"])
def test_maps_in_half_precision_are_finite_where_the_model_is(kind) -> None:
    """Scores beyond 65,504 are no numbers of float16; attention never makes them."""
    torch.manual_seed(0)
    model = small().eval() if kind == "Transformer" else text_model(kind).eval()
    inputs = (ids(), ids()) if kind == "Transformer" else (ids(),)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "query_proj.weight" in name or "key_proj.weight" in name:
                weight *= 300
    model.half()
    assert model(*inputs).isfinite().all()
    look = attention_maps if kind == "Transformer" else self_attention_maps
    maps = look(model, *inputs)
    for weights in maps if kind == "Transformer" else (maps,):
        assert weights.dtype == torch.float16
        assert weights.isfinite().all()


def test_maps_are_printed_as_shapes() -> None:
    maps = attention_maps(small(), ids(2, 4), ids(2, 5))
    assert repr(maps) == (
        "AttentionMaps(encoder=(2, 2, 3, 4, 4), masked=(2, 3, 3, 5, 5), "
        "cross=(2, 3, 3, 5, 4))"
    )


TEXTS = {
    "LanguageModel": LanguageModel,
    "GPT2": GPT2,
    "rotary, in groups": lambda config: exchange_parts(config, PARTS),
}


def text_model(kind: str = "LanguageModel") -> LanguageModel:
    config = LanguageModelConfig(vocab_size, 16, 4, 2, 24, dropout=0.2, max_length=8)
    return TEXTS[kind](config).double()


@pytest.mark.parametrize("kind", TEXTS)
def test_the_maps_of_a_language_model_are_the_weights_its_layers_used(kind) -> None:
    model, texts, outputs = text_model(kind).train(), ids(), []
    maps = self_attention_maps(model, texts)
    assert model.training
    assert hooks(model) == 0
    assert maps.shape == (2, 2, 4, 5, 5)
    assert (maps.triu(1) == 0).all()
    model.eval()
    for number, layer in enumerate(model.encoder.layers):
        attention = layer.self_attention
        hook = attention.register_forward_hook(lambda *seen: outputs.append(seen[1:]))
        model(texts)
        hook.remove()
        (x, *_), output = outputs.pop()
        values = attention.keys_values(x, x).values  # in groups: fewer than the heads
        values = values.repeat_interleave(4 // values.size(1), 1)
        mixed = (maps[:, number] @ values).transpose(1, 2).flatten(2)
        torch.testing.assert_close(attention.output_proj(mixed), output)


@pytest.mark.parametrize("kind", TEXTS)
def test_heads_of_a_language_model_are_listed_and_ablated(kind) -> None:
    model, texts = text_model(kind).eval(), ids()
    heads = all_heads(model)
    assert heads == [Head("masked", i, n) for i in range(2) for n in range(4)]
    with torch.no_grad(), ablate_heads(model, heads[6]):
        ablated = model(texts)
        searched = greedy_search(PromptDecoder(model), texts.tolist(), 3)
    with torch.no_grad():
        assert not ablated.allclose(model(texts))
        layer = model.encoder.layers[1].self_attention
        layer.output_proj.weight[:, 8:12] = 0  # of head 2
        torch.testing.assert_close(ablated, model(texts))
        assert searched == greedy_search(PromptDecoder(model), texts.tolist(), 3)


@pytest.mark.plain
def test_each_kind_of_model_has_its_own_maps() -> None:
    with pytest.raises(
        ValueError, match=r"maps takes a LanguageModel\), got a LanguageModel"
    ):
        attention_maps(text_model(), ids(), ids())
    with pytest.raises(ValueError, match="needs a LanguageModel, got a Transformer"):
        self_attention_maps(small(), ids())
    with pytest.raises(
        ValueError, match=r"a Transformer or a LanguageModel or .*, got a Linear"
    ):
        all_heads(nn.Linear(2, 2))
    with (
        pytest.raises(ValueError, match="kind is one of masked, got 'cross'"),
        ablate_heads(text_model(), Head("cross", 0, 0)),
    ):
        pytest.fail("nothing may run")


def test_maps_of_a_wrapped_language_model_are_the_models() -> None:
    model, texts = text_model(), ids()
    wrapped = nn.DataParallel(model)
    expected = self_attention_maps(model, texts)
    assert self_attention_maps(wrapped, texts).equal(expected)
    assert all_heads(wrapped) == all_heads(model)
