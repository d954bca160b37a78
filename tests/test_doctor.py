"""The doctor: planted bugs are named, correct models and harmless habits are not."""

import json
import math
import random
import sys
from pathlib import Path

import pytest
import torch
from sick_models import BUGS, FOREIGN, Planted, house, loaded, text_of
from torch import nn
from torch.nn import functional as F

from transformer.cli import main
from transformer.doctor import CAUSES, examine
from transformer.doctor.around import loss_faults
from transformer.doctor.loading import examine_file, guess, load
from transformer.doctor.subject import Refused
from transformer.doctor.tables import misreading
from transformer.doctor.xray import xray
from transformer.positional import sinusoids

pytestmark = pytest.mark.plain  # no shapes here, and very many calls

# Those that every run of the tests plants; the nightly run plants all.
OFTEN = {
    "house: no causal mask",
    "house: encoder unmasked",
    "house: d_model",
    "house: after the softmax",
    "house: merged by view",
    "house: no residual",
    "house: detached",
    "house: column",
    "foreign: off by one",
    "foreign: keys as values",
    "foreign: shift in the denominator",
}


def told(planted: Planted) -> str:
    return f"{planted.base}: {planted.name}"


def is_often(planted: Planted) -> bool:
    return told(planted) in OFTEN


def check_named(planted: Planted) -> None:
    report = examine(loaded(text_of(planted)), pad_id=0)
    causes = [found.cause for found in report.findings]
    assert causes, report
    if planted.level == "bug":
        assert report.verdict == "bug"
        assert causes[0] in planted.causes, report
        assert report.findings[0].evidence
    else:
        assert report.verdict == "sound", report
        assert set(causes) & set(planted.causes), report


@pytest.mark.parametrize("planted", [b for b in BUGS if is_often(b)], ids=told)
def test_a_planted_bug_is_named(planted: Planted) -> None:
    check_named(planted)


@pytest.mark.nightly
@pytest.mark.parametrize("planted", [b for b in BUGS if not is_often(b)], ids=told)
def test_every_planted_bug_is_named(planted: Planted) -> None:
    check_named(planted)


@pytest.mark.parametrize(
    "text", [house(), house(norm_first=True), FOREIGN], ids=["house", "pre", "foreign"]
)
def test_a_correct_model_is_sound(text: str) -> None:
    report = examine(loaded(text), pad_id=0)
    assert report.verdict == "sound", report
    assert report.exit_code == 0
    shown = str(report)
    assert "proved:" in shown
    assert len(shown.splitlines()) < 40


REWRITTEN = {
    "log-softmax": (
        "return self.output(self.decoder(x, memory, source_mask, target_mask))",
        "return self.output("
        "self.decoder(x, memory, source_mask, target_mask)).log_softmax(-1)",
    ),
    "tied embeddings": (
        "        pass\n",
        "        self.output.weight = self.target_embedding.table.weight\n",
    ),
    "target padding by rows": (
        "causal & padding_mask(target, 0)",
        "causal & padding_mask(target, 0).transpose(-2, -1)",
    ),
    "√d_k on the query": (
        "F.scaled_dot_product_attention(queries, keys, values, mask, dropout)",
        "F.scaled_dot_product_attention(queries / queries.size(-1) ** 0.5, keys, "
        "values, mask, dropout, scale=1.0)",
    ),
    "sines first, then cosines": (
        "table = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)",
        "table = torch.cat((angle.sin(), angle.cos()), dim=-1)",
    ),
    "shifted inside": (
        "x = self.position(self.target_embedding(target))",
        "target = torch.cat((torch.ones_like(target[:, :1]), target[:, :-1]), 1)\n"
        "        x = self.position(self.target_embedding(target))",
    ),
}


@pytest.mark.parametrize("trap", REWRITTEN)
def test_a_harmless_habit_is_no_bug(trap: str) -> None:
    text, (old, new) = house(), REWRITTEN[trap]
    assert old in text
    report = examine(loaded(text.replace(old, new)), pad_id=0)
    assert report.verdict == "sound", report


def test_an_unbiased_deviation_is_worth_a_look() -> None:
    old = "((x - mu) ** 2).mean(-1, keepdim=True).sqrt()"
    assert old in FOREIGN
    sick = FOREIGN.replace(old, "x.std(-1, keepdim=True)")
    report = examine(loaded(sick), pad_id=0)
    assert report.verdict == "sound"
    assert "norm-unbiased" in {found.cause for found in report.findings}


# correct models of others


class Torch(nn.Module):
    """`nn.Transformer`, with embeddings that are learned."""

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        num_layers: int,
        d_ff: int,
        dropout: float,
        vocab_size: int,
        batch_first: bool = True,
        norm_first: bool = False,
    ) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.embedding = nn.Embedding(vocab_size, d_model, padding_idx=0)
        self.position = nn.Embedding(64, d_model)
        self.transformer = nn.Transformer(
            d_model,
            num_heads,
            num_layers,
            num_layers,
            d_ff,
            dropout,
            batch_first=batch_first,
            norm_first=norm_first,
        )
        self.output = nn.Linear(d_model, vocab_size)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        axis = 1 if self.batch_first else 0
        position = self.position(torch.arange(ids.size(axis)))
        return self.embedding(ids) + (position if axis else position[:, None])

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        length = target.size(1 if self.batch_first else 0)
        padding = source == 0 if self.batch_first else (source == 0).T
        hidden = torch.zeros(padding.shape).masked_fill(padding, -math.inf)
        return self.output(
            self.transformer(
                self.embed(source),
                self.embed(target),
                tgt_mask=nn.Transformer.generate_square_subsequent_mask(length),
                src_key_padding_mask=hidden,
                memory_key_padding_mask=hidden,
            )
        )


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("batch_first", [True, False])
def test_torchs_transformer_is_sound_in_either_layout(batch_first: bool) -> None:
    def build(**sizes):
        return Torch(**sizes, batch_first=batch_first)

    report = examine(build, pad_id=0)
    assert report.verdict == "sound", report
    assert "6 attentions" in report.proved["attention"]


class Block(nn.Module):
    """A block as in minGPT, with one of several kinds of positions."""

    def __init__(self, width: int, heads: int, d_ff: int, dropout: float, style: str):
        super().__init__()
        self.heads, self.style = heads, style
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        keys = 1 if style == "grouped" else heads
        self.split = [width, width // heads * keys, width // heads * keys]
        self.maps = nn.Linear(width, sum(self.split))
        self.out = nn.Linear(width, width)
        self.drop = nn.Dropout(dropout)
        self.mlp = nn.Sequential(
            nn.Linear(width, d_ff), nn.GELU(), nn.Linear(d_ff, width), self.drop
        )

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        _, length, width = x.shape
        d_head = width // self.heads
        parts = self.maps(x).split(self.split, dim=-1)
        q, k, v = (p.unflatten(-1, (-1, d_head)).transpose(1, 2) for p in parts)
        if self.style == "rotary":
            rate = 1e4 ** (-torch.arange(0, d_head, 2) / d_head)
            angle = torch.outer(torch.arange(length), rate)
            cos, sin = angle.cos(), angle.sin()

            def turn(z: torch.Tensor) -> torch.Tensor:
                a, b = z[..., 0::2], z[..., 1::2]
                return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(
                    -2
                )

            q, k = turn(q), turn(k)
        k, v = (z.expand(-1, self.heads, -1, -1) for z in (k, v))
        scores = q @ k.transpose(-2, -1) / math.sqrt(d_head)
        ago = torch.arange(length)[:, None] - torch.arange(length)
        if self.style == "alibi":
            slopes = 2.0 ** (-8 * torch.arange(1, self.heads + 1) / self.heads)
            scores = scores - slopes[:, None, None] * ago.abs()
        allowed = (ago >= 0) & ((ago < 3) | (self.style != "window"))
        weights = scores.masked_fill(~allowed, -math.inf).softmax(-1)
        mixed = self.drop(weights) @ v
        return self.drop(self.out(mixed.transpose(1, 2).flatten(2)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


class LittleGPT(nn.Module):
    """A language model that returns (logits, loss)."""

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        num_layers: int,
        d_ff: int,
        dropout: float,
        vocab_size: int,
        style: str = "learned",
    ) -> None:
        super().__init__()
        self.style = style
        self.tokens = nn.Embedding(vocab_size, d_model)
        self.places = nn.Embedding(64, d_model)
        if style in ("rotary", "alibi"):
            del self.places
        self.blocks = nn.ModuleList(
            Block(d_model, num_heads, d_ff, dropout, style) for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(d_model)
        self.head = nn.Linear(d_model, vocab_size, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.05)

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, None]:
        x = self.tokens(ids)
        if hasattr(self, "places"):
            x = x + self.places(torch.arange(ids.size(1)))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)), None


STYLES = ["learned", "rotary", "alibi", "grouped", "window"]


@pytest.mark.parametrize("style", STYLES)
def test_a_language_model_is_sound_whatever_its_positions(style: str) -> None:
    def build(**sizes):
        return LittleGPT(**sizes, style=style)

    window = 3 if style == "window" else None
    report = examine(build, kind="language model", window=window)
    assert report.verdict == "sound", report


def marian(hf, vocab_size, d_model, num_heads, num_layers, d_ff, dropout):
    return hf.MarianMTModel(
        hf.MarianConfig(
            vocab_size=vocab_size,
            d_model=d_model,
            encoder_layers=num_layers,
            decoder_layers=num_layers,
            encoder_attention_heads=num_heads,
            decoder_attention_heads=num_heads,
            encoder_ffn_dim=d_ff,
            decoder_ffn_dim=d_ff,
            dropout=dropout,
            pad_token_id=1,
            eos_token_id=0,
            decoder_start_token_id=1,
            max_position_embeddings=64,
        )
    )


def t5(hf, vocab_size, d_model, num_heads, num_layers, d_ff, dropout):
    return hf.T5ForConditionalGeneration(
        hf.T5Config(
            vocab_size=vocab_size,
            d_model=d_model,
            d_kv=d_model // num_heads,
            d_ff=d_ff,
            num_layers=num_layers,
            num_heads=num_heads,
            dropout_rate=dropout,
            pad_token_id=1,
            decoder_start_token_id=1,
        )
    )


def gpt2(hf, vocab_size, d_model, num_heads, num_layers, d_ff, dropout):
    return hf.GPT2LMHeadModel(
        hf.GPT2Config(
            vocab_size=vocab_size,
            n_positions=64,
            n_embd=d_model,
            n_layer=num_layers,
            n_head=num_heads,
            n_inner=d_ff,
            resid_pdrop=dropout,
            embd_pdrop=dropout,
            attn_pdrop=dropout,
            bos_token_id=None,
            eos_token_id=None,
        )
    )


def llama(hf, vocab_size, d_model, num_heads, num_layers, d_ff, dropout):
    return hf.LlamaForCausalLM(
        hf.LlamaConfig(
            vocab_size=vocab_size,
            hidden_size=d_model,
            intermediate_size=d_ff,
            num_hidden_layers=num_layers,
            num_attention_heads=num_heads,
            num_key_value_heads=1,
            attention_dropout=dropout,
            max_position_embeddings=64,
        )
    )


def with_mask(model, source, target):
    mask = (source != 1).long()
    return model(input_ids=source, attention_mask=mask, decoder_input_ids=target)


@pytest.mark.nightly
@pytest.mark.parametrize("make", [marian, t5, gpt2, llama])
def test_a_model_of_the_library_is_sound(make) -> None:
    hf = pytest.importorskip("transformers")
    reads_source = make in (marian, t5)
    report = examine(
        lambda **sizes: make(hf, **sizes),
        with_mask if reads_source else None,
        kind="encoder-decoder" if reads_source else "language model",
        pad_id=1 if reads_source else None,
    )
    assert report.verdict == "sound", report


# losses, decoding, parts


def ids_of(found) -> list[str]:
    return [one.cause for one in found]


LOSSES = {
    "plain": (lambda x, y: F.cross_entropy(x.mT, y, ignore_index=0), []),
    "smoothed": (
        lambda x, y: F.cross_entropy(x.mT, y, ignore_index=0, label_smoothing=0.1),
        [],
    ),
    "log-softmax before": (
        lambda x, y: F.cross_entropy(x.log_softmax(-1).mT, y, ignore_index=0),
        [],
    ),
    "padding": (lambda x, y: F.cross_entropy(x.mT, y), ["loss-padding-counted"]),
    "softmax before": (
        lambda x, y: F.cross_entropy(x.softmax(-1).mT, y, ignore_index=0),
        ["loss-softmax-twice"],
    ),
    "divided by all": (
        lambda x, y: (
            F.cross_entropy(x.mT, y, ignore_index=0, reduction="sum") / y.numel()
        ),
        ["loss-mean-over-padding"],
    ),
    "sum": (
        lambda x, y: F.cross_entropy(x.mT, y, ignore_index=0, reduction="sum"),
        ["loss-summed"],
    ),
    "shifted": (
        lambda x, y: F.cross_entropy(x[:, :-1].mT, y[:, 1:], ignore_index=0),
        ["loss-shifted"],
    ),
    "sign": (lambda x, y: -F.cross_entropy(x.mT, y, ignore_index=0), ["loss-sign"]),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_read_from_one_gradient(name: str) -> None:
    loss, causes = LOSSES[name]
    assert ids_of(loss_faults(loss, 0, "logits", flat=False)) == causes


def test_a_token_that_is_never_asked_for_is_found() -> None:
    def loss(x, y):
        return F.cross_entropy(x.mT, y, ignore_index=3)

    assert ids_of(loss_faults(loss, None, "logits", False)) == ["loss-ignores-token"]


def sound_lm(**sizes):
    torch.manual_seed(0)
    return LittleGPT(**sizes)


def test_a_cache_that_restarts_positions_is_found() -> None:
    def one_by_one(model, ids):
        return torch.cat([model(ids[:, i : i + 1])[0] for i in range(ids.size(1))], 1)

    report = examine(sound_lm, kind="language model", cached=one_by_one)
    assert report.findings[0].cause == "cached-position"
    whole = examine(sound_lm, kind="language model", cached=lambda m, x: m(x)[0])
    assert "cached" in whole.proved


def test_greedy_decoding_is_held_to_the_model() -> None:
    def write(model, ids, count, best=0):
        for _ in range(count):
            ranked = model(ids)[0][:, -1].argsort(descending=True)
            ids = torch.cat((ids, ranked[:, best : best + 1]), 1)
        return ids

    def second(model, ids, count):
        return write(model, ids, count, best=1)

    def beam(model, ids, count, size):
        return second(model, ids, count)

    right = examine(sound_lm, kind="language model", greedy=write)
    assert "decoding" in right.proved
    wrong = examine(sound_lm, kind="language model", greedy=second)
    assert wrong.findings[0].cause == "greedy-differs"
    beams = examine(sound_lm, kind="language model", greedy=write, beam=beam)
    assert "beam-differs" in ids_of(beams.findings)


class OneAttention(nn.Module):
    """Multi-head attention, right or with one thing wrong."""

    def __init__(self, width: int = 16, heads: int = 2, sick: str = "") -> None:
        super().__init__()
        self.heads, self.sick = heads, sick
        self.maps = nn.ModuleList(nn.Linear(width, width) for _ in range(4))

    def forward(self, x, mask):
        batch, length, _ = x.shape
        q, k, v = (m(x) for m in list(self.maps)[:3])
        if self.sick == "view":
            q, k, v = (z.view(batch, self.heads, length, -1) for z in (q, k, v))
        else:
            q, k, v = (
                z.view(batch, length, self.heads, -1).transpose(1, 2) for z in (q, k, v)
            )
        scores = q @ k.mT / math.sqrt(q.size(-1))
        if mask is not None and self.sick != "dropped":
            scores = scores.masked_fill(~mask, -1e9)
        axis = -2 if self.sick == "queries" else -1
        mixed = scores.softmax(axis) @ v
        return self.maps[3](mixed.transpose(1, 2).reshape(x.shape))


@pytest.mark.parametrize(
    ("sick", "cause"),
    [
        ("", None),
        ("view", "heads-by-view"),
        ("queries", "softmax-over-queries"),
        ("dropped", "future-leak-no-mask"),
    ],
)
def test_one_attention_is_examined_by_itself(sick: str, cause: str | None) -> None:
    report = examine(
        lambda d_model, num_heads, **_: OneAttention(d_model, num_heads, sick),
        lambda module, x, mask: module(x, mask),
        kind="attention",
    )
    assert (report.findings[0].cause if report.findings else None) == cause, report


def test_the_meaning_of_a_mask_is_found_out() -> None:
    report = examine(
        model=OneAttention(),
        call=lambda module, x, mask: module(x, None if mask is None else ~mask),
        kind="attention",
    )
    assert "True = hidden" in report.proved["future"]


def test_positions_are_examined_by_themselves() -> None:
    class Table(nn.Module):
        def forward(self, x):
            return x + sinusoids(x.size(1), x.size(2))

    def add(module, x):
        return module(x)

    report = examine(lambda **_: Table(), add, kind="positions")
    assert report.proved["positions"] == "The table is the paper's."
    right = sinusoids(9, 16)
    assert misreading(right) == ""
    halves = torch.cat((right[:, 0::2], right[:, 1::2]), 1)
    assert misreading(halves) == ""
    assert misreading(torch.randn(9, 16)) is None


# reports, files, the command


def test_every_cause_is_documented() -> None:
    chapters = {path.stem for path in Path("book").glob("*.md")}
    for cause, known in CAUSES.items():
        assert cause.replace("-", "").isalnum()
        assert known.sentence[0].isupper() or known.sentence.startswith("{")
        assert known.chapter in chapters, cause


def test_what_cannot_be_asked_is_refused() -> None:
    with pytest.raises(ValueError, match="kind must be one of"):
        examine(sound_lm, kind="decoder")
    with pytest.raises(ValueError, match="build or model"):
        examine()


def test_a_given_model_is_left_as_it_was() -> None:
    model = LittleGPT(16, 2, 2, 48, 0.1, 23)
    model.train()
    model.blocks[0].eval()
    before = {name: p.clone() for name, p in model.state_dict().items()}
    torch.manual_seed(5)
    random.seed(5)
    state, old = torch.get_rng_state(), random.getstate()
    report = examine(model=model, kind="language model")
    assert report.verdict == "sound", report
    assert torch.equal(torch.get_rng_state(), state)
    assert random.getstate() == old
    assert all(torch.equal(before[name], p) for name, p in model.state_dict().items())
    assert model.training
    assert not model.blocks[0].training
    assert not any(module._forward_hooks for module in model.modules())


SPELLED = {
    "plain": {},
    "causal": {"is_causal": True},
    "scaled": {"scale": 0.5},
    "grouped": {"enable_gqa": True},
    "added": {"attn_mask": torch.tensor([0.0, -1.0, -math.inf]).expand(3, 3)},
    "a row that may attend to nothing": {
        "attn_mask": torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1]]).bool()
    },
}


@pytest.mark.parametrize("case", SPELLED)
def test_an_x_ray_spells_fused_attention_and_changes_no_switch(case: str) -> None:
    attend = F.scaled_dot_product_attention
    query, how, switches = torch.randn(2, 4, 3, 8), SPELLED[case], []
    keys = torch.randn(2, 2 if case == "grouped" else 4, 3, 8)

    def run() -> torch.Tensor:
        cuda = torch.backends.cuda  # the switches of all threads, the CPU's too
        switches.append((cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled()))
        return attend(query * 1, keys * 1, keys + 1, **how)

    trace = xray(run, None)
    assert switches == [(True, True)]
    (attention,) = trace.attentions()
    assert attention.scale == pytest.approx(how.get("scale", 8**-0.5))
    torch.testing.assert_close(trace.output, attend(query, keys, keys + 1, **how))


STUDENT = """
import torch, torch.nn as nn, torch.nn.functional as F
import a_package_that_is_not_there as missing
from {helper} import PAD

n_embd = 64
raise_if_run = open("/nonexistent")
print("trains at import")

class {name}(nn.Module):
    def __init__(self, src_vocab, d_model, n_heads, n_layers, d_ff, dropout, pad_idx):
        super().__init__()
        self.pad = pad_idx
        self.embed = nn.Embedding(src_vocab, d_model).cuda()
        self.place = nn.Embedding(64, d_model)
        layer = nn.TransformerEncoderLayer(
            d_model, n_heads, d_ff, dropout, batch_first=True, norm_first=True)
        self.layers = nn.ModuleList([
            nn.TransformerEncoderLayer(d_model, n_heads, d_ff, dropout,
                                       batch_first=True) for _ in range(n_layers)])
        self.out = nn.Linear(d_model, src_vocab)

    def forward(self, ids):
        place = torch.arange(ids.size(1), device="cuda")
        x = self.embed(ids) + self.place(place)
        mask = torch.ones(ids.size(1), ids.size(1)).triu(1).bool()
        for layer in self.layers:
            x = layer(x, src_mask={mask})
        return self.out(x)

for epoch in range(10**9):
    pass
"""


def student(folder: Path, name: str = "Student", mask: str = "mask") -> Path:
    (folder / "my_helper.py").write_text("PAD = 0\n")
    text = STUDENT.format(helper="my_helper", name=name, mask=mask)
    path = folder / "student.py"
    path.write_text(text)
    return path


def test_a_file_that_trains_at_import_is_examined(tmp_path: Path) -> None:
    path = student(tmp_path)
    before = set(sys.modules)
    report, found = examine_file(f"{path}:Student")
    assert report.verdict == "sound", report
    assert found is not None
    assert found.kind == "language model"
    assert "my_helper" not in sys.modules
    assert "a_package_that_is_not_there" not in set(sys.modules) - before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["my_helper.py", "student.py"]


TINY = """
import torch
class Tiny(torch.nn.Module):
    def __init__(self, vocab_size, d_model):
        super().__init__()
        self.table = torch.nn.Embedding(vocab_size, d_model)
    def forward(self, ids):
        return self.table(ids)
"""


@pytest.mark.parametrize(
    ("file", "helper"),
    [
        ("transformer.py", "layers.py"),
        ("transformer/model.py", "transformer/layers.py"),  # no __init__.py
        ("models/full/model.py", "models/layers.py"),  # run from two folders above
        ("transformer/transformer.py", "layers.py"),
    ],
)
def test_a_students_module_may_be_called_as_ours(
    tmp_path: Path, file: str, helper: str
) -> None:
    path, place = tmp_path / file, tmp_path / helper
    for one in (path, place):
        one.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(TINY)
    name = helper.removesuffix(".py").replace("/", ".")
    path.write_text(f"from {name} import Tiny\n")
    ours, before = sys.modules["transformer"], set(sys.modules)
    with load(f"{path}:Tiny") as (space, found):
        assert space[found].__module__ == name
    assert sys.modules["transformer"] is ours
    assert not {"layers", "models", "model"} & (set(sys.modules) - before)
    report, _ = examine_file(f"{path}:Tiny")
    assert "runs" in report.proved, report


def test_what_is_missing_complains_when_it_is_used(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(
        "import no_such_package.nn as lost\nfrom no_such_package import Block\n"
        "class A(lost.layers.Module):\n    def forward(self, ids): return ids\n"
        "def make(): return Block(3)\n"
    )
    with load(f"{path}:A") as (space, _):
        assert isinstance(space["A"](), nn.Module)
        with pytest.raises(ImportError, match="and the model uses it"):
            space["make"]()


def test_the_command_tells_a_bug_by_its_exit_code(tmp_path: Path, capsys) -> None:
    path = student(tmp_path, mask="None")
    assert main(["doctor", f"{path}:Student", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["verdict"] == "bug"
    assert report["findings"][0]["cause"] == "future-leak-no-mask"


def test_a_notebook_is_read(tmp_path: Path) -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# words"]},
        {"cell_type": "code", "source": ["%matplotlib inline\n", "import torch\n"]},
        {"cell_type": "code", "source": ["class A(torch.nn.Module):\n", "    pass\n"]},
    ]
    path = tmp_path / "book.ipynb"
    path.write_text(json.dumps({"cells": cells}))
    with load(f"{path}:A") as (space, name):
        assert issubclass(space[name], nn.Module)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("nothing", "write FILE.py:Class"),
        ("no_such_file.py:A", "there is no file"),
        ("torch.nn:NoSuchLayer", "has no NoSuchLayer"),
        ("no.such.package:A", "no.such.package"),
    ],
)
def test_bad_targets_are_refused_in_one_line(target: str, said: str, capsys) -> None:
    assert main(["doctor", target]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1


def test_a_syntax_error_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("class A(:\n")
    with pytest.raises(Refused, match="line 1"):
        examine_file(f"{path}:A")


def test_unknown_arguments_give_an_adapter_to_fill_in(tmp_path: Path, capsys) -> None:
    path = tmp_path / "masks.py"
    path.write_text(
        "import torch\nclass A(torch.nn.Module):\n"
        "    def __init__(self, vocab, d_model, wobble): super().__init__()\n"
        "    def forward(self, src, tgt, src_mask): return src\n"
    )
    assert main(["doctor", f"{path}:A"]) == 2
    shown = capsys.readouterr().out
    assert "wobble=..." in shown
    assert "src_mask" in shown
    assert "def call(model, source, target)" in shown


def test_an_adapter_knows_the_names_of_the_file(tmp_path: Path) -> None:
    path = student(tmp_path, mask="None")
    adapter = tmp_path / "mine.py"
    adapter.write_text(
        "def build(d_model, num_heads, num_layers, d_ff, dropout, vocab_size):\n"
        "    return Student(vocab_size, d_model, num_heads, num_layers, d_ff, dropout,"
        " PAD)\n"
        "def call(model, ids): return model(ids)\n"
        "kind = 'language model'\npad_id = 0\n"
    )
    report, found = examine_file(f"{path}:Student", adapter)
    assert found is None
    assert report.findings[0].cause == "future-leak-no-mask"


def test_names_of_arguments_say_what_they_are(tmp_path: Path) -> None:
    path = tmp_path / "named.py"
    path.write_text(
        "import torch\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass GPTConfig:\n    block_size: int = 8\n    n_layer: int = 9\n"
        "    n_head: int = 9\n    n_embd: int = 9\n    dropout: float = 0.9\n"
        "    vocab_size: int = 9\n    bias: bool = True\n"
        "class GPT(torch.nn.Module):\n    def __init__(self, config):\n"
        "        super().__init__(); self.config = config\n"
        "    def forward(self, idx, targets=None): return idx\n"
    )
    sizes = {"d_model": 16, "num_heads": 2, "num_layers": 3, "d_ff": 48}
    with load(f"{path}:GPT") as (space, name):
        found = guess(space, name)
        assert not found.unknown
        assert found.build is not None
        config = found.build(**sizes, dropout=0.1, vocab_size=23).config
    assert (config.n_embd, config.n_head, config.n_layer) == (16, 2, 3)
    assert (config.vocab_size, config.dropout, config.bias) == (23, 0.1, True)
    assert config.block_size == 128
