"""What each command asks of the parts that do the work, and what it then says."""

import dataclasses
import json
import sys
import types
from pathlib import Path

import pytest
import torch
from small_runs import FLAGS

import transformer.__main__ as commands
from transformer import decoding, model, translation
from transformer.translation import Moment, Score

pytestmark = pytest.mark.plain  # those who stand in for others are not of their types
ON_THE_FIRST = {"rank": 0, "size": 2, "device": torch.device("cpu")}


class Screen(list):
    """A stream that keeps what it is told, and when it is made to show it."""

    def __init__(self, terminal=False):
        super().__init__()
        self.terminal = terminal

    def isatty(self):
        return self.terminal

    def write(self, text):
        if text:
            self.append(text)

    def flush(self):
        self.append("shown")

    def __bool__(self):
        return True  # a stream, be it ever so empty

    def text(self):
        return "".join(part for part in self if part != "shown")


def screens(monkeypatch, terminal=False):
    """Where output goes, and what is said beside it."""
    out, beside = Screen(), Screen(terminal)
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", beside)
    return out, beside


def clock(monkeypatch, *times):
    """The commands look at this one."""
    ticks = iter(times)
    monkeypatch.setattr(
        commands, "time", types.SimpleNamespace(perf_counter=lambda: next(ticks))
    )


MOMENTS = [  # of a run that is taken up after 100 steps, which took 50 seconds
    Moment(101, 400, 3, 2.5, 0.1, 1.0, 1001, 52.0),
    Moment(102, 400, 3, 2.25, 0.1, 1.0, 500, 112.0),
    Moment(103, 400, 3, 2.0, 0.1, 1.0, 600, 113.0),
    Moment(104, 400, 3, 1.75, 0.1, 1.0, 700, 173.0),
    Moment(105, 400, 4, 1.5, 0.1, 1.0, 800, 173.5, 1.2345, 6.789),
]
LINES = [
    "epoch 3  step 101 of 400  loss 2.500  500 tokens/s  9 min left at most",
    "epoch 3  step 102 of 400  loss 2.250  24 tokens/s  2 h 33 min left at most",
    "epoch 3  step 103 of 400  loss 2.000  33 tokens/s  1 h 43 min left at most",
    "epoch 3  step 104 of 400  loss 1.750  23 tokens/s  2 h 31 min left at most",
    "epoch 4  step 105 of 400  loss 1.500  29 tokens/s  2 h 01 min left at most",
]
ENDS = "epoch 4 ends: validation loss 1.234, BLEU 6.79 (greedy)"


def a_training(monkeypatch, moments, left_out=0, bf16=False, ticks=(7.0, 9.0), **crew):
    """`run_train` with nobody at work behind it; what it asked of whom."""
    asked = {}
    order = []
    here = types.SimpleNamespace(
        total=lambda number: order.append(("total", number)),
        leave=lambda: order.append("left"),
        **crew,
    )
    lessons = types.SimpleNamespace(
        train=[0] * 12_345,
        subwords=types.SimpleNamespace(size=1_120),
        left_out=left_out,
    )

    def corpus_folder(*which):
        order.append("folder")
        asked["folder"] = which
        return Path("there")

    def prepare(*what):
        asked["prepare"] = what
        return lessons

    def train_translator(*what, **how):
        asked["train"] = what
        how["say"]("and the run spoke")
        yield from moments

    monkeypatch.setattr(
        translation.Crew, "join", lambda device: asked.update(device=device) or here
    )
    monkeypatch.setattr(commands, "corpus_folder", corpus_folder)
    monkeypatch.setattr(translation, "prepare", prepare)
    monkeypatch.setattr(translation, "train_translator", train_translator)
    clock(monkeypatch, *ticks)
    precision = "bf16" if bf16 else "float32"
    flags = *FLAGS, "--data", "D", "--text", "raw", "--every", "3", "--keep", "4"
    flags += "--precision", precision
    assert commands.main(["train", *flags, "--out", "no such/run"]) == 0
    settings = asked["prepare"][1]
    toy = translation.PRESETS["toy"]
    sizes = {"types": 120, "layers": 1, "d_model": 16, "num_heads": 2, "d_ff": 16}
    assert settings == dataclasses.replace(toy, **sizes, bf16=bf16)
    assert asked == {
        "device": "cpu",
        "folder": ("D", "raw", ("fr", "en")),
        "prepare": (Path("there"), settings, "fr", "en", "raw"),
        "train": (lessons, settings, "no such/run", here, 3, 4),
    }
    untrained = model.Transformer(settings.config(1_120))
    parameters = sum(weight.numel() for weight in untrained.parameters())
    return order, (
        f"12,345 sentence pairs, 1,120 subwords, {parameters:,} parameters; 2 × cpu, "
        f"{precision}; kept in no such/run\nand the run spoke\n"
    )


DONE = "done: python -m transformer evaluate no such/run\n"


def test_a_training_in_a_log(monkeypatch):
    _, beside = screens(monkeypatch)
    order, begins = a_training(monkeypatch, MOMENTS, 1234, **ON_THE_FIRST)
    assert order == ["folder", ("total", 0.0), "left"]
    assert beside.text() == (
        "1,234 pairs are too long and left out\n"
        f"{begins}{LINES[2]}\n{LINES[4]}\n{ENDS}\n{DONE}"
    )


def test_a_training_at_a_terminal(monkeypatch):
    _, beside = screens(monkeypatch, terminal=True)
    order, begins = a_training(monkeypatch, MOMENTS, **ON_THE_FIRST)
    moving = "".join(f"\r{line:<79}" for line in LINES)
    assert beside.text() == f"{begins}{moving}\n{ENDS}\n{DONE}"
    assert order[-1] == "left"


@pytest.mark.parametrize(
    ("seconds", "rate", "left"), [(0.5, "100", "4 s"), (0.0, "50,000,000,000", "0 s")]
)
def test_a_training_that_is_fast(monkeypatch, seconds, rate, left):
    _, beside = screens(monkeypatch, terminal=True)
    moments = [Moment(1, 10, 1, 2.0, 0.1, 1.0, 50, seconds)]
    ticks = 7.0, 7.0 + seconds
    _, begins = a_training(monkeypatch, moments, ticks=ticks, **ON_THE_FIRST)
    line = f"epoch 1  step 1 of 10  loss 2.000  {rate} tokens/s  {left} left at most"
    assert beside.text() == f"{begins}\r{line:<79}{DONE}"


@pytest.mark.parametrize("terminal", [False, True])
def test_the_others_wait_for_the_sentences_and_say_nothing(monkeypatch, terminal):
    _, beside = screens(monkeypatch, terminal)
    order, _ = a_training(monkeypatch, MOMENTS, 5, **ON_THE_FIRST | {"rank": 1})
    assert order == [("total", 0.0), "folder", "left"]
    assert beside == []


def test_a_training_that_has_nothing_left_to_do(monkeypatch):
    _, beside = screens(monkeypatch)
    _, begins = a_training(monkeypatch, [], bf16=True, **ON_THE_FIRST)
    assert beside.text() == begins + DONE


def test_a_measurement(monkeypatch, tmp_path):
    out, _ = screens(monkeypatch)
    asked = {}

    class Stub:
        languages, text = ("fr", "en"), "raw"

        def translate(self, *what):
            asked["translate"] = what
            return ["one", "two é"]

    def write_whole(path, data):
        out.append((path, data))

    monkeypatch.setattr(
        translation.SubwordTranslator,
        "load",
        lambda *what: asked.update(load=what) or Stub(),
    )
    monkeypatch.setattr(
        commands, "corpus_folder", lambda *what: asked.update(folder=what) or "there"
    )
    monkeypatch.setattr(
        translation,
        "read_pairs",
        lambda *what: asked.update(pairs=what) or [("un", "1"), ("deux", "2")],
    )
    scores = Score(12.3, 45.6, "how bleu", "how chrf")
    monkeypatch.setattr(
        translation, "score", lambda *what: asked.update(score=what) or scores
    )
    monkeypatch.setattr(model, "write_whole", write_whole)
    clock(monkeypatch, 10.0, 12.34)
    flags = "--data D --split test --beam-size 3 --length-penalty 0.5 --average 2"
    command = ["evaluate", "RUN", *flags.split(), "--out", str(tmp_path / "said")]
    assert commands.main(command) == 0
    assert asked == {
        "load": ("RUN", 2),
        "folder": ("D", "raw", ("fr", "en")),
        "pairs": ("there", "raw", "test", "fr", "en"),
        "translate": (["un", "deux"], 3, 0.5),
        "score": (["one", "two é"], ["1", "2"], "raw"),
    }
    found = {
        "weights": "RUN",
        "average": 2,
        "split": "test",
        "sentences": 2,
        "beam_size": 3,
        "length_penalty": 0.5,
        "bleu": 12.3,
        "chrf": 45.6,
        "bleu_signature": "how bleu",
        "chrf_signature": "how chrf",
        "seconds": 2.3,
    }
    kept = (tmp_path / "said", "one\ntwo é\n".encode())
    # Shown before the file is written, whatever becomes of that.
    assert out == [json.dumps(found, indent=1), "\n", "shown", kept, "shown"]


class Echo:
    """A translator that answers in capitals, and keeps what it was asked."""

    languages = ("fr", "en")

    def __init__(self):
        self.text, self.asked = "tok", []

    def translate(self, sentences, *how):
        self.asked.append((sentences, *how))
        if "bad" in sentences:
            raise ValueError(f"no such word:\n{sentences}")
        if isinstance(sentences, str):
            return sentences.upper()
        return [sentence.upper() for sentence in sentences]


@pytest.fixture
def spoken(monkeypatch):
    """What reads pieces of words, in place of what the weights hold."""
    echo, asked = Echo(), []
    monkeypatch.setattr(commands, "with_subwords", lambda which: True)
    monkeypatch.setattr(
        translation.SubwordTranslator, "load", lambda *what: asked.append(what) or echo
    )
    yield echo
    assert set(asked) == {("W",)}


def told(*more):
    return commands.main(["translate", "--weights", "W", *more])


def test_a_sentence_goes_to_subwords_as_the_corpus_has_it(spoken, monkeypatch):
    out, _ = screens(monkeypatch)
    assert told("L'EAU", "est", "là ", "--beam-size", "3", "--length-penalty", "2") == 0
    assert spoken.asked == [(["l&apos; eau est là"], 3, 2.0)]
    assert out.text() == "L&APOS; EAU EST LÀ\n"
    spoken.text = "raw"
    assert told(" L'EAU ") == 0
    assert spoken.asked[1:] == [(["L'EAU"], 1, 0.6)]


def test_lines_go_to_subwords_64_at_a_time(spoken, tmp_path, monkeypatch):
    out, beside = screens(monkeypatch)
    lines = [f"line {number}" for number in range(150)]
    (tmp_path / "lines").write_text("\n".join(lines) + "\n", "utf-8")
    assert told("--file", str(tmp_path / "lines")) == 0
    assert [len(some) for some, *_ in spoken.asked] == [64, 64, 22]
    assert [how for _, *how in spoken.asked] == [[1, 0.6]] * 3
    assert out.text() == "".join(f"{line.upper()}\n" for line in lines)
    assert out.count("shown") == 3 + 1  # after each part, and in the end
    lines[70] = "bad"
    (tmp_path / "lines").write_text("\n".join(lines), "utf-8")
    out.clear()
    assert told("--file", str(tmp_path / "lines")) == 2
    assert out.text() == "".join(f"{line.upper()}\n" for line in lines[:64])
    assert beside.text().startswith("python -m transformer: lines 65 to 128: no such")
    assert beside.text().count("\n") == 1
    assert "\\n[" in beside.text()
    lines[70], lines[140] = "line", "bad"
    (tmp_path / "lines").write_text("\n".join(lines), "utf-8")
    assert told("--file", str(tmp_path / "lines")) == 2
    assert "\npython -m transformer: lines 129 to 150: no such" in beside.text()


class Typed(list):
    """A terminal with somebody at it."""

    def isatty(self):
        return True


def test_somebody_types_to_subwords(spoken, monkeypatch):
    out, beside = screens(monkeypatch)
    monkeypatch.setattr(sys, "stdin", Typed(["one\n", "bad\n", "two\n"]))
    assert told() == 0
    assert [some for some, *_ in spoken.asked] == [["one"], ["bad"], ["two"]]
    assert out.text() == "ONE\nTWO\n"
    assert out.count("shown") == 2 + 1
    first, complaint = beside.text().splitlines()
    assert first == "One sentence a line; end with Ctrl-D (Ctrl-Z on Windows)."
    assert complaint == "no such word:\\n['bad']"
    assert "shown" in beside


class Piped(list):
    """Lines that nobody types."""

    def isatty(self):
        return False


def test_lines_of_a_pipe_go_to_subwords_64_at_a_time(spoken, monkeypatch):
    out, beside = screens(monkeypatch)
    monkeypatch.setattr(sys, "stdin", Piped(["line\n"] * 65))
    assert told() == 0
    assert [len(some) for some, *_ in spoken.asked] == [64, 1]
    assert out.text() == "LINE\n" * 65
    assert beside == []
    monkeypatch.setattr(sys, "stdin", None)
    assert told() == 2
    assert beside.text() == (
        "python -m transformer: no sentence given, and standard input is closed\n"
    )


def test_a_file_is_read_at_a_terminal_too(spoken, monkeypatch, tmp_path):
    _, beside = screens(monkeypatch)
    (tmp_path / "lines").write_text("one\ntwo", "utf-8")
    for stdin in (Typed(["three"]), None):
        monkeypatch.setattr(sys, "stdin", stdin)
        spoken.asked.clear()
        assert told("--file", str(tmp_path / "lines")) == 0
        assert [some for some, *_ in spoken.asked] == [["one", "two"]]
    assert beside == []


@pytest.fixture
def phrasebook(monkeypatch):
    """What knows whole words, in place of what the weights hold."""
    echo, asked = Echo(), []
    monkeypatch.setattr(commands, "with_subwords", lambda which: False)
    monkeypatch.setattr(
        commands, "load_translator", lambda *what: asked.append(what) or echo
    )
    yield echo
    assert set(asked) == {("W",)}


def test_a_sentence_goes_to_the_phrasebook_as_it_is(phrasebook, monkeypatch):
    out, _ = screens(monkeypatch)
    options = "--beam-size", "3", "--length-penalty", "2"
    assert told("L'eau", "est", "là", *options) == 0
    assert phrasebook.asked == [("L'eau est là", 3, 2.0)]
    assert out.text() == "L'EAU EST LÀ\n"


def test_lines_go_to_the_phrasebook_one_by_one(phrasebook, tmp_path, monkeypatch):
    out, beside = screens(monkeypatch)
    (tmp_path / "lines").write_text("one\n \ntwo\nbad\nfour\n", "utf-8")
    assert told("--file", str(tmp_path / "lines")) == 2
    assert phrasebook.asked == [(one, 1, 0.6) for one in ("one", "two", "bad")]
    assert out == ["ONE", "\n", "shown", "\n", "shown", "TWO", "\n", "shown"]
    assert beside.text() == "python -m transformer: line 4: no such word:\\nbad\n"


def test_somebody_types_to_the_phrasebook(phrasebook, monkeypatch):
    out, beside = screens(monkeypatch)
    monkeypatch.setattr(sys, "stdin", Typed(["one\n", "bad", "two\n"]))
    assert told() == 0
    assert out.text() == "ONE\n\nTWO\n\n"
    first, complaint = beside.text().splitlines()
    assert first.startswith("One French sentence a line; end with Ctrl-D (Ctrl-Z on")
    assert complaint == "no such word:\\nbad"


def test_lines_of_a_pipe_go_to_the_phrasebook(phrasebook, monkeypatch, tmp_path):
    out, beside = screens(monkeypatch)
    monkeypatch.setattr(sys, "stdin", Piped(["one\n", "two\n", "bad"]))
    assert told() == 2
    assert out.text() == "ONE\n\nTWO\n\n"
    assert beside.text() == "python -m transformer: line 3: no such word:\\nbad\n"
    beside.clear()
    (tmp_path / "lines").write_text("four\n", "utf-8")
    for stdin in (Typed(["three"]), None):
        monkeypatch.setattr(sys, "stdin", stdin)
        assert told("--file", str(tmp_path / "lines")) == 0
        assert phrasebook.asked[-1][0] == "four"
    assert beside == []
    assert told() == 2
    assert beside.text().endswith("no sentence given, and standard input is closed\n")
    beside.clear()
    assert told("--file", "lines", "sentence") == 2
    assert (
        beside.text() == "python -m transformer: give a sentence or --file, not both\n"
    )


@pytest.mark.parametrize("weights", [None, "W"])
def test_whose_weights(monkeypatch, weights):
    asked = []
    monkeypatch.setattr(
        decoding.Translator, "load", lambda *what: asked.append(what) or "a file's"
    )
    monkeypatch.setattr(decoding.Translator, "phrasebook", lambda: "the one that ships")
    found = commands.load_translator(weights)
    assert (found, asked) == (
        ("a file's", [("W",)]) if weights else ("the one that ships", [])
    )


@pytest.mark.parametrize("about", [{"subwords": "{}"}, {"source": "a b"}])
def test_who_reads_pieces_of_words(monkeypatch, tmp_path, about):
    asked = []
    monkeypatch.setattr(
        model, "read_checkpoint", lambda path: asked.append(path) or ({}, about)
    )
    assert commands.with_subwords("file") is ("subwords" in about)
    assert asked == [Path("file")]
    assert commands.with_subwords(str(tmp_path)) is True
    assert commands.with_subwords(None) is False
    assert len(asked) == 1


@pytest.mark.parametrize("home", [None, "", "elsewhere"])
def test_what_is_fetched_is_kept_in_the_users_cache(monkeypatch, tmp_path, home):
    _, beside = screens(monkeypatch)

    def fetch(*asked):
        *what, progress = asked
        progress("a.gz", 1234, 0)
        progress("b.gz", 5, 10)
        progress("b.gz", 10, 10)
        progress("c.gz", 0, 0)
        return what

    monkeypatch.setattr(translation, "fetch_multi30k", fetch)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if home is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", home)
    cache = Path("elsewhere") if home else tmp_path / ".cache"
    folder = cache / "tested-transformer" / "multi30k"
    asked = commands.corpus_folder(None, "raw", ("fr", "en"))
    assert asked == [folder, "raw", ("fr", "en")]
    assert beside.text() == (
        "\rfetching a.gz: 1,234 bytes\rfetching b.gz:  50%\rfetching b.gz: 100%\n"
        "\rfetching c.gz: 0 bytes\n"
    )
    assert commands.corpus_folder(str(tmp_path), "raw", ("fr", "en")) == tmp_path
    with pytest.raises(ValueError, match=r"^no folder nowhere$"):
        commands.corpus_folder("nowhere", "raw", ("fr", "en"))


def test_lines_are_utf_8_whatever_the_machine_prefers(monkeypatch, tmp_path):
    asked, read = [], Path.read_text

    def read_text(path, encoding):
        asked.append(encoding)
        return read(path, encoding)

    (tmp_path / "lines").write_text("é\n\nà\n\n", "utf-8")
    monkeypatch.setattr(Path, "read_text", read_text)
    lines = commands.lines_to_translate(str(tmp_path / "lines"))
    assert (lines, asked) == (["é", "", "à", ""], ["utf-8"])


METRICS = {
    "runs/one": [
        {"step": 1, "loss": 5.0},
        {"step": 2, "loss": 4.0, "checked": 4.5, "bleu": 1.0},
        {"step": 3, "loss": 3.0},
        {"step": 4, "loss": 2.5, "checked": 2.0, "bleu": 20.0},
    ],
    "two": [{"step": 7, "loss": 6.0, "checked": 5.0, "bleu": 3.0}],
}


@pytest.fixture
def drawing():
    """Whatever style a reader has, and whatever screen."""
    import matplotlib
    from matplotlib import pyplot

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        pyplot.switch_backend("Agg")
        yield matplotlib
        pyplot.close("all")


@pytest.mark.usefixtures("drawing")
def test_a_drawing_of_two_runs(monkeypatch):
    drawn = []
    monkeypatch.setattr(translation, "read_metrics", METRICS.get)
    monkeypatch.setattr(
        "matplotlib.figure.Figure.savefig", lambda *what: drawn.append(what)
    )
    assert commands.main(["plot", *METRICS, "--out", "x.svg"]) == 0
    ((figure, out),) = drawn
    assert out == "x.svg"
    assert figure.get_size_inches().tolist() == [9, 3.6]
    losses, bleus = figure.axes
    one, one_checked, two, two_checked = losses.lines
    points = [line.get_xydata().tolist() for line in losses.lines]
    assert points == [
        [[1, 5.0], [2, 4.0], [3, 3.0], [4, 2.5]],
        [[2, 4.5], [4, 2.0]],
        [[7, 6.0]],
        [[7, 5.0]],
    ]
    points = [line.get_xydata().tolist() for line in bleus.lines]
    assert points == [[[2, 1.0], [4, 20.0]], [[7, 3.0]]]
    assert [line.get_label() for line in bleus.lines] == ["one", "two"]
    names = [text.get_text() for text in bleus.get_legend().get_texts()]
    assert names == ["one", "two"]
    assert losses.get_xlabel() == bleus.get_xlabel() == "step"
    assert losses.get_ylabel() == "loss, nats a target (dots: validation)"
    assert bleus.get_ylabel() == "validation BLEU, greedy"
    for faint, *firm in ((one, one_checked, bleus.lines[0]), (two, two_checked)):
        assert faint.get_alpha() == 0.3
        for line in firm:
            assert line.get_alpha() is None
            assert (line.get_marker(), line.get_linestyle()) == ("o", "-")
            assert line.get_markersize() == 3
            assert line.get_color() == faint.get_color()
    assert one.get_color() != two.get_color()
    renderer = figure.canvas.get_renderer()
    for axes in (losses, bleus):  # nothing is cut off, nothing overlaps
        box = axes.get_tightbbox(renderer)
        assert box.x0 >= 0
        assert box.y0 >= 0
    assert losses.get_tightbbox(renderer).x1 <= bleus.get_tightbbox(renderer).x0


def test_a_run_has_one_colour_whatever_the_style(drawing, monkeypatch):
    drawn = []
    monkeypatch.setattr(translation, "read_metrics", METRICS.get)
    monkeypatch.setattr(
        "matplotlib.figure.Figure.savefig", lambda *w: drawn.append(w[0])
    )
    wide = drawing.cycler(color=["r", "g", "b", "k"], linewidth=[1, 2, 3, 4])
    drawing.rcParams["axes.prop_cycle"] = wide
    assert commands.main(["plot", *METRICS, "--out", "x.svg"]) == 0
    losses, bleus = drawn[0].axes
    colours = [line.get_color() for line in losses.lines]
    assert colours[::2] == colours[1::2] == [line.get_color() for line in bleus.lines]


@pytest.mark.usefixtures("drawing")
def test_what_can_be_drawn_and_where(monkeypatch, tmp_path):
    _, beside = screens(monkeypatch)
    monkeypatch.setattr(translation, "read_metrics", METRICS.get)
    assert commands.main(["plot", "two", "--out", f"{tmp_path}/x.doc"]) == 2
    assert beside.text().startswith(
        f"python -m transformer: cannot draw {tmp_path}/x.doc: Format 'doc' is not"
    )
    assert commands.main(["plot", "two", "three", "--out", f"{tmp_path}/x.svg"]) == 2
    assert beside.text().endswith(
        "python -m transformer: three has no metrics.jsonl with lines in it\n"
    )
    assert commands.main(["plot", "two", "--out", f"{tmp_path}/x.svg"]) == 0
    assert (tmp_path / "x.svg").read_text().startswith("<?xml")


def test_what_is_said_is_shown_at_once(monkeypatch):
    _, beside = screens(monkeypatch)
    commands.say("half", end="")
    commands.say("whole")
    assert beside == ["half", "shown", "whole", "\n", "shown"]
