// Every intermediate of a language model's run: names, and the numbers in base64.
const spread = (out) => {
  const found = [["embedding", out.embedding], ["positioned", out.positioned]];
  out.layers.forEach((pair, n) => pair.forEach(({ inner, ...rest }, k) => {
    const at = `${n}.${["self", "ff"][k]}`;
    for (const [name, m] of Object.entries({ ...rest, ...inner }))
      [m].flat().forEach((each, h) => found.push([`${at}.${name}${Array.isArray(m) ? `.${h}` : ""}`, each]));
  }));
  found.push(["hidden", out.hidden], ["logits", out.logits]);
  return found.map(([name, { data }]) => {
    const bytes = new Uint8Array(data.slice().buffer);
    return [name, btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""))];
  });
};
let model;
const read = (ids) => spread(textEngine.extend(model, textEngine.nothingRead(model), ids));
// In parts, and after having read and forgotten something else.
const readInParts = ([ids, cut, wrong]) => {
  let past = textEngine.extend(model, textEngine.nothingRead(model), ids.slice(0, cut)).past;
  past = textEngine.forget(textEngine.extend(model, past, wrong).past, cut);
  return spread(textEngine.extend(model, past, ids.slice(cut)));
};
