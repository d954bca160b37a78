"""What the page of recipes shows and does not run itself: commands, and ONNX."""

import re
import shlex
import warnings
from pathlib import Path

import jupytext
import pytest
import torch
from safetensors.torch import save_file

from transformer.cli import app

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "book" / "how-to.md"
TEXT = PAGE.read_text(encoding="utf-8")
SHELL = "\n".join(re.findall(r"^```sh\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL))
COMMANDS = re.findall(r"-m transformer (.*)", SHELL)
(ONNX,) = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def recipe(name: str) -> list[str]:
    """The cells between a recipe's label and the next one."""
    head = TEXT[: TEXT.index("(how-to)=")]
    body = re.split(r"^\((how-to-[a-z]+)\)=$", TEXT, flags=re.MULTILINE)
    cells = jupytext.reads(head + body[body.index(name) + 1], fmt="md:myst").cells
    return [cell.source for cell in cells if cell.cell_type == "code"]


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_and_its_options_exist(line: str) -> None:
    name, *options = shlex.split(line, comments=True)
    command = app.commands[name]
    command.make_context(name, options)  # refuses an option that is not there


@pytest.mark.plain
@pytest.mark.filterwarnings("ignore")  # the exporter's own
def test_onnx_gives_the_logits_of_the_model_for_other_shapes() -> None:
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 9):
        pytest.skip("an older torch writes ONNX in another way")
    names: dict = {}
    train, export = recipe("how-to-train"), recipe("how-to-export")
    assert "epochs=20" in train[1]  # one is enough for what is exported
    train[1] = train[1].replace("epochs=20", "epochs=1")
    for cell in [*train[:3], *export, ONNX]:
        exec(cell, names)
    one = names["source_ids"], names["target_ids"]
    other = names["three"], names["begun"]
    nothing = other[0].clone()
    nothing[1] = names["model"].config.pad_id  # a sentence of padding alone
    for source, target in (one, other, (nothing, other[1])):
        inputs = {"source": source.numpy(), "target": target.numpy()}
        (logits,) = names["session"].run(["logits"], inputs)
        if source is one[0]:
            assert (logits == names["logits"]).all()
        with torch.no_grad():
            expected = names["model"](source, target)
        found = torch.from_numpy(logits)
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert all(x.shape != y.shape for x, y in zip(one, other, strict=True))
    names["temporary"].cleanup()


(GPT2_LINES,) = re.findall(r"^```py\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def test_the_lines_for_gpt2_run_on_files_of_random_weights(
    tmp_path, monkeypatch, capsys
) -> None:
    tk = pytest.importorskip("tokenizers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers = pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    letters = tk.pre_tokenizers.ByteLevel.alphabet()
    tokenizer = tk.Tokenizer(tk.models.BPE())
    tokenizer.pre_tokenizer = tk.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tk.decoders.ByteLevel()
    trainer = tk.trainers.BpeTrainer(initial_alphabet=letters, show_progress=False)
    tokenizer.train_from_iterator(["A word"], trainer)
    tokenizer.save("tokenizer.json")
    torch.manual_seed(0)
    shape = {"n_embd": 24, "n_layer": 2, "n_head": 12, "n_positions": 64}
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape)).eval()
    save_file(theirs.transformer.state_dict(), "model.safetensors")
    theirs.config.save_pretrained(tmp_path)
    names: dict = {}
    exec(GPT2_LINES, names)
    ids = torch.tensor([names["prompt"]])
    with torch.no_grad():
        expected = theirs(ids).logits
        torch.testing.assert_close(names["model"](ids), expected, atol=1e-5, rtol=1e-5)
    assert len(names["more"]) == 40
    assert capsys.readouterr().out.startswith("A word is known by")
