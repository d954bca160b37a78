"""The command line, in real processes."""

import io
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from argparse import ArgumentTypeError, _SubParsersAction
from pathlib import Path

import pytest
import torch

from transformer import Transformer, TransformerConfig, training
from transformer.__main__ import (
    ABOUT,
    SETTING_HELP,
    main,
    one_line,
    parser,
    span,
    whole,
)
from transformer.decoding import Translator

ROOT = Path(__file__).resolve().parent.parent
RUN = [sys.executable, "-m", "transformer"]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def run(*arguments, text=None, **options):
    """The finished process; bytes go in and text comes out."""
    if isinstance(text, str):
        text = text.encode()
    done = subprocess.run(
        [*RUN, *arguments],
        input=text,
        capture_output=True,
        timeout=240,
        cwd=options.pop("cwd", ROOT),
        env=ENVIRONMENT | options,
        check=False,
    )
    done.stdout, done.stderr = done.stdout.decode(), done.stderr.decode()
    return done


def inside(capsys, *arguments):
    """The same without a process: exit code, output, errors."""
    try:
        code = main(list(arguments))
    except SystemExit as leaving:
        code = leaving.code
    return code, *capsys.readouterr()


def test_the_running_sentence_from_any_folder(tmp_path):
    sentence = "Jane visite l'Afrique en septembre"
    done = run("translate", sentence, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "Jane visits Africa in September\n"


def test_standard_input_line_by_line():
    text = "J’aime Rome\n\nLe chat est noir.\r\n"
    done = run("translate", text=text, PYTHONIOENCODING="latin-1")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "I like Rome\n\nThe cat is black\n"


def test_a_bad_line_is_named_after_the_good_ones():
    done = run("translate", text="Il a deux chats\nZorro\nElle est triste\n")
    assert done.returncode == 2
    assert done.stdout == "He has two cats\n"
    assert done.stderr.startswith("python -m transformer: line 2: unknown word 'Zorro'")
    assert done.stderr.count("\n") == 1


def test_the_highest_penalty_is_a_number(capsys):
    options = ("--beam-size", "2", "--length-penalty", "100")
    assert inside(capsys, "translate", *options, "Il a deux chats") == (
        *(0, "He has two cats\n"),
        "",
    )


def test_a_beam_on_the_command_line(capsys):
    hard = "Le grand chien noir aime le petit chat blanc"
    wide = "The big dog likes the small white cat"
    assert inside(capsys, "translate", "--beam-size", "4", hard) == (0, f"{wide}\n", "")
    greedy = "The big white dog likes the small dog"
    assert inside(capsys, "translate", "--length-penalty", "2", hard) == (
        0,
        f"{greedy}\n",
        "",
    )
    options = "--beam-size", "10", "--length-penalty"
    answers = [
        inside(capsys, "translate", *options, alpha, "Je suis l'ami de Jane")[1]
        for alpha in ("0", "2")
    ]
    assert len(answers[0]) < len(answers[1])


def test_input_that_is_no_text():
    done = run("translate", text=b"\xff\xfe\n")
    assert done.returncode == 2
    assert done.stderr == "python -m transformer: standard input is not UTF-8 text\n"


def test_a_reader_that_leaves_is_no_error():
    process = subprocess.Popen(
        [*RUN, "translate"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env=ENVIRONMENT,
    )
    process.stdin.write(b"Il a deux chats\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"He has two cats\n"
    process.stdout.close()
    _, errors = process.communicate(b"Il a deux chats\n" * 3, timeout=240)
    assert errors == b""
    assert process.returncode == 0


@pytest.mark.skipif(os.name == "nt", reason="signals are POSIX")
def test_ctrl_c_leaves_quietly(tmp_path):
    out = tmp_path / "weights.safetensors"
    process = subprocess.Popen(
        [*RUN, "train-phrasebook", "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env=ENVIRONMENT,
    )
    assert process.stderr.readline().startswith(b"making 50,000 sentences")
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 130
    assert b"Traceback" not in errors
    assert list(tmp_path.iterdir()) == []


def test_train_then_translate(tmp_path):
    files = [tmp_path / "new" / name for name in ("one", "two", "other")]
    for file, seed in zip(files, ("3", "3", "4"), strict=True):
        training = "train-phrasebook", "--out", str(file), "--sentences", "300"
        done = run(*training, "--seed", seed)
        assert done.returncode == 0, done.stderr
        assert "of 1,000 held-out sentences translated exactly; wrote" in done.stdout
        assert "s left" in done.stderr
    one, two, other = (dict(Transformer.load(f).named_parameters()) for f in files)
    assert all(one[name].equal(two[name]) for name in one)
    assert not all(one[name].equal(other[name]) for name in one)
    assert sorted(path.name for path in files[0].parent.iterdir()) == [
        "one",
        "other",
        "two",
    ]
    done = run("translate", "--weights", str(files[0]), "Il a deux chats")
    assert done.returncode == 0


def test_words(capsys):
    code, french, _ = inside(capsys, "words")
    assert code == 0
    assert {"Afrique", "l'", "États-Unis", "sœur"} <= set(french.split("\n"))
    code, english, _ = inside(capsys, "words", "--english")
    assert code == 0
    assert "September" in english.split("\n")
    assert "septembre" not in english.split("\n")


@pytest.fixture
def bad_files(tmp_path):
    (tmp_path / "text").write_text("no weights")
    config = TransformerConfig(9, 9, 8, 2, 1, 1, 8)
    Transformer(config).save(tmp_path / "wordless")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "arguments are required: COMMAND"),
        (["frobnicate"], "invalid choice: 'frobnicate'"),
        (["translate", "--frob"], "unrecognized arguments: --frob"),
        (["--frob"], "arguments are required"),
        (["translate", ""], "at least one word"),
        (["translate", " . "], "at least one word"),
        (["translate", "Jane\x1b[2Jvisite"], r"control character '\x1b'"),
        (["translate", "Jane visite Zanzibar"], "unknown word 'Zanzibar'"),
        (["translate", "Jane " * 5000], "at most 32 words, got 5000"),
        (["translate", "x" * 1_000_000], "unknown word 'xxx"),
        (["translate", "--beam-size", "0", "Jane"], "at most 1000, got '0'"),
        (["translate", "--beam-size", "two", "Jane"], "at least 1, at most 1000"),
        (["translate", "--beam-size", "9" * 30, "Jane"], "at most 1000, got '999"),
        (["translate", "--length-penalty", "-1", "Jane"], "at least 0, got '-1'"),
        (["translate", "--length-penalty", "nan", "Jane"], "at least 0, got 'nan'"),
        (["translate", "--length-penalty", "long", "Jane"], "got 'long'"),
        (["translate", "--weights", "{}/nothing", "Jane"], "no checkpoint at"),
        (["translate", "--weights", "{}", "Jane"], "no checkpoint at"),
        (["translate", "--weights", "{}/text", "Jane"], "not a whole safetensors"),
        (["words", "--weights", "{}/wordless"], "without its words"),
        (["train-phrasebook"], "required: --out"),
        (["train-phrasebook", "--out", "{}"], "must name a file, got the folder"),
        (["train-phrasebook", "--out", "{}/text/x"], "text"),
        (["train-phrasebook", "--out", "{}/x", "--seed", "-1"], "got '-1'"),
        (["train-phrasebook", "--out", "{}/x", "--seed", "two"], "got 'two'"),
        (["train-phrasebook", "--out", "{}/x", "--seed", "9" * 30], "at least 0"),
        (["train-phrasebook", "--out", "{}/x", "--sentences", "0"], "at least 1"),
    ],
)
def test_mistakes_take_one_line_and_exit_code_2(capsys, bad_files, arguments, message):
    arguments = [argument.format(bad_files) for argument in arguments]
    code, output, errors = inside(capsys, *arguments)
    assert code == 2
    assert output == ""
    assert message in errors
    assert errors.startswith("python -m transformer")
    assert errors.count("\n") == 1
    assert len(errors) < 400


def test_a_mistake_in_a_real_process():
    done = run("translate", "--weights", "nothing", "Jane")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "python -m transformer: no checkpoint at nothing\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["translate", "--help"],
        ["words", "--help"],
        ["train-phrasebook", "--help"],
    ],
)
def test_help_teaches(capsys, arguments):
    code, output, errors = inside(capsys, *arguments)
    assert (code, errors) == (0, "")
    assert output.startswith("usage: python -m transformer")
    assert len(output) > 300


def choice():
    """Where the command line parts."""
    (found,) = (a for a in parser()._actions if isinstance(a, _SubParsersAction))
    return found


def commands():
    """Each command's own parser, by name."""
    return choice().choices


def test_every_command_is_explained():
    assert ABOUT in parser().format_help()
    said = {one.dest: one.help for one in choice()._choices_actions}
    assert said.keys() == commands().keys()
    assert all(len(text) > 20 for text in said.values())


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("translate", "what train-phrasebook or train wrote"),
        ("words", "what train-phrasebook wrote"),
    ],
)
def test_whose_words_unless_told(command, said):
    (weights,) = (a for a in commands()[command]._actions if a.dest == "weights")
    assert weights.help == f"{said} (default: the file that ships)"


@pytest.mark.parametrize("command", list(commands()))
def test_every_option_is_explained(command):
    for option in commands()[command]._actions:
        assert option.help
        assert len(option.help) > 7
        reads = option.nargs != 0 and not option.choices
        assert (option.metavar or "").isupper() == reads, option.option_strings
    teaching = commands()[command].description
    assert teaching
    assert len(teaching) > 50


NO_SETTINGS = dict.fromkeys(SETTING_HELP)
TOLD_NOTHING = {
    "translate": {
        "weights": None,
        "file": None,
        "sentence": [],
        "beam_size": 1,
        "length_penalty": 0.6,
    },
    "words": {"weights": None, "english": False},
    "train-phrasebook --out X": {"out": "X", "seed": 0, "sentences": 50_000},
    "train --out X": {
        "data": None,
        "out": "X",
        "preset": "tiny",
        "source": "en",
        "target": "de",
        "text": "tok",
        "device": "auto",
        "precision": "auto",
        "every": 200,
        "keep": 10,
        **NO_SETTINGS,
    },
    "evaluate RUN": {
        "data": None,
        "weights": "RUN",
        "split": "val",
        "beam_size": 5,
        "length_penalty": 1.0,
        "average": 0,
        "out": None,
    },
    "plot RUN --out X": {"runs": ["RUN"], "out": "X"},
}
TOLD_ALL = {
    "translate --weights W --file F --beam-size 3 --length-penalty 0": {
        "weights": "W",
        "file": "F",
        "sentence": [],
        "beam_size": 3,
        "length_penalty": 0.0,
    },
    "translate Jane visite": {
        **TOLD_NOTHING["translate"],
        "sentence": ["Jane", "visite"],
    },
    "words --weights W --english": {"weights": "W", "english": True},
    "train-phrasebook --out X --seed 7 --sentences 9": {
        "out": "X",
        "seed": 7,
        "sentences": 9,
    },
    "train --data D --out X --preset small --source fr --target en --text raw "
    "--device cpu --precision bf16 --every 3 --keep 4 --types 300 --layers 1 "
    "--d-model 8 --num-heads 2 --d-ff 9 --dropout 0.2 --no-norm-first "
    "--max-length 30 --epochs 6 --step-tokens 70 --part-tokens 60 "
    "--schedule cosine --peak 0.01 --warmup 5 --smoothing 0.3 --max-norm 2 "
    "--memory 0.9 --patience 8 --seed 0": {
        "data": "D",
        "out": "X",
        "preset": "small",
        "source": "fr",
        "target": "en",
        "text": "raw",
        "device": "cpu",
        "precision": "bf16",
        "every": 3,
        "keep": 4,
        "types": 300,
        "layers": 1,
        "d_model": 8,
        "num_heads": 2,
        "d_ff": 9,
        "dropout": 0.2,
        "norm_first": False,
        "max_length": 30,
        "epochs": 6,
        "step_tokens": 70,
        "part_tokens": 60,
        "schedule": "cosine",
        "peak": 0.01,
        "warmup": 5,
        "smoothing": 0.3,
        "max_norm": 2.0,
        "memory": 0.9,
        "patience": 8,
        "seed": 0,
    },
    "evaluate RUN --data D --split test --beam-size 1 --length-penalty 0.5 "
    "--average 3 --out O": {
        "data": "D",
        "weights": "RUN",
        "split": "test",
        "beam_size": 1,
        "length_penalty": 0.5,
        "average": 3,
        "out": "O",
    },
    "plot ONE OTHER --out X": {"runs": ["ONE", "OTHER"], "out": "X"},
}


@pytest.mark.parametrize("told", [*TOLD_NOTHING, *TOLD_ALL])
def test_what_a_command_line_asks_for(monkeypatch, told):
    monkeypatch.delenv("MULTI30K", raising=False)
    options = vars(parser().parse_args(told.split()))
    command = told.split()[0].replace("-", "_")
    assert options.pop("run").__name__ == f"run_{command}"
    assert options == (TOLD_NOTHING | TOLD_ALL)[told]


@pytest.mark.parametrize(
    ("command", "option", "choices"),
    [
        ("train --out X", "preset", ("tiny", "small", "base", "toy")),
        ("train --out X", "text", ("tok", "raw")),
        ("train --out X", "device", ("auto", "cpu", "cuda")),
        ("train --out X", "precision", ("auto", "float32", "bf16")),
        ("train --out X", "schedule", ("inverse-sqrt", "cosine")),
        ("evaluate RUN", "split", ("val", "test")),
    ],
)
def test_what_there_is_to_choose_from(command, option, choices):
    (of_this,) = (
        one
        for one in commands()[command.split()[0]]._actions
        if f"--{option}" in one.option_strings
    )
    assert tuple(of_this.choices) == choices
    for one in choices:
        told = [*command.split(), f"--{option}", one]
        assert vars(parser().parse_args(told))[option] == one


@pytest.mark.parametrize("flag", ["--norm-first", "--no-norm-first"])
def test_where_the_norm_stands_is_a_flag(flag):
    options = parser().parse_args(["train", "--out", "X", flag])
    assert options.norm_first is (flag == "--norm-first")


@pytest.mark.parametrize(
    ("command", "headings"),
    [
        ("train", ["sentences", "settings (default: the preset's)"]),
        ("evaluate", ["sentences"]),
    ],
)
def test_options_that_belong_together_stand_together(command, headings):
    said = commands()[command].format_help()
    assert said.startswith(f"usage: python -m transformer {command} [-h] ")
    for heading in headings:
        assert f"\n{heading}:\n  --" in said
    assert said.count("--data") == 2  # in the usage, and where it is explained


def test_the_corpus_may_be_named_by_a_variable(monkeypatch):
    monkeypatch.setenv("MULTI30K", "here")
    for command in ("train --out X", "evaluate RUN"):
        assert parser().parse_args(command.split()).data == "here"


@pytest.mark.parametrize(
    ("told", "wrong"),
    [
        ("train --out X --seed -1", "--seed"),
        *(
            (f"train --out X --{name} 0", f"argument --{name}: expected a whole number")
            for name in ("types", "epochs", "warmup", "every", "keep", "layers")
        ),
        ("train --out X --peak -1", "expected a number of at least 0, got '-1'"),
        ("train --out X --peak inf", "expected a number of at least 0, got 'inf'"),
        ("train --out X --memory soon", "expected a number of at least 0, got 'soon'"),
        ("train --out X --dropout x", "argument --dropout: expected a number"),
        ("train --out X --smoothing x", "argument --smoothing: expected a number"),
        ("train --out X --max-norm x", "argument --max-norm: expected a number"),
        ("train --out X --schedule linear", "invalid choice: 'linear'"),
        ("train --out X --preset huge", "invalid choice: 'huge'"),
        ("train --out X --text lower", "invalid choice: 'lower'"),
        ("train --out X --device tpu", "invalid choice: 'tpu'"),
        ("train --out X --precision fp8", "invalid choice: 'fp8'"),
        ("train", "required: --out"),
        ("train-phrasebook", "required: --out"),
        ("train-phrasebook --out X --sentences 0", "at least 1, got '0'"),
        ("plot RUN", "required: --out"),
        ("plot --out X", "required: RUN"),
        ("evaluate", "required: RUN"),
        ("evaluate RUN --split train", "invalid choice: 'train'"),
        ("evaluate RUN --beam-size 0", "at least 1, at most 1000, got '0'"),
        ("evaluate RUN --beam-size 1001", "at least 1, at most 1000, got '1001'"),
        ("evaluate RUN --average -1", "a whole number of at least 0, got '-1'"),
        ("translate --beam-size 1001 x", "at least 1, at most 1000, got '1001'"),
        ("translate --length-penalty nan x", "of at least 0, got 'nan'"),
        ("translate --length-penalty 101 x", "of at most 100, got '101'"),
        ("evaluate RUN --length-penalty 5000", "of at most 100, got '5000'"),
        ("train --out X --seed x", "a whole number of at least 0, got 'x'"),
        ("", "required: COMMAND"),
    ],
)
def test_a_command_line_that_asks_for_nothing_there_is(capsys, told, wrong):
    code, output, errors = inside(capsys, *told.split())
    assert (code, output) == (2, "")
    assert wrong in errors
    assert errors.count("\n") == 1


def test_the_largest_numbers_are_taken():
    assert whole(0)(str(2**63 - 1)) == 2**63 - 1
    with pytest.raises(ArgumentTypeError, match=rf"at least 0, got '{2**63}'$"):
        whole(0)(str(2**63))
    limits = rf"at least 0, at most {2**63 - 2}, got '{2**63 - 1}'$"
    with pytest.raises(ArgumentTypeError, match=limits):
        whole(0, 2**63 - 2)(str(2**63 - 1))
    assert parser().parse_args(["evaluate", "R", "--beam-size", "1000"]).beam_size
    assert parser().parse_args(["evaluate", "R", "--average", "0"]).average == 0
    least = ["--every", "1", "--keep", "1", "--seed", "0", "--dropout", "0"]
    least += [f"--{name}=1" for name in ("types", "d-model", "patience", "warmup")]
    assert parser().parse_args(["train", "--out", "X", *least]).keep == 1
    least = ["--seed", "0", "--sentences", "1"]
    assert parser().parse_args(["train-phrasebook", "--out", "X", *least]).seed == 0
    for text in ("²", "1.0", "", " 1", "+1"):
        with pytest.raises(ArgumentTypeError, match="expected a whole number"):
            whole(0)(text)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.4, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (3599.4, "59 min"),
        (3600.0, "1 h 00 min"),
        (7563.0, "2 h 06 min"),
    ],
)
def test_a_time_is_said_as_people_do(seconds, said):
    assert span(seconds) == said


# The same without a process: what the terminal, the pipe and the keyboard may do.


class Typed(io.StringIO):
    """Lines as if typed at a terminal, or a terminal's screen."""

    def isatty(self):
        return True


def piped(text):
    """Lines that come down a pipe, as the bytes they are."""
    return io.TextIOWrapper(io.BytesIO(text), encoding="latin-1")


def test_a_pipe_is_read_as_utf_8_whatever_the_machine_prefers(capsys, monkeypatch):
    text = "J’aime Rome\n \nIl visite le Brésil\n"
    monkeypatch.setattr(sys, "stdin", piped(text.encode()))
    english = "I like Rome\n\nHe visits Brazil\n"
    assert inside(capsys, "translate") == (0, english, "")


def test_in_a_pipe_the_first_bad_line_is_the_end(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", piped(b"Il a deux chats\nZorro\nJane\n"))
    code, output, errors = inside(capsys, "translate")
    assert (code, output) == (2, "He has two cats\n")
    assert errors.startswith("python -m transformer: line 2: unknown word 'Zorro'")
    assert errors.count("\n") == 1


def test_at_a_terminal_a_bad_line_is_told_and_the_next_one_read(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", Typed("Zorro\nIl a deux chats\n"))
    code, output, errors = inside(capsys, "translate")
    assert (code, output) == (0, "He has two cats\n")
    invitation, complaint = errors.splitlines()
    assert invitation.startswith("One French sentence a line; end with Ctrl-D")
    assert complaint.startswith("unknown word 'Zorro'")


def test_bytes_that_are_no_text_take_one_line(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", piped(b"\xff\xfe\n"))
    message = "python -m transformer: standard input is not UTF-8 text\n"
    assert inside(capsys, "translate") == (2, "", message)


def test_a_file_that_is_no_text_is_named(capsys, tmp_path):
    (tmp_path / "lines").write_bytes(b"Il a deux chats\n\xff\xfe\n")
    code, output, errors = inside(capsys, "translate", "--file", f"{tmp_path}/lines")
    assert (code, output) == (2, "")
    assert errors == f"python -m transformer: {tmp_path}/lines is not UTF-8 text\n"


def test_no_standard_input_takes_one_line(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    code, output, errors = inside(capsys, "translate")
    assert (code, output) == (2, "")
    assert errors.endswith("no sentence given, and standard input is closed\n")


def test_no_standard_output_is_no_error(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["translate", "Il a deux chats"]) == 0


def test_ctrl_c_ends_the_line_and_leaves_with_130(capsys, monkeypatch):
    class Interrupted(Typed):
        def __next__(self):
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdin", Interrupted())
    code, output, errors = inside(capsys, "translate")
    assert (code, output) == (130, "")
    assert errors.endswith("\n\n")


def test_a_closed_pipe_is_where_the_rest_goes(tmp_path, monkeypatch):
    hear, say = os.pipe()
    os.close(hear)
    with os.fdopen(say, "w", closefd=False) as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert main(["translate", "Il a deux chats"]) == 0
        assert os.fstat(say).st_rdev == os.stat(os.devnull).st_rdev
    os.close(say)


@pytest.mark.plain  # checked shapes would make it slow
@pytest.mark.parametrize("screen", [io.StringIO, Typed])
def test_what_a_training_says(capsys, tmp_path, monkeypatch, screen):
    """Word for word, of a training that only pretends."""
    asked, models = [], []

    def pretend(model, examples, seed):
        models.append(model)
        asked.append((examples, seed))
        for step in range(1, 21):
            yield training.Progress(step, 20, 1.5, 0.1, 1.0, 12_345.6, 20.0 - step)

    monkeypatch.setattr(training, "train", pretend)
    monkeypatch.setattr(
        training, "phrasebook_examples", lambda *those, **how: [(those, how)] * those[0]
    )
    monkeypatch.setattr(
        training,
        "exact_match",
        lambda model, held: models.append(model) or asked.append(held) or 0.125,
    )
    monkeypatch.setattr(sys, "stderr", errors := screen())
    torch.set_num_threads(2)
    monkeypatch.setattr(
        Translator,
        "save",
        lambda self, path: (
            models.append(self.model) or path.write_bytes(bytes(1_050_000))
        ),
    )
    out = tmp_path / "new" / "folder" / "weights"
    command = "train-phrasebook", "--out", str(out), "--sentences", "2000"
    assert main([*command, "--seed", "3"]) == 0
    trained, tested, kept = models
    assert trained is tested is kept
    drawn = training.phrasebook_model(3).state_dict()
    assert all(drawn[name].equal(one) for name, one in kept.state_dict().items())
    assert torch.get_num_threads() == 1  # or the same seed gives other weights
    assert asked == [
        ([((2000, 3), {})] * 2000, 3),
        [((1000, 4), {"held_out": True})] * 1000,
    ]
    lines = [
        f"step {step} of 20   loss 1.500   12,346 tokens/s   {20 - step} s left"
        for step in range(1, 21)
    ]
    said = "making 2,000 sentences …\n"
    if screen is Typed:
        said += "".join(f"\r{line:<75}" for line in lines) + "\n"
    else:
        said += "".join(f"{line}\n" for line in lines[1::2])
    assert errors.getvalue() == said
    assert capsys.readouterr().out == (
        f"12.5% of 1,000 held-out sentences translated exactly; wrote {out} (1.1 MB)\n"
    )


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("x" * 400, "x" * 400),
        ("x" * 300 + "y" * 11 + "z" * 90, "x" * 300 + " … " + "z" * 90),
        ("a\nb\x1b[31m\u200f“é”", "a\\nb\\x1b[31m\\u200f“é”"),
    ],
)
def test_a_message_is_made_one_line(message, line):
    assert one_line(message) == line


@pytest.mark.plain  # checked shapes would make it slow
def test_training_says_how_it_goes(capsys, tmp_path, monkeypatch):
    out = tmp_path / "new" / "weights"
    errors = io.StringIO()
    monkeypatch.setattr(sys, "stderr", errors)
    monkeypatch.setattr("transformer.training.exact_match", lambda *_: 0.25)
    command = "train-phrasebook", "--out", str(out), "--sentences", "800", "--seed", "3"
    assert main(list(command)) == 0
    output = capsys.readouterr().out
    size = out.stat().st_size / 1e6
    assert output == (
        f"25.0% of 1,000 held-out sentences translated exactly; "
        f"wrote {out} ({size:.1f} MB)\n"
    )
    first, *told = re.split(r"[\r\n]+", errors.getvalue().rstrip("\n"))
    assert first == "making 800 sentences …"
    steps = [int(line.split()[1]) for line in told]
    total = int(told[0].split()[3])
    assert len(steps) == len(set(steps)) <= 10 < total
    assert steps[-1] == total
    assert "\r" not in errors.getvalue()


def test_a_folder_that_may_not_be_written_is_told_before_the_training(
    capsys, tmp_path, monkeypatch
):
    monkeypatch.setattr(os, "access", lambda *_: False)
    code, output, errors = inside(capsys, "train-phrasebook", "--out", f"{tmp_path}/x")
    assert (code, output) == (2, "")
    assert errors == f"python -m transformer: cannot write in the folder {tmp_path}\n"


def test_the_module_runs_as_a_program(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["transformer", "translate", "Jane visite Rome"])
    monkeypatch.delitem(sys.modules, "transformer.__main__")
    with pytest.raises(SystemExit) as leaving:
        runpy.run_module("transformer", run_name="__main__")
    assert leaving.value.code == 0
    assert capsys.readouterr().out == "Jane visits Rome\n"
