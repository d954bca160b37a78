// The Transformer of the book, forward, in plain JavaScript: chapters 2 to 11, 13, 16.
//
// Names are those of the package. A matrix is {rows, cols, data}, a Float32Array row
// after row; sums run in double precision. Functions return all that they computed,
// and change nothing. `run` holds what a reader changed of the trained model:
//   run.off    a Set of parts that are switched off, for the whole model ("scale",
//              "causal", "positions", "residual", "norm", "feed_forward", "padding")
//              or in one place ("residual:d1.cross", "head:e2.self.3")
//   run.edits  a Map from "d2.cross.3.1.4" (head 3; query 1, key 4, from 0) to the
//              attention weight that it is given by hand

const WHOLE = { off: new Set(), edits: new Map() };
const off = (run, part, place) => run.off.has(part) || run.off.has(`${part}:${place}`);

// Matrices

const matrix = (rows, cols, data = new Float32Array(rows * cols)) => ({ rows, cols, data });

const row = (m, i) => m.data.subarray(i * m.cols, (i + 1) * m.cols);

function add(a, b) {
  return matrix(a.rows, a.cols, a.data.map((value, i) => value + b.data[i]));
}

// The rows of both, those of `a` first.
function stack(a, b) {
  const both = matrix(a.rows + b.rows, b.cols);
  both.data.set(a.data);
  both.data.set(b.data, a.data.length);
  return both;
}

// x Wᵀ + b: weights lie as PyTorch keeps them, (outputs, inputs).
function linear({ weight, bias }, x) {
  const y = matrix(x.rows, weight.rows), inputs = x.cols, w = weight.data;
  for (let i = 0; i < x.rows; i++) {
    const from = i * inputs;
    for (let j = 0; j < weight.rows; j++) {
      let sum = bias ? bias.data[j] : 0;
      for (let k = 0, at = j * inputs; k < inputs; k++) sum += x.data[from + k] * w[at + k];
      y.data[i * y.cols + j] = sum;
    }
  }
  return y;
}

// Chapter 2: a row of the table for each id, times √d_model.

function embed({ table }, ids) {
  const x = matrix(ids.length, table.weight.cols), root = Math.sqrt(x.cols);
  ids.forEach((id, i) => row(x, i).set(row(table.weight, id).map((value) => value * root)));
  return x;
}

// Chapter 6: sines in even columns, cosines in odd ones.

function sinusoids(length, d_model) {
  const table = matrix(length, d_model);
  for (let i = 0; i < table.data.length; i++) {
    const column = i % d_model, position = (i - column) / d_model;
    const angle = position * 10000 ** (-(column - (column % 2)) / d_model);
    table.data[i] = column % 2 ? Math.cos(angle) : Math.sin(angle);
  }
  return table;
}

function addPositions({ table }, x, start, run) {
  if (start + x.rows > table.rows)
    throw new Error(`positions must lie in 0..${table.rows - 1}, got ${start + x.rows - 1}`);
  if (off(run, "positions")) return x;
  return add(x, matrix(x.rows, x.cols, table.data.slice(start * x.cols, (start + x.rows) * x.cols)));
}

// Chapters 4 and 5. `mask(i, j)` is true where query i may attend to key j; a query
// that may attend to nothing has weights of zero.

function softmax(scores, allowed) {
  const weights = new Float32Array(scores.length);
  let largest = -Infinity, sum = 0;
  for (let j = 0; j < scores.length; j++) if (allowed(j) && scores[j] > largest) largest = scores[j];
  const powers = Array.from(scores, (score, j) => (allowed(j) ? Math.exp(score - largest) : 0));
  for (const power of powers) sum += power;
  return sum > 0 ? weights.map((_, j) => powers[j] / sum) : weights;
}

// A row of weights of which one was set by hand: the others share what is left, in
// the proportions that they had.
function withWeight(weights, key, value) {
  const rest = weights.reduce((sum, weight, j) => (j === key ? sum : sum + weight), 0);
  return weights.map((weight, j) => (j === key ? value : rest > 0 ? (weight * (1 - value)) / rest : 0));
}

function keysValues(part, x) {
  return { keys: linear(part.key_proj, x), values: linear(part.value_proj, x) };
}

const append = (past, fresh) => ({
  keys: stack(past.keys, fresh.keys),
  values: stack(past.values, fresh.values),
});

// `start` is the position of the first query.
function attend(part, num_heads, x, { keys, values }, mask, run, place, start) {
  const queries = linear(part.query_proj, x), d_k = x.cols / num_heads;
  const scale = off(run, "scale", place) ? 1 : 1 / Math.sqrt(d_k);
  const scores = [], weights = [], heads = matrix(x.rows, x.cols);
  for (let h = 0; h < num_heads; h++) {
    const from = h * d_k, to = from + d_k;
    scores.push(matrix(x.rows, keys.rows));
    weights.push(matrix(x.rows, keys.rows));
    for (let i = 0; i < x.rows; i++) {
      const query = row(queries, i), score = row(scores[h], i), mixed = row(heads, i);
      for (let j = 0; j < keys.rows; j++) {
        const key = row(keys, j);
        let sum = 0;
        for (let c = from; c < to; c++) sum += query[c] * key[c];
        score[j] = sum * scale;
      }
      let weight = softmax(score, (j) => mask(i, j));
      for (let j = 0; j < keys.rows; j++) {
        const edit = run.edits.get(`${place}.${h + 1}.${start + i}.${j}`);
        if (edit !== undefined) weight = withWeight(weight, j, edit);
      }
      row(weights[h], i).set(weight);
      if (off(run, "head", `${place}.${h + 1}`)) continue;
      for (let c = from; c < to; c++) {
        let sum = 0;
        for (let j = 0; j < keys.rows; j++) sum += weight[j] * values.data[j * x.cols + c];
        mixed[c] = sum;
      }
    }
  }
  return { queries, keys, values, scores, weights, heads, output: linear(part.output_proj, heads) };
}

// Chapter 7

function layerNorm({ weight, bias, eps }, x) {
  const y = matrix(x.rows, x.cols);
  for (let i = 0; i < x.rows; i++) {
    const values = row(x, i), normed = row(y, i);
    const mean = values.reduce((sum, value) => sum + value, 0) / x.cols;
    const variance = values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / x.cols;
    const root = Math.sqrt(variance + eps);
    for (let c = 0; c < x.cols; c++)
      normed[c] = ((values[c] - mean) / root) * weight.data[c] + bias.data[c];
  }
  return y;
}

const silu = (x) => x / (1 + Math.exp(-x));

// The error function, to 1.5e-7 (Abramowitz and Stegun 1964, 7.1.26).
function erf(x) {
  const t = 1 / (1 + 0.3275911 * Math.abs(x));
  const tail = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t;
  return Math.sign(x) * (1 - tail * Math.exp(-x * x));
}

// ReLU, or the one that a Marian's config names.
const ACTIVATIONS = {
  relu: (x) => Math.max(0, x), swish: silu, silu, gelu: (x) => (x * (1 + erf(x / Math.SQRT2))) / 2,
};

function feedForward(part, x, run, place) {
  const hidden = linear(part.expand, x);
  hidden.data.forEach((value, i) => { hidden.data[i] = part.activation(value); });
  const output = off(run, "feed_forward", place) ? matrix(x.rows, x.cols) : linear(part.contract, hidden);
  return { hidden, output };
}

// norm(x + sublayer(x)), or with norm_first x + sublayer(norm(x)).
function residual(part, norm_first, x, sublayer, run, place) {
  const normed = (m) => (off(run, "norm", place) ? m : layerNorm(part.norm, m));
  const input = norm_first ? normed(x) : x;
  const inner = sublayer(input);
  const sum = off(run, "residual", place) ? inner.output : add(x, inner.output);
  return { place, before: x, input, inner, sum, x: norm_first ? sum : normed(sum) };
}

function finalNorm(part, norm_first, x, run, place) {
  return norm_first && !off(run, "norm", place) ? layerNorm(part.norm, x) : x;
}

function encode(model, ids, run = WHOLE) {
  const { num_heads, norm_first, pad_id } = model.config;
  const embedding = embed(model.source_embedding, ids);
  const positioned = addPositions(model.position, embedding, 0, run);
  const mask = (_, j) => ids[j] !== pad_id || off(run, "padding");
  let x = positioned;
  const layers = model.encoder.layers.map((layer, n) => {
    const place = `e${n + 1}`, [first, second] = layer.residuals;
    const attention = residual(first, norm_first, x, (x) =>
      attend(layer.self_attention, num_heads, x, keysValues(layer.self_attention, x), mask, run, `${place}.self`, 0),
      run, `${place}.self`);
    const forward = residual(second, norm_first, attention.x, (x) =>
      feedForward(layer.feed_forward, x, run, `${place}.ff`), run, `${place}.ff`);
    x = forward.x;
    return [attention, forward];
  });
  const memory = finalNorm(model.encoder, norm_first, x, run, "e.norm");
  const cross = model.decoder.layers.map((layer) => keysValues(layer.cross_attention, memory));
  return { ids, embedding, positioned, layers, memory, cross, mask };
}

// Chapters 8, 9, 13

function emptyPast(model) {
  const none = matrix(0, model.config.d_model);
  return { ids: [], layers: model.decoder.layers.map(() => ({ keys: none, values: none })) };
}

// Decode `ids` behind those of `past`, whose keys and values need no computing again.
function decode(model, source, ids, run = WHOLE, past = emptyPast(model)) {
  const { num_heads, norm_first, pad_id } = model.config;
  const start = past.ids.length, all = [...past.ids, ...ids];
  const embedding = embed(model.target_embedding, ids);
  const positioned = addPositions(model.position, embedding, start, run);
  const causal = !off(run, "causal");
  const mask = (i, j) => all[j] !== pad_id && (!causal || j <= start + i);
  const now = { ids: all, layers: [] };
  let x = positioned;
  const layers = model.decoder.layers.map((layer, n) => {
    const place = `d${n + 1}`, [first, second, third] = layer.residuals;
    const attention = residual(first, norm_first, x, (x) => {
      now.layers.push(append(past.layers[n], keysValues(layer.self_attention, x)));
      return attend(layer.self_attention, num_heads, x, now.layers[n], mask, run, `${place}.self`, start);
    }, run, `${place}.self`);
    const cross = residual(second, norm_first, attention.x, (x) =>
      attend(layer.cross_attention, num_heads, x, source.cross[n], source.mask, run, `${place}.cross`, start),
      run, `${place}.cross`);
    const forward = residual(third, norm_first, cross.x, (x) =>
      feedForward(layer.feed_forward, x, run, `${place}.ff`), run, `${place}.ff`);
    x = forward.x;
    return [attention, cross, forward];
  });
  const hidden = finalNorm(model.decoder, norm_first, x, run, "d.norm");
  return { ids, embedding, positioned, layers, hidden, logits: linear(model.output, hidden), past: now };
}

// The logits after one more token. Without the causal mask, earlier positions attend
// to the new one: everything is computed again.
function step(model, source, past, token, run) {
  const out = off(run, "causal")
    ? decode(model, source, [...past.ids, token], run)
    : decode(model, source, [token], run, past);
  const logits = row(out.logits, out.logits.rows - 1).slice();
  logits[model.config.pad_id] = logits[model.config.bos_id] = -Infinity; // never generated
  return { past: out.past, logits };
}

function logSoftmax(logits) {
  const largest = logits.reduce((a, b) => Math.max(a, b), -Infinity);
  const sum = logits.reduce((total, value) => total + Math.exp(value - largest), 0);
  return Float64Array.from(logits, (value) => value - largest - Math.log(sum));
}

// The likeliest tokens, best first; of equals the lowest id first.
function likeliest(logits, count, temperature = 1) {
  const logged = logSoftmax(logits.map((value) => value / temperature)), best = [];
  logged.forEach((value, id) => {
    if (best.length === count && !(value > logged[best.at(-1)])) return;
    let at = best.length;
    while (at > 0 && value > logged[best[at - 1]]) at--;
    best.splice(at, 0, id);
    best.length = Math.min(best.length, count);
  });
  return best.map((id) => ({ id, logProbability: logged[id], probability: Math.exp(logged[id]) }));
}

function argmax(logits) {
  let best = 0;
  for (let i = 1; i < logits.length; i++) if (logits[i] > logits[best]) best = i;
  return best;
}

// Decode token by token, after a beginning that is given (without bos).
function generate(model, source, maxLength, choose, run = WHOLE, prefix = []) {
  const tokens = [], { bos_id, eos_id } = model.config;
  let past = emptyPast(model), token = bos_id;
  while (tokens.length < maxLength) {
    const next = step(model, source, past, token, run);
    past = next.past;
    token = tokens.length < prefix.length ? prefix[tokens.length] : choose(next.logits);
    if (token === eos_id) return { tokens, ended: true };
    tokens.push(token);
  }
  return { tokens, ended: false };
}

const greedySearch = (model, source, maxLength, run, prefix) =>
  generate(model, source, maxLength, argmax, run, prefix);

// Numbers in [0, 1), the same for the same seed (mulberry32).
function randomNumbers(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

function sample(model, source, maxLength, temperature, seed, run, prefix) {
  const random = randomNumbers(seed);
  const draw = (logits) => {
    let left = random();
    const logged = logSoftmax(logits.map((value) => value / temperature));
    for (let id = 0; id < logged.length; id++) {
      left -= Math.exp(logged[id]);
      if (left < 0) return id;
    }
    return argmax(logits); // what rounding left over
  };
  return generate(model, source, maxLength, draw, run, prefix);
}

function beamSearch(model, source, maxLength, beamSize, lengthPenalty = 0.6, run = WHOLE, prefix = []) {
  const { bos_id, eos_id } = model.config;
  const first = { logProbability: 0, tokens: [], past: emptyPast(model), last: bos_id };
  let beam = [first];
  const finished = [];
  for (let length = 0; length < maxLength && beam.length; length++) {
    const candidates = beam.flatMap((each) => {
      const { past, logits } = step(model, source, each.past, each.last, run);
      const best = length < prefix.length
        ? [{ id: prefix[length], logProbability: logSoftmax(logits)[prefix[length]] }]
        : likeliest(logits, beamSize);
      return best.map(({ id, logProbability }) => ({
        logProbability: each.logProbability + logProbability, tokens: [...each.tokens, id], past, last: id,
      }));
    });
    candidates.sort((a, b) => b.logProbability - a.logProbability); // stable: of equals the first stays first
    const kept = candidates.slice(0, beamSize - finished.length).filter((each) => each.logProbability > -Infinity);
    finished.push(...kept.filter((each) => each.last === eos_id));
    beam = kept.filter((each) => each.last !== eos_id);
  }
  const candidates = (finished.length ? finished : beam.slice(0, 1)).map(({ tokens, logProbability }) => ({
    tokens: tokens.filter((id) => id !== eos_id), logProbability,
    score: logProbability / ((5 + tokens.length) / 6) ** lengthPenalty,
  }));
  candidates.sort((a, b) => b.score - a.score);
  return { tokens: candidates[0]?.tokens ?? [], ended: finished.length > 0, candidates };
}

// How long a translation may become: about twice its source.
const room = (model, sourceLength) => Math.min(model.config.max_length, 16 * Math.ceil(sourceLength / 8) + 10);

// Chapter 11: words. Python's white space and word characters are not JavaScript's.

const SPACE = "\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const pattern = (source, flags = "gu") => new RegExp(source.replace(/\\S/g, `[^${SPACE}]`).replace(/\\s/g, SPACE), flags);
const WORDS = pattern("[^\\s',.!?;:]+'?|\\S");
const SPACES = pattern("[\\s]+");
const joinWords = (text) => text.split(SPACES).filter(Boolean).join(" ");

function requireText(sentence) {
  for (const character of sentence)
    if (/[\p{Cc}\p{Cs}]/u.test(character) && !pattern("[\\s]", "u").test(character))
      throw new Error(`a sentence has the control character U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`);
}

function tokenize(sentence) {
  requireText(sentence);
  const text = sentence.normalize("NFC").replace(/’/g, "'").replace(/\ufeff/g, "");
  const words = text.match(WORDS) || [];
  if (words.at(-1) === ".") words.pop();
  return words;
}

// The longest run of characters in both a[from..to) and b[low..high), the earliest.
function longestMatch(a, from, to, b, low, high) {
  let best = [from, low, 0];
  for (let i = from; i < to; i++)
    for (let j = low; j < high; j++) {
      let size = 0;
      while (i + size < to && j + size < high && a[i + size] === b[j + size]) size++;
      if (size > best[2]) best = [i, j, size];
    }
  return best;
}

function matching(a, from, to, b, low, high) {
  const [i, j, size] = longestMatch(a, from, to, b, low, high);
  return size && size + matching(a, from, i, b, low, j) + matching(a, i + size, to, b, j + size, high);
}

// The known words most like one that is not, whatever their capitals (Ratcliff and
// Obershelp, as Python's difflib).
function closest(word, known, count = 3, cutoff = 0.6) {
  const typed = [...word.toLowerCase()], alike = new Map();
  if (typed.length > 40) return [];
  for (const each of known) {
    const folded = each.toLowerCase();
    alike.set(folded, [...(alike.get(folded) ?? []), each]);
  }
  return [...alike.keys()].map((folded) => {
    const letters = [...folded];
    const both = matching(letters, 0, letters.length, typed, 0, typed.length);
    return [(2 * both) / (letters.length + typed.length), folded];
  }).filter(([ratio]) => ratio >= cutoff)
    .sort(([a, x], [b, y]) => b - a || (x < y ? 1 : -1)).slice(0, count)
    .flatMap(([, folded]) => alike.get(folded));
}

class WordTokenizer {
  constructor({ words }) {
    this.words = words;
    this.ids = new Map(words.map((word, i) => [word, 3 + i]));
  }

  // [{text, id}], a word that is not known with id null and suggestions.
  tokens(sentence) {
    return tokenize(sentence).map((word, i) => {
      if (i === 0 && !this.ids.has(word)) {
        const [first, ...rest] = word, lowered = first.toLowerCase() + rest.join("");
        if (this.ids.has(lowered)) word = lowered;
      }
      const id = this.ids.get(word) ?? null;
      return id === null ? { text: word, id, suggestions: closest(word, this.words) } : { text: word, id };
    });
  }

  piece(id) { return ["<pad>", "<bos>", "<eos>"][id] ?? this.words[id - 3]; }

  decode(ids) {
    const text = ids.filter((id) => id > 2).map((id) => this.piece(id)).join(" ").replace(/' /g, "'").replace(/ ,/g, ",");
    const [first = "", ...rest] = text;
    return first.toUpperCase() + rest.join("");
  }
}

// Chapter 16: subwords by byte-pair encoding, in raw or in Moses-style text.

const LETTER = "\\p{L}\\p{N}_";
const ENTITY = "(?:amp|apos|quot|lt|gt|#91|#93|#124);";
const OTHER_ENTITY = pattern(`&(?!${ENTITY})#?[${LETTER}]+;`);
const SIGNS = pattern(
  `(?<known>&${ENTITY})` +
  `|(?<elided>(?<![${LETTER}'])(?:[cdjlmnst]|[a-z]*qu|aujourd|entr)')(?=[\\s]?[${LETTER}])` +
  "|(?<apostrophe>')" +
  `|(?<apart>\\.{2,}|(?<!\\.)\\.(?=[\\s]*$)|(?<!\\p{Nd}),|,(?!\\p{Nd})|[^${LETTER}\\s'.,-])`,
);
const PLAIN = { "’": "'", "‘": "'", "“": '"', "”": '"', "„": '"', "«": '"', "»": '"', "–": "-", "—": " - ", "…": "...", "\ufeff": "" };
const ESCAPED = { "&": "&amp;", "|": "&#124;", "<": "&lt;", ">": "&gt;", "'": "&apos;", '"': "&quot;", "[": "&#91;", "]": "&#93;" };

// A single character reference, such as &eacute;: nothing else can be in `entity`.
const unescapeEntity = (entity) =>
  new DOMParser().parseFromString(`:${entity}`, "text/html").documentElement.textContent.slice(1);

function mosesStyle(sentence) {
  const text = sentence.replace(OTHER_ENTITY, unescapeEntity).toLowerCase().normalize("NFC")
    .replace(/[’‘“”„«»–—…\ufeff]/g, (sign) => PLAIN[sign]);
  return joinWords(text.replace(SIGNS, (sign, ...rest) => {
    const group = rest.at(-1);
    if (group.known) return sign === "&apos;" ? sign : ` ${sign} `;
    if (group.elided) return `${sign.slice(0, -1)}&apos; `;
    if (group.apostrophe) return " &apos;";
    return /^[\p{Mn}\p{Mc}\p{Cf}]/u.test(sign) ? sign : ` ${ESCAPED[sign] ?? sign} `;
  }));
}

class SubwordTokenizer {
  constructor({ pieces, merges, text }) {
    this.pieces = pieces;
    this.text = text;
    this.ids = new Map(pieces.map((piece, id) => [piece, id]));
    this.ranks = new Map(merges.map((pair, rank) => [pair, rank])); // "a b": the two, with a space between
  }

  normalize(sentence) {
    return this.text === "tok" ? mosesStyle(sentence) : joinWords(sentence.replace(/\ufeff/g, "").normalize("NFC"));
  }

  // ▁ opens each word; in raw text, punctuation is a word of its own.
  split(sentence) {
    const text = this.normalize(sentence).replace(/ /g, "▁");
    const words = (text.startsWith("▁") ? text : `▁${text}`).match(/▁[^▁]*/gu) || [];
    if (this.text === "tok") return words;
    return words.flatMap((word) => word.split(/(▁?[^\p{L}\p{M}\p{N}▁])/u).filter(Boolean));
  }

  // Merge the neighbours that were learnt first, until none is left.
  merge(word) {
    const parts = [...word].map((letter) => (this.ids.has(letter) ? letter : "<unk>"));
    for (;;) {
      let best = Infinity, at = -1;
      for (let i = 0; i + 1 < parts.length; i++) {
        const rank = this.ranks.get(`${parts[i]} ${parts[i + 1]}`) ?? Infinity;
        if (rank < best) [best, at] = [rank, i];
      }
      if (at < 0) return parts;
      parts.splice(at, 2, parts[at] + parts[at + 1]);
    }
  }

  tokens(sentence) {
    return this.split(sentence).flatMap((word) => this.merge(word))
      .map((piece) => ({ text: piece, id: this.ids.get(piece) }));
  }

  piece(id) { return this.pieces[id]; }

  decode(ids) {
    return ids.filter((id) => id > 3).map((id, i) => this.piece(id).replace(/▁/g, i ? " " : "")).join("");
  }
}

// Chapter 16: Marian's pieces. The likeliest of all ways to cut a sentence is found
// (Kudo 2018) as the library SentencePiece does it. A source ends with </s>.

class MarianTokenizer {
  constructor({ pieces, special, unknown, scores, charsmap }) {
    Object.assign(this, { pieces, special, unknown });
    this.ids = new Map(pieces.map((piece, id) => [piece, id]));
    this.scores = new Map(scores); // natural logarithms of probabilities
    this.longest = scores.reduce((most, [piece]) => Math.max(most, piece.length), 1);
    this.least = Math.fround(scores.reduce((least, [, score]) => Math.min(least, score), 0) - 10);
    const bytes = fromBase64(charsmap), size = bytes.length && new DataView(bytes.buffer).getUint32(0, true);
    this.units = new Uint32Array(bytes.buffer, 4 * (size > 0), size / 4);
    this.texts = bytes.subarray(4 + size);
  }

  // The longest bytes at a place that are to be replaced: where they end, and what comes
  // for them. `units` are a double-array trie, whose leaves tell a place in `texts`.
  replacement(bytes, at) {
    const { units, texts } = this, below = (node) => node ^ ((units[node] >>> 10) << ((units[node] & 512) >>> 6));
    let found = null;
    for (let node = below(0); at < bytes.length; at++) {
      node ^= bytes[at];
      if ((units[node] & 0x800000ff) >>> 0 !== bytes[at]) break;
      const isEnd = (units[node] >>> 8) & 1;
      node = below(node);
      if (isEnd) found = { next: at + 1, begin: units[node] & 0x7fffffff };
    }
    return found && { next: found.next, part: texts.subarray(found.begin, texts.indexOf(0, found.begin)) };
  }

  // ▁ opens each word.
  normalize(sentence) {
    const bytes = new TextEncoder().encode(sentence), decoder = new TextDecoder("utf-8", { ignoreBOM: true });
    let text = "";
    for (let at = 0; at < bytes.length; ) {
      let end = at + 1;
      while ((bytes[end] & 0xc0) === 0x80) end++;
      const { next, part } = this.replacement(bytes, at) ?? { next: end, part: bytes.subarray(at, end) };
      const found = decoder.decode(part);
      text += !text || text.endsWith(" ") ? found.replace(/^ +/, "") : found;
      at = next;
    }
    text = text.replace(/ /g, "▁").replace(/▁+$/, "");
    return text && `▁${text}`;
  }

  cut(text) {
    const letters = [...text], best = letters.map(() => null);
    best.unshift({ score: 0 });
    const offer = (from, to, more, known) => {
      const score = Math.fround(best[from].score + more); // of equals the first stays
      if (best[to] === null || score > best[to].score) best[to] = { from, score, known };
    };
    for (let from = 0; from < letters.length; from++) {
      let piece = "", alone = false;
      for (let to = from; to < letters.length && piece.length < this.longest; to++) {
        piece += letters[to];
        if (!this.scores.has(piece)) continue;
        offer(from, to + 1, this.scores.get(piece), true);
        alone ||= to === from;
      }
      if (!alone) offer(from, from + 1, this.least, false);
    }
    const found = [];
    for (let to = letters.length; to > 0; to = best[to].from) {
      const piece = letters.slice(best[to].from, to).join(""), after = found[0];
      if (!best[to].known && after?.known === false) after.piece = piece + after.piece; // unknown neighbours are one
      else found.unshift({ piece, known: best[to].known });
    }
    return found.map(({ piece }) => piece);
  }

  tokens(sentence) {
    const [, code, rest] = /^(>>[^]*?<<)?([^]*)$/.exec(sentence);
    const found = [...(code ? [code] : []), ...this.cut(this.normalize(rest))].map((piece) => {
      const id = this.ids.get(piece) ?? this.unknown;
      return { text: this.pieces[id], id };
    });
    return [...found, { text: "</s>", id: this.special.at(-1) }];
  }

  piece(id) { return this.pieces[id]; }

  decode(ids) {
    const kept = ids.filter((id) => id !== this.unknown && !this.special.includes(id));
    return kept.map((id) => this.piece(id)).join("").replace(/▁/g, " ").trim();
  }
}

const TOKENIZERS = { words: WordTokenizer, subwords: SubwordTokenizer, marian: MarianTokenizer };
const makeTokenizer = (found) => new TOKENIZERS[found.kind](found);

// A model from what `transformer.live` wrote: names, shapes, and all numbers in base64.

function halfToFloat(half) {
  const bits = new Uint32Array(half.length), floats = new Float32Array(bits.buffer);
  half.forEach((value, i) => {
    const sign = (value & 0x8000) << 16, exponent = (value >> 10) & 31, fraction = value & 1023;
    if (exponent) bits[i] = sign | ((exponent + 112) << 23) | (fraction << 13);
    else floats[i] = (sign ? -1 : 1) * fraction * 2 ** -24;
  });
  return floats;
}

function fromBase64(text) {
  const letters = atob(text), bytes = new Uint8Array(letters.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = letters.charCodeAt(i);
  return bytes;
}

function readNumbers(text, dtype) {
  const bytes = fromBase64(text);
  return dtype === "float16" ? halfToFloat(new Uint16Array(bytes.buffer)) : new Float32Array(bytes.buffer);
}

// Each tensor in its place: "encoder.layers.0.self_attention.query_proj.weight".
function readTensors({ config, tensors, dtype, weights }) {
  const model = { config }, numbers = readNumbers(weights, dtype);
  let at = 0;
  for (const [name, shape] of tensors) {
    const [rows, cols] = shape.length > 1 ? shape : [1, shape[0]];
    const path = name.split("."), last = path.pop();
    let part = model;
    path.forEach((key, i) => { part = part[key] ??= /^\d/.test(path[i + 1]) ? [] : {}; });
    part[last] = matrix(rows, cols, numbers.subarray(at, (at += rows * cols)));
  }
  return model;
}

function loadModel(data) {
  const model = readTensors(data), { config, eps } = data;
  for (const side of [model.encoder, model.decoder]) {
    if (side.norm) side.norm.eps = eps;
    for (const layer of side.layers) {
      layer.feed_forward.activation = ACTIVATIONS[config.activation ?? "relu"];
      for (const { norm } of layer.residuals) norm.eps = eps;
    }
  }
  model.position ??= { table: sinusoids(config.max_length, config.d_model) };
  if (config.tie_embeddings) {
    model.target_embedding = model.source_embedding;
    model.output = { ...model.output, ...model.source_embedding.table }; // a Marian's has a bias
  }
  return model;
}

const engine = {
  WHOLE, matrix, row, encode, decode, emptyPast, step, generate, greedySearch, beamSearch, sample, likeliest,
  logSoftmax, room, tokenize, closest, mosesStyle, makeTokenizer, loadModel, layerNorm, linear,
};
