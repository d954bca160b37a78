// Every intermediate of a run, in one order: names with sizes, and one long text of numbers.
const flatten = (source, target) => {
  const found = [];
  const put = (name, m) => found.push([name, m.data]);
  const residual = ({place, before, input, inner, sum, x}) => {
    for (const [name, m] of Object.entries({before, input, sum, x})) put(`${place}.${name}`, m);
    for (const [name, m] of Object.entries(inner))
      if (Array.isArray(m)) m.forEach((each, h) => put(`${place}.${name}.${h}`, each));
      else put(`${place}.${name}`, m);
  };
  for (const [side, out] of Object.entries({source, target})) {
    put(`${side}.embedding`, out.embedding);
    put(`${side}.positioned`, out.positioned);
    out.layers.flat().forEach(residual);
  }
  put("memory", source.memory);
  put("hidden", target.hidden);
  put("logits", target.logits);
  return found;
};
const pack = (found) => {
  const all = new Float32Array(found.reduce((n, [, data]) => n + data.length, 0));
  let at = 0;
  for (const [, data] of found) { all.set(data, at); at += data.length; }
  const bytes = new Uint8Array(all.buffer);
  let text = "";
  for (let i = 0; i < bytes.length; i += 8192) text += String.fromCharCode(...bytes.subarray(i, i + 8192));
  return { sizes: found.map(([name, data]) => [name, data.length]), numbers: btoa(text) };
};
let model;
const run = (off = [], edits = []) => ({ off: new Set(off), edits: new Map(edits) });
const compute = ({source, target, off, edits, cached}) => {
  const encoded = engine.encode(model, source, run(off, edits));
  if (!cached) return pack(flatten(encoded, engine.decode(model, encoded, target, run(off, edits))));
  let past = engine.emptyPast(model), rows = [];
  for (const id of target) {
    const out = engine.decode(model, encoded, [id], run(off, edits), past);
    rows.push(["logits", out.logits.data]);
    past = out.past;
  }
  return pack(rows);
};
const search = ([source, length]) => {
  const encoded = engine.encode(model, source);
  return [
    engine.greedySearch(model, encoded, length).tokens,
    ...[2, 4].map((size) => engine.beamSearch(model, encoded, length, size).candidates
      .map(({ tokens, logProbability, score }) => [tokens, logProbability, score])),
  ];
};
const draw = (source) => {
  const encoded = engine.encode(model, source);
  const first = (temperature, seed) =>
    engine.sample(model, encoded, 1, temperature, seed, engine.WHOLE).tokens[0] ?? 2;
  const many = (count, temperature) => Array.from({ length: count }, (_, seed) => first(temperature, seed));
  const { logits } = engine.step(model, encoded, engine.emptyPast(model), 1, engine.WHOLE);
  return { many: many(2000, 1), again: many(20, 1), cold: many(20, 0.01), ranked: engine.likeliest(logits, 15) };
};
