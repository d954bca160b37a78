"""The model in one file: the package's, weight for weight, and a program that runs."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from transformer.model import Transformer, TransformerConfig
from transformer.phrasebook.grammar import phrasebook_tokenizers

PROGRAM = Path(__file__).resolve().parent.parent / "book" / "transformer_in_one_file.py"
SIZES = {"d_model": 24, "num_heads": 4, "d_ff": 20, "dropout": 0.0}
SIZES |= {"num_encoder_layers": 2, "num_decoder_layers": 2}


@pytest.fixture(scope="module")
def one_file():
    spec = importlib.util.spec_from_file_location("one_file", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def both(one_file):
    """A model of the package and one of the file, in float64."""
    package = Transformer(TransformerConfig(11, 13, **SIZES)).double()
    with torch.no_grad():
        for weight in package.parameters():
            weight += 0.1 * torch.randn_like(weight)
    own = one_file.Transformer((11, 13), width=24, heads=4, d_ff=20, layers=2).double()
    return package, own


def test_each_loads_the_weights_of_the_other(both):
    package, own = both
    own.load_state_dict(package.state_dict())
    package.load_state_dict(own.state_dict())


def test_the_numbers_of_special_ids_are_the_package_s(one_file):
    config = TransformerConfig(11, 13, **SIZES)
    ids = config.pad_id, config.bos_id, config.eos_id
    assert ids == (one_file.PAD, one_file.BOS, one_file.EOS)


def test_logits_and_gradients_equal_the_package_s(both):
    package, own = both
    own.load_state_dict(package.state_dict())
    source = torch.tensor([[4, 5, 6, 7], [8, 9, 0, 0]])
    target = torch.tensor([[1, 4, 12, 5], [1, 6, 0, 0]])
    real = (target != 0)[..., None]
    logits = [model(source, target) * real for model in both]
    torch.testing.assert_close(*logits, atol=1e-9, rtol=0)
    for found in logits:
        found.square().sum().backward()
    theirs = dict(package.named_parameters())
    for name, weight in own.named_parameters():
        torch.testing.assert_close(weight.grad, theirs[name].grad, atol=1e-9, rtol=0)


def test_the_grammar_writes_a_part_of_the_phrasebook(one_file):
    pairs = list(one_file.grammar())
    assert len(set(pairs)) == 1875
    french, english = phrasebook_tokenizers()
    for source, target in pairs[::13]:
        french.encode(source), english.encode(target)  # refuse a word they do not know


def test_the_file_needs_torch_alone():
    text = PROGRAM.read_text(encoding="utf-8")
    assert "from transformer" not in text
    assert "import transformer" not in text


@pytest.mark.plain
@pytest.mark.parametrize("of_a_file", [False, True])
def test_the_program_trains_and_answers(tmp_path, of_a_file):
    """A copy in an empty folder, its training cut short."""
    text = PROGRAM.read_text(encoding="utf-8")
    short = text.replace("steps=600", "steps=50").replace(":100]", ":2]")
    assert short != text
    (tmp_path / "alone.py").write_text(short, encoding="utf-8")
    rows = "\n".join(f"un {n % 7}\tone {n % 7}" for n in range(200))
    (tmp_path / "pairs.tsv").write_text(rows, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "alone.py", *["pairs.tsv"] * of_a_file],
        input="Jane vend une robe rouge en mai\n\n",
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={"PATH": "", "OMP_NUM_THREADS": "1"},
    )
    lines = done.stdout.splitlines()
    assert lines[0].startswith("step 50: loss ")
    assert lines[1].endswith(" of 2 held-out sentences are right")
    assert done.stdout.count("A sentence in French") == 2


def test_the_page_writes_the_phrasebook_as_a_file_of_pairs(capsys):
    page = PROGRAM.with_name("one-file.md").read_text(encoding="utf-8")
    written = page.split('python -c "')[1].split('" > pairs.tsv')[0]
    exec(written.replace("20_000", "3"))
    lines = capsys.readouterr().out.splitlines()
    assert [len(line.split("\t")) for line in lines] == [2, 2, 2]
