// A language model of chapters 17 and 19, forward, in plain JavaScript: the book's own,
// GPT-2 and Llama. It goes on from engine.js: matrices, linear maps and softmax are there.
//
// `extend` reads further tokens behind those of `past`, whose keys and values need no
// computing again, and returns all that it computed. `kind` is the class's name.

// Llama: no mean, no bias.
function rmsNorm({ weight, eps }, x) {
  const y = matrix(x.rows, x.cols);
  for (let i = 0; i < x.rows; i++) {
    const values = row(x, i), normed = row(y, i);
    const root = Math.sqrt(values.reduce((sum, value) => sum + value ** 2, 0) / x.cols + eps);
    for (let c = 0; c < x.cols; c++) normed[c] = (values[c] / root) * weight.data[c];
  }
  return y;
}

// Rotary positions: columns i and i + d_k / 2 of a head are turned together.
function turn(x, d_k, start, base) {
  const y = matrix(x.rows, x.cols), half = d_k / 2;
  for (let i = 0; i < x.rows; i++)
    for (let from = 0; from < x.cols; from += d_k)
      for (let c = 0; c < half; c++) {
        const angle = (start + i) * base ** (-2 * c / d_k), cos = Math.cos(angle), sin = Math.sin(angle);
        const at = i * x.cols + from + c, first = x.data[at], second = x.data[at + half];
        y.data[at] = first * cos - second * sin;
        y.data[at + half] = second * cos + first * sin;
      }
  return y;
}

const gelu = (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3)));

// A text's tokens attend to themselves and to earlier ones. Llama's query heads share
// keys and values in groups.
function attendBack(model, part, x, past, keep) {
  const { num_heads, rope_base } = model.config, d_k = x.cols / num_heads, start = past.keys.rows;
  const queries = linear(part.query_proj, x), newKeys = linear(part.key_proj, x), newValues = linear(part.value_proj, x);
  const turned = rope_base ? turn(queries, d_k, start, rope_base) : queries;
  const now = append(past, { keys: rope_base ? turn(newKeys, d_k, start, rope_base) : newKeys, values: newValues });
  keep(now);
  const { keys, values } = now, shared = num_heads / (keys.cols / d_k);
  const scores = [], weights = [], heads = matrix(x.rows, x.cols);
  for (let h = 0; h < num_heads; h++) {
    const from = h * d_k, store = Math.floor(h / shared) * d_k;
    scores.push(matrix(x.rows, keys.rows));
    weights.push(matrix(x.rows, keys.rows));
    for (let i = 0; i < x.rows; i++) {
      const query = row(turned, i), score = row(scores[h], i), mixed = row(heads, i);
      for (let j = 0; j < keys.rows; j++) {
        const at = j * keys.cols + store;
        let sum = 0;
        for (let c = 0; c < d_k; c++) sum += query[from + c] * keys.data[at + c];
        score[j] = sum / Math.sqrt(d_k);
      }
      const weight = row(weights[h], i);
      weight.set(softmax(score, (j) => j <= start + i));
      for (let c = 0; c < d_k; c++) {
        let sum = 0;
        for (let j = 0; j <= start + i; j++) sum += weight[j] * values.data[j * keys.cols + store + c];
        mixed[from + c] = sum;
      }
    }
  }
  return { queries, keys, values, scores, weights, heads, output: linear(part.output_proj, heads) };
}

function textFeedForward({ kind }, part, x) {
  const hidden = linear(part.expand, x);
  if (kind === "Llama") {
    const gate = linear(part.gate, x);
    hidden.data.forEach((value, i) => { hidden.data[i] = silu(gate.data[i]) * value; });
  } else hidden.data.forEach((value, i) => { hidden.data[i] = kind === "GPT2" ? gelu(value) : Math.max(0, value); });
  return { hidden, output: linear(part.contract, hidden) };
}

function nothingRead(model) {
  const { d_model, num_heads, num_kv_heads } = model.config, width = (d_model / num_heads) * (num_kv_heads ?? num_heads);
  return { ids: [], layers: model.encoder.layers.map(() => ({ keys: matrix(0, width), values: matrix(0, width) })) };
}

function extend(model, past, ids) {
  const { config, kind } = model, start = past.ids.length;
  if (start + ids.length > config.max_length)
    throw new Error(`the model has ${config.max_length} positions, the text needs ${start + ids.length}`);
  const norm = kind === "Llama" ? rmsNorm : layerNorm, now = { ids: [...past.ids, ...ids], layers: [] };
  const scaled = kind === "LanguageModel" ? Math.sqrt(config.d_model) : 1;
  const embedding = matrix(ids.length, config.d_model);
  ids.forEach((id, i) => row(embedding, i).set(row(model.table, id).map((value) => value * scaled)));
  const positioned = model.positions === null ? embedding
    : add(embedding, matrix(ids.length, config.d_model, model.positions.data.slice(start * config.d_model, now.ids.length * config.d_model)));
  const sublayer = (part, before, compute) => {
    const input = config.norm_first ? norm(part.norm, before) : before, inner = compute(input);
    const sum = add(before, inner.output);
    return { before, input, inner, sum, x: config.norm_first ? sum : norm(part.norm, sum) };
  };
  let x = positioned;
  const layers = model.encoder.layers.map((layer, n) => {
    const attention = sublayer(layer.residuals[0], x, (x) =>
      attendBack(model, layer.self_attention, x, past.layers[n], (kept) => now.layers.push(kept)));
    const forward = sublayer(layer.residuals[1], attention.x, (x) => textFeedForward(model, layer.feed_forward, x));
    x = forward.x;
    return [attention, forward];
  });
  const hidden = config.norm_first ? norm(model.encoder.norm, x) : x;
  return { embedding, positioned, layers, hidden, logits: linear({ weight: model.outputs }, hidden), past: now };
}

// The same as if only the first tokens had been read.
function forget(past, length) {
  const first = (m) => matrix(length, m.cols, m.data.slice(0, length * m.cols));
  return { ids: past.ids.slice(0, length), layers: past.layers.map(({ keys, values }) => ({ keys: first(keys), values: first(values) })) };
}

function loadTextModel(data) {
  const model = { ...readTensors(data), kind: data.kind }, { config, eps } = data;
  for (const { residuals } of model.encoder.layers) for (const { norm } of residuals) norm.eps = eps;
  if (model.encoder.norm) model.encoder.norm.eps = eps;
  model.table = (model.embedding.table ?? model.embedding).weight;
  model.outputs = (model.output ?? { weight: model.table }).weight;
  const sines = () => sinusoids(config.max_length, config.d_model);
  model.positions = data.kind === "Llama" ? null : data.kind === "GPT2" ? model.position.table.weight : model.position?.table ?? sines();
  return model;
}

// Texts as tokens. Each tokenizer has `encode(text)`, `decode(ids)` and `show(id)`, a
// token as it is shown by itself: its spaces and line breaks are seen.

const seen = (text) => text.replace(/ /g, "·").replace(/\n/g, "↵").replace(/\t/g, "→");
const bytesOf = (text) => [...new TextEncoder().encode(text)];
const textOf = (bytes) => new TextDecoder("utf-8", { ignoreBOM: true }).decode(Uint8Array.from(bytes));

class IdTokenizer { // a model that came without a tokenizer
  constructor({ size }) { this.size = size; }
  encode(text) {
    return text.split(/[\s,]+/).filter(Boolean).map((word) => {
      if (!/^\d+$/.test(word) || Number(word) >= this.size)
        throw new Error(`this model came without a tokenizer: type numbers from 0 to ${this.size - 1}`);
      return Number(word);
    });
  }
  decode(ids) { return ids.join(" "); }
  show(id) { return String(id); }
}

class ByteTokenizer { // 256 ids, which are the bytes of UTF-8
  encode(text) { return bytesOf(text); }
  decode(ids) { return textOf(ids); }
  show(id) { return id < 128 && id !== 127 && (id > 31 || id === 10) ? seen(String.fromCharCode(id)) : `0x${id.toString(16).padStart(2, "0")}`; }
}

class SubwordTextTokenizer extends SubwordTokenizer { // chapter 17: its end mark ends a line
  encode(text) {
    const lines = text.split("\n").map((line) => (this.normalize(line) ? this.tokens(line).map(({ id }) => id) : []));
    return lines.flatMap((ids, n) => (n ? [2, ...ids] : ids));
  }
  decode(ids) {
    const lines = [[]];
    for (const id of ids) if (id === 2) lines.push([]); else lines.at(-1).push(id);
    return lines.map((line) => super.decode(line)).join("\n");
  }
  show(id) { return id === 2 ? "↵" : this.piece(id).replace(/▁/g, "·"); }
}

class Llama2cTokenizer { // chapter 19: of neighbours that are a token, the best are merged
  constructor({ pieces, scores }) {
    this.pieces = pieces; // bytes, each as the letter of its number
    this.scores = scores;
    this.ids = new Map(pieces.map((piece, id) => [piece, id]));
  }
  encode(text) {
    const ids = [];
    for (const letter of text ? ` ${text}` : "") {
      const bytes = bytesOf(letter), whole = this.ids.get(String.fromCharCode(...bytes));
      ids.push(...(whole === undefined ? bytes.map((byte) => 3 + byte) : [whole]));
    }
    for (;;) {
      let best = -1, at = -1;
      for (let i = 0; i + 1 < ids.length; i++) {
        const id = this.ids.get(this.pieces[ids[i]] + this.pieces[ids[i + 1]]);
        if (id !== undefined && (best < 0 || this.scores[id] > this.scores[best])) [best, at] = [id, i];
      }
      if (at < 0) return [1, ...ids];
      ids.splice(at, 2, best);
    }
  }
  bytes(id) {
    const piece = this.pieces[id];
    if (id === 1) return [];
    return /^<0x..>$/.test(piece) ? [parseInt(piece.slice(3, 5), 16)] : [...piece].map((letter) => letter.charCodeAt(0));
  }
  decode(ids) { return textOf(ids.flatMap((id) => this.bytes(id))).replace(/^ /, ""); }
  show(id) { return id === 1 ? "<s>" : /^<0x..>$/.test(this.pieces[id]) && id !== 13 ? this.pieces[id] : seen(textOf(this.bytes(id))); }
}

// GPT-2's: words, numbers and signs apart, each with the space before it; their bytes, as
// letters that can be seen, are merged.
const WHITE = "\\t-\\r \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const PIECES = new RegExp("'(?:s|t|re|ve|m|ll|d)| ?\\p{L}+| ?\\p{N}+"
  + `| ?[^${WHITE}\\p{L}\\p{N}]+|[${WHITE}]+(?![^${WHITE}])|[${WHITE}]+`, "gu");
const BYTE_LETTERS = (() => {
  const letters = [], visible = (byte) => (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
  let next = 256;
  for (let byte = 0; byte < 256; byte++) letters.push(String.fromCharCode(visible(byte) ? byte : next++));
  return letters;
})();
const LETTER_BYTES = new Map(BYTE_LETTERS.map((letter, byte) => [letter, byte]));

class ByteLevelTokenizer extends SubwordTokenizer {
  constructor(found) {
    super(found);
    this.special = new Map(found.special.map((text) => [text, this.ids.get(text)]));
    this.prefix = found.prefix;
  }
  encode(text) {
    const ids = [];
    while (text) {
      const [at, mark] = [...this.special.keys()].map((each) => [text.indexOf(each), each])
        .filter(([place]) => place >= 0).sort(([a], [b]) => a - b)[0] ?? [text.length, ""];
      const part = text.slice(0, at), prefixed = this.prefix && part && !part.startsWith(" ") ? ` ${part}` : part;
      for (const [piece] of prefixed.matchAll(PIECES))
        ids.push(...this.merge(bytesOf(piece).map((byte) => BYTE_LETTERS[byte]).join("")).map((each) => this.ids.get(each)));
      if (mark) ids.push(this.special.get(mark));
      text = text.slice(at + mark.length);
    }
    return ids;
  }
  bytes(id) { return [...this.piece(id)].map((letter) => LETTER_BYTES.get(letter)); }
  decode(ids) { return textOf(ids.filter((id) => !this.special.has(this.piece(id))).flatMap((id) => this.bytes(id))); }
  show(id) { return this.special.has(this.piece(id)) ? this.piece(id) : seen(textOf(this.bytes(id))); }
}

const makeTextTokenizer = (found) => new {
  ids: IdTokenizer, bytes: ByteTokenizer, subwords: SubwordTextTokenizer, llama2c: Llama2cTokenizer, bytelevel: ByteLevelTokenizer,
}[found.kind](found);

const textEngine = { extend, forget, nothingRead, loadTextModel, makeTextTokenizer };
