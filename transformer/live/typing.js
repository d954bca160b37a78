// What a reader types, and what it may have meant: capitals and accents, words of the
// same kind, words that are not known.

const VOWEL = /^[aeiouh]/; // of a folded word; h is silent in all words of the phrasebook
const BARE = { "n'": "ne", "j'": "je", "d'": "de" };

// Without capitals, accents and ligatures: Sœur and soeur are the same.
const folded = (text) => text.toLowerCase().normalize("NFD").replace(/\p{Mn}/gu, "").replace(/œ/g, "oe");

// `data.kinds` are [name, tags, {word: meaning}]; a model without them has no menus.
function makeTyping(source, data) {
  const kinds = (data.kinds ?? []).map(([name, tags, words]) => ({ name, tags: tags.split(" ").filter(Boolean), words: new Map(Object.entries(words)) }));
  const known = new Map();
  for (const word of source.words ?? []) known.set(folded(word), known.has(folded(word)) ? null : word);
  const kindsOf = (word) => kinds.filter((kind) => kind.words.has(word));
  const meaning = (word) => kindsOf(word).map((kind) => kind.words.get(word))[0];

  // The tokens of a sentence: its last . ! ? are no words, and a word that is not known may be one in other letters.
  function tokens(sentence) {
    if (!source.words) return source.tokens(sentence);
    const signs = source.words.some((word) => /^[.!?…]$/.test(word));
    return source.tokens(signs ? sentence : sentence.replace(/[\s.!?…]+$/, "")).map((token) => {
      const word = token.id === null && known.get(folded(token.text));
      return word ? { text: word, id: source.ids.get(word) } : token;
    });
  }

  // Of some kinds, those that agree best with all other words of the sentence.
  function agreeing(found, words, place) {
    const others = words.flatMap((word, i) => (i === place ? [] : kindsOf(word).flatMap((kind) => kind.tags)));
    const fits = (kind) => kind.tags.filter((tag) => others.includes(tag)).length - kind.tags.length;
    const best = Math.max(...found.map(fits));
    return found.filter((kind) => fits(kind) === best);
  }

  // [word, meaning] of all that could stand in the place of a word, itself among them.
  function menu(words, place) {
    const found = new Map(agreeing(kindsOf(words[place]), words, place).flatMap((kind) => [...kind.words]));
    return found.size > 1 ? [...found] : [];
  }

  // The words with another in one place; words before a vowel change with it: la maison, l'horloge.
  function swapped(words, place, word) {
    const changed = words.map((each, i) => (i === place ? word : each)), before = changed[place - 1];
    if (!word || !before || !data.elided) return changed.filter(Boolean);
    const vowel = VOWEL.test(folded(word)), short = before.endsWith("'"), forms = Object.entries(data.elided);
    const gender = kindsOf(word).flatMap((kind) => kind.tags).find((tag) => /^[mf]s$/.test(tag));
    const full = forms.filter(([long, elided]) => elided === before && (BARE[before] === long || kinds.some((kind) => kind.name === "opening" && kind.tags[0] === gender && kind.words.has(long))));
    if (vowel) changed[place - 1] = data.elided[before] ?? before;
    else if (short || full.length) changed[place - 1] = full[0]?.[0] ?? (before === "l'" ? "la" : before);
    return changed;
  }

  // Which kind of word is missing? The one that most often stands between such neighbours in the sentences to try.
  function guessKind(words, place) {
    const name = (word) => kindsOf(word)[0]?.name ?? word, counts = new Map();
    const beside = (word) => (name(word) === "verb" ? kindsOf(word)[0].tags[1] : name(word)); // of a thing, or a place
    for (const sentence of data.sentences) {
      const texts = source.tokens(sentence).map(({ text }) => text);
      texts.forEach((text, i) => {
        const alike = 2 * (beside(texts[i - 1]) === beside(words[place - 1])) + (beside(texts[i + 1]) === beside(words[place + 1]));
        if (kindsOf(text).length) counts.set(name(text), (counts.get(name(text)) ?? 0) + alike ** 2);
      });
    }
    const [best] = [...counts].sort((a, b) => b[1] - a[1])[0] ?? [];
    return agreeing(kinds.filter((kind) => kind.name === best), words, place);
  }

  // Words to take for one that is not known: what it means in English, what is spelled like it, then others of its kind.
  function nearest(all, place) {
    const words = all.map(({ text }) => text), typed = folded(words[place]), found = new Set();
    const translated = kinds.filter((kind) => [...kind.words.values()].some((each) => each.toLowerCase() === typed));
    for (const kind of translated.length ? agreeing(translated, words, place) : [])
      for (const [word, english] of kind.words) if (english.toLowerCase() === typed) found.add(word);
    if (typed.length > 1) for (const word of source.words ?? []) if (folded(word).startsWith(typed)) found.add(word);
    const alike = all[place].suggestions ?? [], fitting = found.size || !kinds.length ? [] : guessKind(words, place).flatMap((kind) => [...kind.words.keys()]);
    for (const word of [...alike.filter((each) => !fitting.length || fitting.includes(each)), ...closest(words[place], fitting, 6, 0.3), ...fitting]) found.add(word);
    return [...found].slice(0, 6);
  }

  return { kinds, tokens, menu, swapped, nearest, meaning, kindsOf };
}

// A translation that never ends says the same over and over: where it begins to, and how often it does.
function findLoop(ids) {
  for (let size = 1; size <= 12; size++) {
    let from = ids.length - size;
    while (from > 0 && ids[from - 1] === ids[from - 1 + size]) from--;
    const times = Math.floor((ids.length - from) / size);
    if (times >= 3) return { from, size, times };
  }
  return null;
}
