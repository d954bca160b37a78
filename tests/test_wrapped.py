"""Models that were trained, wrapped or loaded in unusual ways compute what they say."""

import copy
import math
import pickle
import threading
import types

import pytest
import torch
from small_runs import CONFIG, small_model
from test_search import random_model
from torch import nn

from transformer.beyond.gpt2 import GPT2
from transformer.beyond.language_model import LanguageModelConfig
from transformer.beyond.modern import RotaryEmbedding, exchange_parts
from transformer.decoding.fast import FastDecoder
from transformer.decoding.search import greedy_search
from transformer.decoding.step import CachedDecoder, evaluating
from transformer.model import Transformer, TransformerConfig
from transformer.multi_head import MultiHeadAttention
from transformer.training.accuracy import exact_match
from transformer.training.chunked_loss import chunked_loss
from transformer.training.loss import label_smoothed_loss
from transformer.training.trainer import train_translator

SIZES = {"d_model": 16, "num_heads": 2, "d_ff": 32, "dropout": 0.0}
LAYERS = {"num_encoder_layers": 1, "num_decoder_layers": 2}


def small(**options) -> Transformer:
    return Transformer(TransformerConfig(11, 11, **SIZES, **LAYERS, **options))


class Adapter(nn.Module):
    """Adds to what a layer outputs; asked for anything else, it asks the layer."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.up = layer, nn.Linear(16, 16)

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("layer"), name)

    def forward(self, *inputs):
        output = self.layer(*inputs)
        return output + self.up(output)


def test_a_wrapped_layer_is_decoded_as_it_is() -> None:
    model = small().eval()
    model.decoder.layers[0] = Adapter(model.decoder.layers[0])
    message = "without a cache: .* must be of the class DecoderLayer, got Adapter"
    with pytest.warns(UserWarning, match=message):
        (found,) = greedy_search(FastDecoder(model), [[3, 4, 5]], 4)
    begun = torch.tensor([[model.config.bos_id, *found[:3]]])
    with torch.no_grad():
        logits = model(torch.tensor([[3, 4, 5]]), begun)[0]
    logits[:, [model.config.pad_id, model.config.bos_id]] = -torch.inf
    assert found == logits.argmax(dim=-1).tolist()[: len(found)]


def test_the_last_evaluation_gives_back_the_mode() -> None:
    model = small().train()
    inside, leave = threading.Event(), threading.Event()

    def another() -> None:
        with evaluating(model):
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=another)
    with evaluating(model):
        thread.start()
        assert inside.wait(10)
    assert not any(module.training for module in model.modules())
    leave.set()
    thread.join()
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("assign", [False, True])
def test_loaded_weights_are_tied_again(assign) -> None:
    model = small(tie_embeddings=True)
    config = LanguageModelConfig(11, **SIZES, num_layers=1, max_length=8)
    for trained, kind in ((model, Transformer), (GPT2(config), GPT2)):
        with torch.device("meta"):
            empty = kind(trained.config)
        loaded = empty.to_empty(device="cpu")
        loaded.load_state_dict(trained.state_dict(), assign=assign)
        assert len([*loaded.parameters()]) == len([*trained.parameters()])
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        twin.load_state_dict(model.state_dict())
        assert twin.output.weight is twin.source_embedding.table.weight


def test_a_subclass_that_needs_more_than_a_config_is_not_loaded(tmp_path) -> None:
    class Scaled(Transformer):
        def __init__(self, config, scale):
            super().__init__(config)
            self.scale = scale

    path = tmp_path / "model.safetensors"
    Scaled(small().config, 3.0).save(path)
    with pytest.raises(ValueError, match=r"has a config that no Scaled has: .*'scale'"):
        Scaled.load(path)
    assert type(Transformer.load(path)) is Transformer


def test_rotations_do_not_depend_on_a_half_default_dtype() -> None:
    x = torch.randn(1, 1, 300, 8)
    expected = RotaryEmbedding()(x)
    torch.set_default_dtype(torch.bfloat16)
    try:
        found = RotaryEmbedding()(x)
    finally:
        torch.set_default_dtype(torch.float32)
    assert found.equal(expected)


def test_an_output_with_a_forward_of_its_own_is_trained_as_it_is(dataset) -> None:
    model = small_model(dataset)
    plain = nn.Linear.forward
    model.output.forward = types.MethodType(
        lambda self, x: 0 * plain(self, x), model.output
    )
    metrics = next(train_translator(model, dataset, CONFIG))
    size = model.config.target_vocab_size
    assert math.isclose(metrics.loss, math.log(size), rel_tol=1e-5)


def test_a_wrapped_output_is_trained(dataset) -> None:
    class Wrapper(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return self.inner(x)

    model = small_model(dataset, tie_embeddings=False)
    model.output = Wrapper(model.output)
    assert next(train_translator(model, dataset, CONFIG)).step == 1


@pytest.mark.parametrize("z", [102.0, 102.9, 103.5, 120.0])
def test_the_loss_of_a_very_improbable_label(z) -> None:
    hidden, weight = torch.eye(2), torch.tensor([[z, 0.0], [0.0, 1.0]])
    labels = torch.tensor([1, 1])
    expected = label_smoothed_loss((hidden @ weight.T)[None], labels[None], 0.0)
    found = chunked_loss(hidden, weight, labels, 0.0)
    torch.testing.assert_close(found, expected)


def test_what_cannot_be_scored_is_refused_at_once(dataset) -> None:
    with pytest.raises(ValueError, match="text must be tok or raw, got 'token'"):
        train_translator(small_model(dataset), dataset._replace(text="token"), CONFIG)


def test_a_wrapper_may_be_in_another() -> None:
    averaged = torch.optim.swa_utils.AveragedModel(small().eval())
    for wrapped in (averaged, nn.DataParallel(averaged)):
        inside = averaged.module
        assert greedy_search(wrapped, [[3, 4]], 3) == greedy_search(inside, [[3, 4]], 3)


def test_evaluated_inside_a_wrapper_too_a_model_keeps_its_mode() -> None:
    model = small().train()
    model.encoder.eval()
    with evaluating(model):
        with evaluating(nn.DataParallel(model)):
            pass
        assert not any(module.training for module in model.modules())
    assert model.training
    assert not model.encoder.training


def test_self_attention_may_have_other_heads_than_cross_attention() -> None:
    model, source = small().eval(), torch.tensor([[3, 4, 5]])
    model.decoder.layers[0].self_attention = MultiHeadAttention(16, 4).eval()
    tokens = torch.tensor([[1, 7, 4, 9, 5]])
    with torch.inference_mode():
        for decoder in (CachedDecoder(model), FastDecoder(model)):
            state = decoder.prefill(source, 5)
            for place in range(5):
                expected = model(source, tokens[:, : place + 1])[:, -1]
                torch.testing.assert_close(state.step(tokens[:, place]), expected)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_gradients_of_single_examples_by_torch_func() -> None:
    model = small().eval()
    weights = dict(model.named_parameters())

    def loss(weights, source, target):
        inputs = source[None], target[None]
        return torch.func.functional_call(model, weights, inputs).square().mean()

    sources, targets = torch.randint(3, 11, (4, 5)), torch.randint(3, 11, (4, 6))
    each = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))
    found = each(weights, sources, targets)["output.weight"]
    for row, source, target in zip(found, sources, targets, strict=True):
        expected = torch.func.grad(loss)(weights, source, target)["output.weight"]
        torch.testing.assert_close(row, expected)


def test_exact_match_leaves_out_what_a_search_never_writes() -> None:
    sources = [[a, b] for a in range(3, 9) for b in range(3, 9)]
    for seed in range(100):
        model = random_model(seed, sharp=12).eval()
        found = zip(sources, greedy_search(model, sources, 6), strict=True)
        if ended := [pair for pair in found if 0 < len(pair[1]) < 6]:
            break
    assert exact_match(model, ended) == 1
    model.output.register_forward_hook(
        lambda module, inputs, logits: logits.index_fill(
            -1, torch.tensor([model.config.bos_id]), 1e4
        )
    )
    assert exact_match(model, ended) == 1


def test_grouped_queries_need_pairs_of_heads() -> None:
    config = LanguageModelConfig(20, d_model=24, num_heads=3, num_layers=1, d_ff=16)
    with pytest.raises(ValueError, match="even number of heads, got 3"):
        exchange_parts(config, ["grouped queries"])
