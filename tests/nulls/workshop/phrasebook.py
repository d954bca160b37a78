# %% claim: The grammar writes the running
# null: no elision
_elide = tuple

# null: adjectives do not agree
_agree = lambda adjective, gender, plural, following="": adjective.masculine

# null: *his* for everybody
_THEIRS = {**_THEIRS, "her": _THEIRS["his"]}

# %% claim: In these frames each choice
# null: two choices make the same sentence
frames_of = _frames
_frames = lambda: {
    kind: [
        frame._replace(
            slots=(*frame.slots[:-1], (*frame.slots[-1], frame.slots[-1][-1]))
        )
        for frame in frames
    ]
    for kind, frames in frames_of().items()
}

# null: a choice that only English shows
frames_of = _frames
_frames = lambda: {
    kind: [
        frame._replace(
            build=lambda *choice, frame=frame: frame.build(*choice)._replace(
                french=frame.build(*[slot[0] for slot in frame.slots]).french
            )
        )
        for frame in frames
    ]
    for kind, frames in frames_of().items()
}

# %% claim: Of 100,000 fillings of frames
# null: *his* or *her* by chance
theirs, frames_of = {"his", "her"}, _frames


def by_chance(pair):
    whose = random.choice(("his", "her"))
    words = tuple(whose if word in theirs else word for word in pair.english)
    return pair._replace(english=words)


_frames = lambda: {
    kind: [
        frame._replace(
            build=lambda *choice, frame=frame: by_chance(frame.build(*choice))
        )
        for frame in frames
    ]
    for kind, frames in frames_of().items()
}

# null: the same frames twice
frames_of = _frames
_frames = lambda: {**frames_of(), ("once", "more"): frames_of()["mood", "names"]}

# %% claim: 100,000 random sentences
# null: a word that no sentence has
french = [*french, "zèbre"]

# %% claim: Drawn in this way
# null: drawn evenly from all


def _random_pair(rng):
    (frame,) = rng.choices(every_frame, [frame.total() for frame in every_frame])
    return frame.fill(rng)


# null: a frame drawn evenly from all frames
_random_pair = lambda rng: rng.choice(every_frame).fill(rng)

# %% claim: In each of the three tables every word
# null: nothing is held out
HELD_OUT = frozenset()

# null: held out at random, as many
combinations = [
    frozenset(pair)
    for rows, columns in (
        (_PLACE_NAMES, list(_MONTHS)),
        (_NOUN_NAMES, _COLOUR_NAMES),
        (_NOUN_NAMES, _VERB_NAMES),
    )
    for pair in itertools.product(rows, columns)
]
HELD_OUT = set(random.Random(0).sample(combinations, len(HELD_OUT)))

# null: forms are taken for words of their own
root_words = lambda: {word: word for pair in HELD_OUT for word in pair}

# null: everything is held out
is_held_out = lambda words: True
