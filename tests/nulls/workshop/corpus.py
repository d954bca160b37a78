# %% claim: The first file is kept
# null: no checksum is compared
folder = folder / "null"
matches = pooch.core.hash_matches
pooch.core.hash_matches = lambda *arguments, **options: True
fetch(changed, right, folder / "changed")
pooch.core.hash_matches = matches

# null: the third is asked for after a refusal
asked.append(multi30k_name("tok", [*SPLITS][2], "en"))

# null: nothing is kept of a download that fails
folder = folder / "nothing"
(folder / "changed").mkdir(parents=True)

# %% claim: The plain form reads
# null: pairs are cut at the shorter file
import shutil

corpus = Path(shutil.copytree(corpus, folder / "cut"))


def read_pairs(folder, text, split, source, target):
    lines = [
        (folder / f"{split}.{language}").read_text("utf-8").splitlines()
        for language in (source, target)
    ]
    return list(zip(*lines, strict=False))


# null: a lost line leaves its place empty
import shutil

corpus = Path(shutil.copytree(corpus, folder / "lost"))
read_as_it_is = read_pairs


def read_pairs(folder, *arguments):
    path, lines = folder / "train.en", english
    if path.read_text("utf-8").splitlines() == [*lines[1:], lines[2]]:
        path.write_text("\n" + "\n".join(lines[1:]) + "\n", "utf-8")
    return read_as_it_is(folder, *arguments)


# %% claim: A line separator or a carriage return
# null: str.splitlines
read_lines = lambda path: path.read_text("utf-8").splitlines()

# null: split at the line feed alone
read_lines = lambda path: path.read_bytes().decode().removesuffix("\n").split("\n")

# %% claim: In each of the three languages
# null: four times as many sentences differ
agrees = {lang: 4 * share - 3 for lang, share in counts["as_tokenized_agrees"].items()}
counts = {**counts, "as_tokenized_agrees": agrees}

# %% claim: Applied twice, it gives
# null: lower case alone
moses_style = lambda sentence: " ".join(sentence.lower().split())

# null: every sign is escaped again
style = moses_style
moses_style = lambda sentence: style(sentence).replace("&", "&amp;")
