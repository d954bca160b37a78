"""Parallel corpora: fetched from a server of our own, read, and put in Moses' style."""

import contextlib
import gzip
import hashlib
import http.server
import logging
import os
import threading
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from transformer.text import multi30k
from transformer.text.multi30k import (
    MULTI30K_SHA256,
    SPLITS,
    fetch_multi30k,
    find_text,
    moses_style,
    multi30k_name,
    read_lines,
    read_pairs,
    require_text,
    undo_moses_style,
)

ROOT = Path(__file__).resolve().parent.parent
REAL = Path(os.environ.get("MULTI30K", ROOT.parent / "shared/data/multi30k"))
with_multi30k = pytest.mark.skipif(not REAL.is_dir(), reason="Multi30k is not here")


# Fetching


@contextlib.contextmanager
def served(files, cut=None, length=True):
    """A web server that has some files, and may break off in one of them."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            requests.append(self.path)
            data = files.get(self.path.lstrip("/"))
            if data is None:
                self.send_error(404)
                return
            self.send_response(200)
            if length:
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2] if self.path[1:] == cut else data)

        def log_message(self, *_):
            pass

    requests = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def repository(monkeypatch):
    """Small files in place of Multi30k's, and their checksums."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    files = {}
    for split, name in SPLITS.items():
        for language in ("en", "de"):
            text = f"{split} {language}\n".encode() * 1000
            files[f"raw/{name}.{language}.gz"] = gzip.compress(text, mtime=0)
            files[f"tok/{name}.lc.norm.tok.{language}"] = text
            for kind in ("raw", "tok"):
                key, digest = f"{kind}/{split}.{language}", hashlib.sha256(text)
                monkeypatch.setitem(MULTI30K_SHA256, key, digest.hexdigest())
    return files


def files_in(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("text", ["raw", "tok"])
def test_fetching_gets_what_is_missing_once(tmp_path, repository, text, capsys):
    with served(repository) as (url, requests):
        for _ in range(2):
            folder = fetch_multi30k(str(tmp_path), text, ("en", "de"), base_url=url)
    assert folder == tmp_path
    assert len(requests) == len(files_in(tmp_path)) == 6
    pairs = read_pairs(tmp_path, text, "test", "en", "de")
    assert pairs == [("test en", "test de")] * 1000
    (tmp_path / multi30k_name(text, "val", "de")).unlink()
    with served(repository) as (url, requests):
        fetch_multi30k(tmp_path, text, ("en", "de"), base_url=url)
    assert len(requests) == 1
    assert capsys.readouterr() == ("", "")


def test_fetching_leaves_poochs_logger_alone(tmp_path, repository, capsys):
    pooch = pytest.importorskip("pooch")
    pooch.get_logger().setLevel("INFO")  # whatever another program left there
    with served(repository) as (url, _):
        fetch_multi30k(tmp_path, "tok", ("en",), base_url=url)
    assert pooch.get_logger().level == logging.INFO
    assert capsys.readouterr() == ("", "")


def test_fetching_shows_its_progress(tmp_path, repository):
    class Bar:
        total = done = 0

        def update(self, count):
            self.done += count

        def reset(self):
            self.done = 0

        def close(self):
            finished.append((self.name, self.done, self.total))

    def bar(name):
        made = Bar()
        made.name = name
        return made

    finished = []
    with served(repository) as (url, _):
        fetch_multi30k(tmp_path, "tok", ("en",), bar, url)
    assert finished == [
        (f"{split}.lc.norm.tok.en", size, size)
        for split, size in (("train", 9000), ("val", 7000), ("test_2016_flickr", 8000))
    ]


def test_what_was_downloaded_by_hand_is_used(tmp_path, repository):
    for name, data in repository.items():
        if name.startswith("raw"):
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
    fetch_multi30k(tmp_path, "raw", ("en", "de"), base_url="http://127.0.0.1:9")
    assert len(read_pairs(tmp_path, "raw", "val", "en", "de")) == 1000


def test_a_language_that_is_not_there_is_named_first(tmp_path, repository):
    for languages, message in (
        (("en", "cs"), r"text in de, en, fr, got cs$"),
        (("en", "../x"), r"language must be a code, .* got '\.\./x'$"),
    ):
        with (
            served(repository) as (url, requests),
            pytest.raises(ValueError, match=message),
        ):
            fetch_multi30k(tmp_path, "raw", languages, base_url=url)
        assert not requests
    with pytest.raises(ValueError, match=r"^text must be tok or raw, got '\.\.'$"):
        fetch_multi30k(tmp_path, "..", ("en",))


def broken(repository, name, how):
    if how == "other bytes":
        repository[name] += gzip.compress(b"x") if name.endswith(".gz") else b"x\n"
    if how == "false bits":
        data = repository[name]
        repository[name] = data[:10] + b"\xff" + data[11:]
    if how == "too long":
        repository[name] = gzip.compress(bytes(50_000))
    if how == "not there":
        del repository[name]


@pytest.mark.parametrize(
    ("how", "name", "message"),
    [
        ("other bytes", "tok/val.lc.norm.tok.en", "it is not the file expected"),
        ("other bytes", "raw/val.en.gz", "it is not the file expected"),
        ("false bits", "raw/val.en.gz", "invalid block"),
        ("too long", "raw/val.en.gz", "more than 20,000 bytes"),
        ("not there", "tok/val.lc.norm.tok.en", "404"),
    ],
)
def test_a_file_that_cannot_be_had_is_named(
    tmp_path, repository, monkeypatch, how, name, message
):
    monkeypatch.setattr(multi30k, "MAX_FILE_BYTES", 20_000)
    broken(repository, name, how)
    with (
        served(repository) as (url, _),
        pytest.raises(ValueError, match=message) as error,
    ):
        fetch_multi30k(tmp_path, name[:3], ("en",), base_url=url)
    text = str(error.value)
    assert text.startswith(f"cannot fetch {url}/{name}: ")
    assert text.endswith(f"; download it yourself into {tmp_path / name[:3]}")
    assert "\n" not in text
    assert files_in(tmp_path) == [name[4:].replace("val", "train").removesuffix(".gz")]


def test_an_endless_download_ends(tmp_path, repository, monkeypatch):
    monkeypatch.setattr(multi30k, "MAX_FILE_BYTES", 5_000)
    with (
        served(repository) as (url, _),
        pytest.raises(ValueError, match="more than 5,000 bytes"),
    ):
        fetch_multi30k(tmp_path, "tok", ("en",), base_url=url)
    assert files_in(tmp_path) == []


@pytest.mark.parametrize("name", ["raw/val.en.gz", "tok/val.lc.norm.tok.en"])
@pytest.mark.parametrize("length", [True, False])
def test_a_broken_connection_leaves_no_half_file(tmp_path, repository, name, length):
    with (
        served(repository, cut=name, length=length) as (url, _),
        pytest.raises(ValueError, match=r"^cannot fetch .*val.*; download it yourself"),
    ):
        fetch_multi30k(tmp_path, name[:3], ("en",), base_url=url)
    assert len(files_in(tmp_path)) == 1  # the first was whole, and stayed
    with served(repository) as (url, requests):
        fetch_multi30k(tmp_path, name[:3], ("en",), base_url=url)
    assert len(requests) == 2


def test_without_a_network_one_line_names_the_file(tmp_path, repository):
    with pytest.raises(ValueError, match=r"^cannot fetch http.*refused") as error:
        fetch_multi30k(tmp_path, "tok", ("en",), base_url="http://127.0.0.1:9")
    assert "\n" not in str(error.value)
    assert files_in(tmp_path) == []


# Reading


def test_the_first_name_that_is_there_is_read(tmp_path):
    names = ["tok/val.lc.norm.tok.en", "val.lc.norm.tok.en", "tok/val.en", "val.en"]
    there = [f"{name}{end}" for name in names for end in ("", ".gz")]
    (tmp_path / "tok").mkdir()
    for name in reversed(there):
        (tmp_path / name).touch()
        assert find_text(tmp_path, "tok", "val", "en") == tmp_path / name
    for name in there:
        (tmp_path / name).unlink()
    with pytest.raises(ValueError, match=r"neither raw/val\.en, nor val\.en, packed"):
        find_text(str(tmp_path), "raw", "val", "en")
    (tmp_path / "val.pt-BR").touch()
    assert find_text(tmp_path, "raw", "val", "pt-BR") == tmp_path / "val.pt-BR"


@pytest.mark.parametrize(
    ("text", "split", "language", "message"),
    [
        ("raw", "val", "", "language must be"),
        ("raw", "val", "en us", "language must be"),
        ("raw", "val", "a/b", "language must be"),
        ("raw", "val", "..", "language must be"),
        ("raw", "val", "x" * 41, "language must be"),
        ("..", "val", "en", "text must be"),
        ("/etc", "val", "en", "text must be"),
        ("raw", "../val", "en", "split must be"),
    ],
)
def test_no_name_leads_out_of_the_folder(tmp_path, text, split, language, message):
    (tmp_path / "val.en").write_text("a\n")
    folder = tmp_path / "inside"
    folder.mkdir()
    with pytest.raises(ValueError, match=message):
        find_text(folder, text, split, language)


def test_lines_of_every_kind(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes("\ufeffun\r\ndeux\rd\u2028eux\n\n né".encode())
    lines = ["un", "deux d\u2028eux", "", " né"]
    assert read_lines(path) == lines
    packed = tmp_path / "lines.gz"
    packed.write_bytes(gzip.compress(path.read_bytes() + b"\n"))
    assert read_lines(str(packed)) == lines
    path.write_bytes(b"")
    assert read_lines(path) == [""]


def test_a_carriage_return_inside_a_line_shifts_no_pair(tmp_path):
    """A bug report of other toolkits: the files have as many lines for `wc`."""
    french = ["un\r1", "deux", "trois", "quatre"]
    english = ["one", "two", "three\r3", "four"]
    for language, lines in (("fr", french), ("en", english)):
        data = "".join(f"{line}\n" for line in lines)
        (tmp_path / f"val.{language}").write_bytes(data.encode())
    pairs = read_pairs(tmp_path, "raw", "val", "fr", "en")
    assert pairs == [
        ("un 1", "one"),
        ("deux", "two"),
        ("trois", "three 3"),
        ("quatre", "four"),
    ]


def test_a_file_without_line_feeds_has_lines_that_end_in_carriage_returns(tmp_path):
    (tmp_path / "old").write_bytes(b"un\rdeux\r\rtrois\r")
    assert read_lines(tmp_path / "old") == ["un", "deux", "", "trois"]


def test_what_cannot_be_read_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(multi30k, "MAX_FILE_BYTES", 500)
    packed = gzip.compress(b"one\n" * 99)
    flipped = packed[:12] + b"\xff" + packed[13:]
    bomb = gzip.compress(bytes(501))
    for name, data, message in (
        ("x.en", b"a\xff", "invalid start byte"),
        ("x.en", b"a" * 501, "more than 500 bytes"),
        ("x.gz", bomb, "more than 500 bytes"),
        ("x.gz", b"not packed", "Not a gzipped file"),
        ("x.gz", packed[:-9], "end-of-stream"),
        ("x.gz", flipped, ""),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ValueError, match=f"cannot be read as text: .*{message}"):
            read_lines(tmp_path / name)
    with pytest.raises(ValueError, match=r"cannot be read as text: .*No such file"):
        read_lines(tmp_path / "nothing")


def test_pairs_are_stripped_and_blank_ones_left_out(tmp_path):
    (tmp_path / "val.fr").write_text(" un \n\ndeux\nd\u2028\u2028eux\n \n\n", "utf-8")
    (tmp_path / "val.en").write_bytes(b"\xef\xbb\xbfone\ntwo\r\n\ttwo\r\nt\nfive\n\n")
    pairs = read_pairs(str(tmp_path), "raw", "val", "fr", "en")
    assert pairs == [("un", "one"), ("deux", "two"), ("d\u2028\u2028eux", "t")]
    (tmp_path / "val.fr").write_text("one\n" * 1234)
    with pytest.raises(ValueError, match=r"val\.en should pair, but have 1,234 "):
        read_pairs(tmp_path, "raw", "val", "fr", "en")
    (tmp_path / "val.fr").write_text("\n")
    (tmp_path / "val.en").write_text("one\n")
    with pytest.raises(ValueError, match=r"val\.fr holds no sentences"):
        read_pairs(tmp_path, "raw", "val", "fr", "en")


# Moses' style


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        *((f"ein {sign}hund", "ein &quot; hund") for sign in '“”„«»"'),
        *((f"man{sign}s", "man &apos;s") for sign in "’‘'"),
        (
            "L’homme n'a qu'une chef-d'œuvre, aujourd'hui.",
            "l&apos; homme n&apos; a "
            "qu&apos; une chef-d&apos; œuvre , aujourd&apos; hui .",
        ),
        ("The boys' dog isn't ours", "the boys &apos; dog isn &apos;t ours"),
        ("a–b", "a-b"),
        ("a—b", "a - b"),
        ("Wait…", "wait ..."),
        ("No. 5.", "no. 5 ."),
        ("Dr. No waits .", "dr. no waits ."),
        ("ends..", "ends .."),
        ("ends.  ", "ends ."),
        ("10,000 men, 1.5 m", "10,000 men , 1.5 m"),
        ("AT&T &amp; co", "at &amp; t &amp; co"),
        ("[a|b] <c>", "&#91; a &#124; b &#93; &lt; c &gt;"),
        ("Why?! (so)", "why ? ! ( so )"),
        ("nai\u0308ve", "na\u00efve"),
        ("हिन्दी।", "हिन्दी ।"),
        ("\ufeffwell-known\r\n", "well-known"),
        ("&#88;ylophon &#201;te&#769;", "xylophon \u00e9t\u00e9"),
        ('A man\'s dog, "Rex".', "a man &apos;s dog , &quot; rex &quot; ."),
        ("", ""),
    ],
)
def test_moses_style(typed, expected):
    assert moses_style(typed) == expected
    assert moses_style(expected) == expected


@pytest.mark.parametrize(
    ("sentence", "language", "plain"),
    [
        (
            "c&apos; est l&apos; homme qu&apos; on voit .",
            "fr",
            "c'est l'homme qu'on voit.",
        ),
        ("&quot; oui &quot; &amp; non", "fr", '"oui" & non'),
        ("a man &apos;s dog , 2,5 m", "en", "a man's dog, 2,5 m"),
        ("ein hund !", "xx", "ein hund!"),
        ("", "en", ""),
    ],
)
def test_moses_style_is_undone(sentence, language, plain):
    assert undo_moses_style(sentence, language) == plain


SIGNS = "aA dlsqu'’.,;&#391amp<>-–—…\"[]|İΣ\u0301é\n"


@pytest.mark.plain  # no shapes here
@given(st.text(max_size=20) | st.text(alphabet=SIGNS, max_size=20))
@example("I'd've")
@example("&#38;#88;")
def test_moses_style_leaves_its_own_text_alone(sentence):
    once = moses_style(sentence)
    assert moses_style(once) == once


# Multi30k itself, where it is


@with_multi30k
@pytest.mark.parametrize("text", ["raw", "tok"])
def test_the_files_here_are_those_that_fetching_expects(text):
    for split in SPLITS:
        for language in ("en", "de", "fr"):
            lines = read_lines(find_text(REAL, text, split, language))
            data = "".join(f"{line}\n" for line in lines).encode()
            expected = MULTI30K_SHA256[f"{text}/{split}.{language}"]
            assert hashlib.sha256(data).hexdigest() == expected


@with_multi30k
@pytest.mark.parametrize("language", ["en", "de", "fr"])
def test_moses_style_is_that_of_the_tok_files(language):
    tok, raw = (
        [
            line
            for split in ("val", "test")
            for line in read_lines(find_text(REAL, text, split, language))
        ]
        for text in ("tok", "raw")
    )
    changed = [line for line in tok if moses_style(line) != line]
    assert len(changed) <= 2  # full stops that Moses left where they were
    assert all(line.endswith(".") and not line.endswith(" .") for line in changed)
    equal = sum(moses_style(a) == b for a, b in zip(raw, tok, strict=True))
    assert equal >= len(tok) - 6
    undone = [undo_moses_style(line, language) for line in tok]
    assert sum(map(str.__eq__, map(moses_style, undone), tok)) >= 0.99 * len(tok)


def test_kinds_of_text():
    require_text("tok")
    require_text("raw")
    with pytest.raises(ValueError, match=r"^text must be tok or raw, got 'Tok'$"):
        require_text("Tok")
