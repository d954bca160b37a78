"""The phrasebook: a grammar of French sentences with their English translations.

Made from book/workshop/phrasebook.md: edit the chapter, not this file.
"""

import functools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from transformer.checks import require_bool, require_positive
from transformer.text.batches import Example
from transformer.text.words import Vocabulary, WordTokenizer

__all__ = [
    "Pair",
    "count_sentences",
    "phrasebook_tokenizers",
    "phrasebook_examples",
    "sample_pairs",
    "HELD_OUT",
    "root_words",
    "is_held_out",
    "Kind",
    "word_kinds",
    "BEFORE_VOWEL",
]


class _Noun(NamedTuple):
    """A noun, its gender (m or f), its translation and the colours it may have."""

    french: str
    gender: str
    english: str
    colours: str = "rouge noir blanc vert bleu gris"


class _Adjective(NamedTuple):
    """An adjective in both genders; three have a form of their own before a vowel."""

    masculine: str
    feminine: str
    english: str
    before_vowel: str = ""


class _Place(NamedTuple):
    """A place, the article it takes in French (cities take none), its translation."""

    french: str
    article: str
    english: str


class _Verb(NamedTuple):
    """A verb as je, tu, il, nous, vous and ils say it, and what may go with it.

    `times` and `determiners` name the kinds that sound natural after the verb;
    `city_times` are further times when the place is a city.
    """

    french: Sequence[str]
    english: str
    times: str = ""
    determiners: str = ""
    city_times: str = ""


def _regular(stem: str, stressed: str = "") -> Sequence[str]:
    """The present of a verb in -er; some stems change where the ending is silent."""
    strong = stressed or stem
    silent = strong + "e", strong + "es", strong + "e"
    return (*silent, stem + "ons", stem + "ez", strong + "ent")


_NOUNS = (
    _Noun("maison", "f", "house"),
    _Noun("voiture", "f", "car"),
    _Noun("vélo", "m", "bike"),
    _Noun("bateau", "m", "boat"),
    _Noun("livre", "m", "book"),
    _Noun("robe", "f", "dress"),
    _Noun("chapeau", "m", "hat"),
    _Noun("chaise", "f", "chair"),
    _Noun("horloge", "f", "clock"),
    _Noun("parapluie", "m", "umbrella"),
    _Noun("fleur", "f", "flower", "rouge blanc bleu"),
    _Noun("arbre", "m", "tree", "rouge vert"),
    _Noun("oiseau", "m", "bird"),
    _Noun("chat", "m", "cat", "noir blanc gris"),
    _Noun("chien", "m", "dog", "noir blanc gris"),
)
_WASHABLE = ("voiture", "vélo", "bateau", "robe", "chapeau", "chaise", "chat", "chien")
_PEOPLE = (
    _Noun("frère", "m", "brother"),
    _Noun("sœur", "f", "sister"),
    _Noun("ami", "m", "friend"),
    _Noun("amie", "f", "friend"),
    _Noun("enfant", "m", "child"),
)
_WOMEN = ("Jane", "Marie", "Alice")
_MEN = ("Paul", "Luc", "Hugo")
_SIZES = (
    _Adjective("petit", "petite", "small"),
    _Adjective("grand", "grande", "big"),
    _Adjective("beau", "belle", "beautiful", "bel"),
    _Adjective("vieux", "vieille", "old", "vieil"),
    _Adjective("nouveau", "nouvelle", "new", "nouvel"),
)
_COLOURS = (
    _Adjective("rouge", "rouge", "red"),
    _Adjective("noir", "noire", "black"),
    _Adjective("blanc", "blanche", "white"),
    _Adjective("vert", "verte", "green"),
    _Adjective("bleu", "bleue", "blue"),
    _Adjective("gris", "grise", "grey"),
)
_MOODS = (
    _Adjective("content", "contente", "happy"),
    _Adjective("triste", "triste", "sad"),
    _Adjective("malade", "malade", "ill"),
    _Adjective("fatigué", "fatiguée", "tired"),
)
_PLACES = (
    _Place("France", "la", "France"),
    _Place("Canada", "le", "Canada"),
    _Place("Afrique", "la", "Africa"),
    _Place("Paris", "", "Paris"),
    _Place("Espagne", "la", "Spain"),
    _Place("Japon", "le", "Japan"),
    _Place("Londres", "", "London"),
    _Place("États-Unis", "les", "the United States"),
    _Place("Italie", "la", "Italy"),
    _Place("Rome", "", "Rome"),
    _Place("Brésil", "le", "Brazil"),
    _Place("Angleterre", "la", "England"),
    _Place("Berlin", "", "Berlin"),
    _Place("Pays-Bas", "les", "the Netherlands"),
)
_MONTHS = {
    "janvier": "January",
    "février": "February",
    "mars": "March",
    "avril": "April",
    "mai": "May",
    "juin": "June",
    "juillet": "July",
    "août": "August",
    "septembre": "September",
    "octobre": "October",
    "novembre": "November",
    "décembre": "December",
}
_SEASONS = {
    "printemps": "spring",
    "été": "summer",
    "automne": "autumn",
    "hiver": "winter",
}
_DAYS = {
    "lundi": "Monday",
    "mardi": "Tuesday",
    "mercredi": "Wednesday",
    "jeudi": "Thursday",
    "vendredi": "Friday",
    "samedi": "Saturday",
    "dimanche": "Sunday",
}
_BE = ("suis", "es", "est", "sommes", "êtes", "sont")
_GO = ("vais", "vas", "va", "allons", "allez", "vont")
_HAVE = ("ai", "as", "a", "avons", "avez", "ont")
_SELL = ("vends", "vends", "vend", "vendons", "vendez", "vendent")
_WANT = ("veux", "veux", "veut", "voulons", "voulez", "veulent")
_VISITING = (
    _Verb(_regular("visit"), "visit", "month season summers day"),
    _Verb(_regular("aim"), "like", "month season"),
)
_STAYING = (
    _Verb(_GO, "go to", "month season summers day", "", "mondays"),
    _Verb(_BE, "be in", "month season day", "", "mondays"),
    _Verb(_regular("habit"), "live in", "month season"),
    _Verb(_regular("travaill"), "work in", "month season", "", "mondays"),
)
_ALL = "definite indefinite possessive number"
_HANDLING = (
    _Verb(_regular("aim"), "like", "", "definite possessive"),
    _Verb(_WANT, "want", "", "definite indefinite number"),
    _Verb(_HAVE, "have", "", "indefinite number"),
    _Verb(
        _regular("achet", "achèt"),
        "buy",
        "month season day",
        "definite indefinite number",
    ),
    _Verb(_SELL, "sell", "month season day", _ALL),
    _Verb(
        _regular("cherch"),
        "look for",
        "season mondays",
        "definite indefinite possessive",
    ),
    _Verb(_regular("regard"), "look at", "month season mondays", _ALL),
    _Verb(_regular("dessin"), "draw", "month season summers mondays", _ALL),
    _Verb(_regular("lav"), "wash", "month mondays day", "definite possessive number"),
)


class Pair(NamedTuple):
    """Some French words and their translation: a whole sentence or a part of one."""

    french: tuple[str, ...]
    english: tuple[str, ...]


_VOWELS = tuple("aeéêhioôuAEÉIO")  # h is silent in every word here that it begins
BEFORE_VOWEL = {
    "le": "l'",
    "la": "l'",
    "je": "j'",
    "ne": "n'",
    "de": "d'",
    "ma": "mon",
    "ta": "ton",
    "sa": "son",
}


def _elide(words: Iterable[str]) -> tuple[str, ...]:
    """Change what may not stand before a vowel: la Afrique to l' Afrique."""
    changed: list[str] = []
    for word in words:
        if changed and word.startswith(_VOWELS):
            changed[-1] = BEFORE_VOWEL.get(changed[-1], changed[-1])
        changed.append(word)
    return tuple(changed)


def _french_plural(word: str) -> str:
    """One bateau, two bateaux; one chat, two chats; gris and vieux stay."""
    if word.endswith(("s", "x")):
        return word
    return word + ("x" if word.endswith("eau") else "s")


def _english_plural(word: str) -> str:
    """One dress, two dresses; one child, two children."""
    if word == "child":
        return "children"
    return word + ("es" if word.endswith("s") else "s")


def _agree(
    adjective: _Adjective, gender: str, plural: bool, following: str = ""
) -> str:
    """The adjective as its noun wants it: beau, belle, beaux, belles, or bel oiseau."""
    if gender == "m" and not plural and following.startswith(_VOWELS):
        return adjective.before_vowel or adjective.masculine
    one = adjective.masculine if gender == "m" else adjective.feminine
    return _french_plural(one) if plural else one


class _Determiner(NamedTuple):
    """What opens a noun phrase, in both genders; English may say nothing."""

    masculine: str
    feminine: str
    english: str
    plural: bool = False


def _singular_and_plural(
    masculine: str, feminine: str, plural: str, english: str
) -> tuple[_Determiner, _Determiner]:
    """The two determiners of one meaning."""
    one = _Determiner(masculine, feminine, english)
    return one, _Determiner(plural, plural, english, plural=True)


_DEFINITE = _singular_and_plural("le", "la", "les", "the")
_INDEFINITE = _Determiner("un", "une", "a"), _Determiner("des", "des", "", plural=True)
_NOT_ANY = _Determiner("de", "de", "a"), _Determiner("de", "de", "", plural=True)
_NUMBERS = tuple(
    _Determiner(french, french, english, plural=True)
    for french, english in (("deux", "two"), ("trois", "three"), ("quatre", "four"))
)
_MY = _singular_and_plural("mon", "ma", "mes", "my")
_YOUR = _singular_and_plural("ton", "ta", "tes", "your")
_OUR = _singular_and_plural("notre", "notre", "nos", "our")
_YOUR_POLITE = _singular_and_plural("votre", "votre", "vos", "your")
_THEIRS = {
    "his": _singular_and_plural("son", "sa", "ses", "his"),
    "her": _singular_and_plural("son", "sa", "ses", "her"),
    "their": _singular_and_plural("leur", "leur", "leurs", "their"),
}


def _noun_phrase(
    determiner: _Determiner,
    noun: _Noun,
    size: _Adjective | None = None,
    colour: _Adjective | None = None,
    generic: bool = False,
) -> Pair:
    """Size before the noun and colour after it in French; both before it in English.

    `generic` drops the English article of a plural: aime les chats, likes cats.
    """
    gender, plural = noun.gender, determiner.plural
    name = _french_plural(noun.french) if plural else noun.french
    article = determiner.masculine if gender == "m" else determiner.feminine
    french = ["de" if article == "des" and size else article]
    if size:
        french.append(_agree(size, gender, plural, name))
    french.append(name)
    if colour:
        french.append(_agree(colour, gender, plural))
    english = [adjective.english for adjective in (size, colour) if adjective]
    english.append(_english_plural(noun.english) if plural else noun.english)
    the = determiner.english
    if the == "a" and english[0].startswith(("o", "u")):
        the = "an"
    if the and not (generic and plural and the == "the"):
        english.insert(0, the)
    return Pair(tuple(french), tuple(english))


class _Subject(NamedTuple):
    """Who does it: its person (0 to 5, je to ils), and whose things are *son* and *sa*.

    `agreements` lists the forms an adjective may take after it: ms, fs, mp, fp.
    """

    words: Pair
    person: int
    agreements: str
    owner: str = ""


def _conjugate(subject: _Subject, verb: _Verb, negative: bool) -> Pair:
    """The verb after its subject: visite, visits; ne visite pas, does not visit."""
    french = verb.french[subject.person]
    base, *rest = verb.english.split()
    third = subject.person == 2
    if base == "be":
        english = ["am" if subject.person == 0 else "is" if third else "are"]
        english += ["not"] if negative else []
    elif negative:
        english = ["does" if third else "do", "not", base]
    elif third:
        odd = {"have": "has", "go": "goes", "wash": "washes"}
        english = [odd.get(base, base + "s")]
    else:
        english = [base]
    return Pair(("ne", french, "pas") if negative else (french,), (*english, *rest))


def _people() -> Iterator[_Subject]:
    """My brother, your sisters, the child … as subjects."""
    for noun in _PEOPLE:
        owner = "his" if noun.gender == "m" else "her"
        openings: tuple[_Determiner, ...] = _MY + _YOUR + _OUR + _YOUR_POLITE
        if noun.french == "enfant":  # a boy or a girl: nobody knows whether his or her
            owner, openings = "", openings + _DEFINITE
        for determiner in openings:
            words = _noun_phrase(determiner, noun)
            if determiner.plural:
                yield _Subject(words, 5, noun.gender + "p", "their")
            else:
                yield _Subject(words, 2, noun.gender + "s", owner)


def _names() -> Iterator[_Subject]:
    """Everybody by name."""
    for name in _WOMEN + _MEN:
        woman = name in _WOMEN
        words = Pair((name,), (name,))
        yield _Subject(words, 2, "fs" if woman else "ms", "her" if woman else "his")


def _couples() -> Iterator[_Subject]:
    """Everybody with everybody else; one man makes the adjective masculine."""
    for one in _WOMEN + _MEN:
        for other in _WOMEN + _MEN:
            if one != other:
                women = one in _WOMEN and other in _WOMEN
                words = Pair((one, "et", other), (one, "and", other))
                yield _Subject(words, 5, "fp" if women else "mp", "their")


_SUBJECTS = {
    "pronouns": (
        _Subject(Pair(("je",), ("I",)), 0, "ms fs"),
        _Subject(Pair(("tu",), ("you",)), 1, "ms fs"),
        _Subject(Pair(("il",), ("he",)), 2, "ms", "his"),
        _Subject(Pair(("elle",), ("she",)), 2, "fs", "her"),
        _Subject(Pair(("nous",), ("we",)), 3, "mp fp"),
        _Subject(Pair(("vous",), ("you",)), 4, "ms fs mp fp"),
        _Subject(Pair(("ils",), ("they",)), 5, "mp", "their"),
        _Subject(Pair(("elles",), ("they",)), 5, "fp", "their"),
    ),
    "names": tuple(_names()),
    "couples": tuple(_couples()),
    "people": tuple(_people()),
}


class _Time(NamedTuple):
    """When: some words, said last or, with a comma, first."""

    words: Pair
    first: bool = False


def _times_of(french: str, english: str, names: dict[str, str]) -> list[Pair]:
    """The same words around each of the names: en mai, in May; en juin, in June."""
    found = []
    for name, translation in names.items():
        here = french.replace("…", name).replace("en printemps", "au printemps")
        there = english.replace("…", translation)
        found.append(Pair(tuple(here.split()), tuple(there.split())))
    return found


_TIMES = {
    "month": _times_of("en …", "in …", _MONTHS),
    "season": _times_of("en …", "in …", _SEASONS),
    "summers": _times_of("chaque …", "every …", _SEASONS),
    "day": _times_of("…", "on …", _DAYS),
    "mondays": _times_of("le …", "on …s", _DAYS)
    + _times_of("chaque …", "every …", _DAYS),
}


def _sentence(parts: Iterable[Pair], time: _Time | None = None) -> Pair:
    """Set parts side by side in both languages, the time where it belongs."""
    parts = list(parts)
    if time and time.first:
        parts = [time.words, Pair((",",), (",",)), *parts]
    elif time:
        parts.append(time.words)
    french = _elide(word for part in parts for word in part.french)
    return Pair(french, tuple(word for part in parts for word in part.english))


def _visit_sentence(
    subject: _Subject, verb: _Verb, negative: bool, place: _Place, time: _Time | None
) -> Pair:
    """Jane visite l' Afrique en septembre."""
    french = *place.article.split(), place.french
    there = Pair(french, tuple(place.english.split()))
    return _sentence((subject.words, _conjugate(subject, verb, negative), there), time)


def _stay_sentence(
    subject: _Subject, verb: _Verb, negative: bool, place: _Place, time: _Time | None
) -> Pair:
    """Mon amie habite en France. Ils vont aux États-Unis chaque été."""
    preposition = {"la": "en", "le": "au", "les": "aux", "": "à"}[place.article]
    there = Pair((preposition, place.french), tuple(place.english.split()))
    return _sentence((subject.words, _conjugate(subject, verb, negative), there), time)


def _object_sentence(
    subject: _Subject,
    verb: _Verb,
    negative: bool,
    noun: _Noun,
    determiner: _Determiner,
    size: _Adjective | None,
    colour: _Adjective | None,
    time: _Time | None,
) -> Pair:
    """Luc n' achète pas de petite maison rouge. Elle aime les chats."""
    thing = _noun_phrase(determiner, noun, size, colour, verb.english == "like")
    return _sentence((subject.words, _conjugate(subject, verb, negative), thing), time)


def _mood_sentence(
    subject: _Subject, negative: bool, mood: Pair, time: _Time | None
) -> Pair:
    """Marie et Alice sont contentes en été."""
    be = _conjugate(subject, _Verb(_BE, "be"), negative)
    return _sentence((subject.words, be, mood), time)


def _look_sentence(
    noun: _Noun,
    negative: bool,
    determiner: _Determiner,
    size: _Adjective | None,
    colour: _Adjective | None,
    look: _Adjective,
) -> Pair:
    """Nos vieilles voitures ne sont pas rouges."""
    words = _noun_phrase(determiner, noun, size, colour)
    subject = _Subject(words, 5 if determiner.plural else 2, "")
    be = _conjugate(subject, _Verb(_BE, "be"), negative)
    looks = _agree(look, noun.gender, determiner.plural)
    return _sentence((words, be, Pair((looks,), (look.english,))))


class _Frame(NamedTuple):
    """A sentence with gaps: `build` makes it agree, each slot is filled freely."""

    build: Callable[..., Pair]
    slots: tuple[Sequence[Any], ...]

    def total(self) -> int:
        """How many sentences it makes."""
        return math.prod(len(slot) for slot in self.slots)

    def fill(self, rng: random.Random) -> Pair:
        """One of its sentences; a slot that may stay empty often does."""
        chosen = [
            None if slot[0] is None and rng.random() < 0.5 else rng.choice(slot)
            for slot in self.slots
        ]
        return self.build(*chosen)


@functools.cache
def _times(kinds: str, negative: bool) -> tuple[_Time | None, ...]:
    """The times of some kinds, last or first, or none at all.

    A sentence that denies does not open with *chaque*.
    """
    words = [pair for kind in kinds.split() for pair in _TIMES[kind]]
    last = [_Time(pair) for pair in words]
    first = [
        _Time(pair, first=True)
        for pair in words
        if not (negative and pair.french[0] == "chaque")
    ]
    return (None, *last, *first)


@functools.cache
def _determiners(
    kinds: str, negative: bool, subject: _Subject
) -> tuple[_Determiner, ...]:
    """What may open the object of a sentence.

    *Son* belongs to the subject; nobody who says *tu* goes on to say *votre*.
    """
    found: list[_Determiner] = []
    for kind in kinds.split():
        if kind == "definite":
            found += _DEFINITE
        elif kind == "indefinite":
            found += _NOT_ANY if negative else _INDEFINITE
        elif kind == "number" and not negative:
            found += _NUMBERS
        elif kind == "possessive":
            found += _MY + _OUR + _THEIRS.get(subject.owner, ())
            if not {"vous", "votre", "vos"} & set(subject.words.french):
                found += _YOUR
            if not {"tu", "ton", "ta", "tes"} & set(subject.words.french):
                found += _YOUR_POLITE
    return tuple(found)


def _place_frames(subject: _Subject, negative: bool) -> Iterator[_Frame]:
    """Somebody visits or stays somewhere."""
    cities = [place for place in _PLACES if not place.article]
    countries = [place for place in _PLACES if place.article]
    for verb in _VISITING:
        build = functools.partial(_visit_sentence, subject, verb, negative)
        yield _Frame(build, (_PLACES, _times(verb.times, negative)))
    for verb in _STAYING:
        build = functools.partial(_stay_sentence, subject, verb, negative)
        yield _Frame(build, (countries, _times(verb.times, negative)))
        in_a_city = f"{verb.times} {verb.city_times}"
        yield _Frame(build, (cities, _times(in_a_city, negative)))


def _object_frames(subject: _Subject, negative: bool) -> Iterator[_Frame]:
    """Somebody does something with a thing."""
    for verb in _HANDLING:
        for noun in _NOUNS:
            if verb.english != "wash" or noun.french in _WASHABLE:
                build = functools.partial(
                    _object_sentence, subject, verb, negative, noun
                )
                opening = _determiners(verb.determiners, negative, subject)
                sizes, colours = (None, *_SIZES), (None, *_colours_of(noun))
                when = _times(verb.times, negative)
                yield _Frame(build, (opening, sizes, colours, when))


def _mood_frames(subject: _Subject, negative: bool) -> Iterator[_Frame]:
    """Somebody is happy, sad, ill or tired."""
    feelings = dict.fromkeys(
        Pair((_agree(mood, form[0], form[1] == "p"),), (mood.english,))
        for mood in _MOODS
        for form in subject.agreements.split()
    )
    build = functools.partial(_mood_sentence, subject, negative)
    yield _Frame(build, (tuple(feelings), _times("month season mondays", negative)))


def _look_frames() -> Iterator[_Frame]:
    """A thing has a size or a colour, and the other one may be said with its name."""
    opening = _DEFINITE + _MY + _YOUR + _OUR + _YOUR_POLITE
    for noun in _NOUNS:
        for negative in (False, True):
            build = functools.partial(_look_sentence, noun, negative)
            colours = _colours_of(noun)
            yield _Frame(build, (opening, (None, *_SIZES), (None,), colours))
            yield _Frame(build, (opening, (None,), (None, *colours), _SIZES))


def _colours_of(noun: _Noun) -> tuple[_Adjective, ...]:
    """The colours that a noun may have."""
    return tuple(hue for hue in _COLOURS if hue.masculine in noun.colours.split())


@functools.cache
def _frames() -> dict[tuple[str, str], list[_Frame]]:
    """Every frame of the grammar, by topic and by kind of subject."""
    found: dict[tuple[str, str], list[_Frame]] = {}
    kinds = {"place": _place_frames, "object": _object_frames, "mood": _mood_frames}
    for kind, make in kinds.items():
        for group, subjects in _SUBJECTS.items():
            found[kind, group] = [
                frame
                for subject in subjects
                for negative in (False, True)
                for frame in make(subject, negative)
            ]
    found["look", "things"] = list(_look_frames())
    return found


def count_sentences() -> int:
    """How many different French sentences the grammar makes."""
    return sum(frame.total() for group in _frames().values() for frame in group)


@functools.cache
def phrasebook_tokenizers() -> tuple[WordTokenizer, WordTokenizer]:
    """Tokenizers for all French and all English words: each frame is filled once."""
    rng = random.Random(0)
    pairs = [frame.fill(rng) for group in _frames().values() for frame in group]
    french, english = (
        WordTokenizer(Vocabulary(sorted({word for side in sides for word in side})))
        for sides in zip(*pairs, strict=True)
    )
    return french, english


def phrasebook_examples(pairs: Iterable[Pair]) -> list[Example]:
    """Sentence pairs as token ids, ready for `make_batch`.

    Raises:
        UnknownWordError: (a ValueError) for a word that the grammar does not have.
    """
    french, english = (each.vocabulary for each in phrasebook_tokenizers())
    return [(french.encode(one), english.encode(other)) for one, other in pairs]


_SHARES = {"place": 3, "object": 6, "mood": 1, "look": 4}


def _random_pair(rng: random.Random) -> Pair:
    """A sentence of the grammar and its translation, short ones rather than long."""
    shares = [_SHARES[kind] for kind, _ in _frames()]
    (group,) = rng.choices(list(_frames().values()), shares)
    return rng.choice(group).fill(rng)


def sample_pairs(count: int, seed: int, held_out: bool | None = False) -> list[Pair]:
    """Different sentences and their translations, as words; the seed fixes which.

    Without any held-out combination, or (True) each with at least one, or (None)
    whatever comes.

    Raises:
        ValueError: for a count below 1, or a `held_out` that is none of the three.
    """
    require_positive(count=count)
    if held_out is not None:
        require_bool(held_out=held_out)
    rng = random.Random(seed)
    found: dict[Pair, None] = {}  # a set that keeps the order
    while len(found) < count:
        pair = _random_pair(rng)
        if held_out is None or is_held_out(pair.french) == held_out:
            found[pair] = None
    return list(found)


def _diagonals(
    rows: Iterable[str], columns: Iterable[str], every: int = 6
) -> set[frozenset[str]]:
    """Each sixth cell of a table of pairs, in slanting lines across it."""
    columns = list(columns)
    return {
        frozenset((row, column))
        for i, row in enumerate(rows)
        for j, column in enumerate(columns)
        if (i - j) % every == 0
    }


_PLACE_NAMES = [place.french for place in _PLACES]
_NOUN_NAMES = [noun.french for noun in _NOUNS]
_COLOUR_NAMES = [hue.masculine for hue in _COLOURS]
_VERB_NAMES = [f"to {verb.english}" for verb in _HANDLING]
HELD_OUT = (
    _diagonals(_PLACE_NAMES, _MONTHS)
    | _diagonals(_NOUN_NAMES, _COLOUR_NAMES)
    | _diagonals(_NOUN_NAMES, _VERB_NAMES)
)


@functools.cache
def root_words() -> dict[str, str]:
    """The entry of a dictionary under which to find each form of a word that counts."""
    roots = {name: name for name in (*(place.french for place in _PLACES), *_MONTHS)}
    for noun in _NOUNS:
        roots |= dict.fromkeys((noun.french, _french_plural(noun.french)), noun.french)
    for hue in _COLOURS:
        for one in (hue.masculine, hue.feminine):
            roots |= dict.fromkeys((one, _french_plural(one)), hue.masculine)
    for verb in _HANDLING:
        roots |= dict.fromkeys(verb.french, f"to {verb.english}")
    return roots


def is_held_out(french: Iterable[str]) -> bool:
    """Whether two of the words, in any form, must not meet in a training sentence."""
    roots = [root_words()[word] for word in french if word in root_words()]
    return any(
        frozenset((one, other)) in HELD_OUT
        for index, one in enumerate(roots)
        for other in roots[:index]
    )


class Kind(NamedTuple):
    """Words that can take each other's place, each with its meaning in English."""

    name: str
    tags: str  # what the sentence must agree with, such as "fs thing"
    words: dict[str, str]


def word_kinds() -> list[Kind]:
    """The words that leave a choice, by kind; a word may be of several kinds."""
    found = [Kind("time", "", names) for names in (_MONTHS, _SEASONS, _DAYS)]
    for article in ("la", "le", "les", ""):
        places = [place for place in _PLACES if place.article == article]
        names = {place.french: place.english for place in places}
        found.append(Kind("place", "place", names))
    people = dict.fromkeys(_WOMEN, "a woman") | dict.fromkeys(_MEN, "a man")
    for person, tag in enumerate(("1s", "2s", "3s", "1p", "2p", "3p")):
        who = dict(people) if tag == "3s" else {}
        for subject in _SUBJECTS["pronouns"]:
            if subject.person == person:
                who[subject.words.french[0]] = subject.words.english[0]
        found.append(Kind("who", tag, who))
        verbs = ("thing", _HANDLING), ("place", _VISITING), ("place", _STAYING)
        for object_tag, some in verbs:  # to be is also said of moods and colours
            does = {v.french[person]: v.english for v in some if v.french != _BE}
            found.append(Kind("verb", f"{tag} {object_tag}", does))
    for form in ("ms", "fs", "mp", "fp"):
        gender, plural = form[0], form[1] == "p"
        people_tag = f"person 3{form[1]}"
        for tag, nouns in (("thing", _NOUNS), (people_tag, _PEOPLE)):
            words = {}
            for noun in nouns:
                phrase = _noun_phrase(_DEFINITE[plural], noun)
                if noun.gender == gender:
                    words[phrase.french[-1]] = phrase.english[-1]
            found.append(Kind(tag.split()[0], f"{form} {tag}", words))
        for name, kind in (("size", _SIZES), ("colour", _COLOURS), ("mood", _MOODS)):
            words = {_agree(each, gender, plural): each.english for each in kind}
            found.append(Kind(name, form, words))
        opening: dict[str, list[str]] = {}
        theirs = [each for pair in _THEIRS.values() for each in pair]
        mine = *_MY, *_YOUR, *theirs, *_OUR, *_YOUR_POLITE
        for each in (*_DEFINITE, *_INDEFINITE, *mine, *_NUMBERS):
            if each.plural == plural:
                french = each.masculine if gender == "m" else each.feminine
                opening.setdefault(french, []).append(each.english or "some")
        meanings = {french: ", ".join(words) for french, words in opening.items()}
        found.append(Kind("opening", form, meanings))
    return found
