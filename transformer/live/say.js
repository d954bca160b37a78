// What a view of the model shows, in a sentence.

const word = (text) => h("i", {}, text);
const say = (...parts) => h("p", { class: "live-say" }, parts);

// `page` has what is shown now (state, view) and what reads it; see `mount` in page.js.
function makeSayings(page) {
  const { config, parts, heads, target, sourceText, targetText, recordOf, rowNames, keyOf, probe, probabilityOf, shows } = page;
  const named = (part) => `${part.side === "e" ? "encoder" : "decoder"} layer ${part.layer}`;

  function sayPair(weights) {
    const { view } = page;
    const [first, second] = [...weights.keys()].sort((i, j) => weights[j] - weights[i]);
    return say("To write ", word(targetText(view.tokens[view.at] ?? config.eos_id)), ", the decoder looks most at ", word(sourceText(first)), ` (${percent(weights[first])})`,
      weights[second] >= 0.01 && [", then at ", word(sourceText(second)), ` (${percent(weights[second])})`], ".");
  }

  function sayNext() {
    const { state, view } = page, [first, second] = view.ranked;
    return say(word(targetText(first.id)), ` has a probability of ${percent(first.probability)}; `, word(targetText(second.id)), ` comes next with ${percent(second.probability)}.`,
      page.smoothed && state.mode !== "sample" && first.probability > 0.85 && first.probability < 0.93 && " It is never quite sure: in training, a tenth of each answer was kept back for all other tokens (label smoothing).");
  }

  // From which part on the decoder would say what it says in the end.
  function sayMap() {
    const { view } = page, final = view.ranked[0].id, layers = parts.filter((part) => part.side === "d" && part.layer);
    const says = layers.map((part) => probe(row(recordOf(part).x, view.at)).id);
    const from = says.findLastIndex((id) => id !== final) + 1, part = layers[from];
    if (!part) return say("Only at the output does it become ", word(targetText(final)), ".");
    const name = `${part.name.toLowerCase()} in layer ${part.layer}`, below = says.slice(0, from);
    if (!from) return say("From its first part on, the decoder leans to ", word(targetText(final)), ".");
    const lower = part.layer > 1 && below.every((id) => id === below[0]) ? "In its lower layers the model leans" : "Just before, the model still leans";
    return say(`${lower} to `, word(targetText(below.at(-1))), `; ${name} turns that into `, word(targetText(final)), ".");
  }

  function sayPart(part, at) {
    const { state, view } = page;
    if (part.kind === "attention") {
      if (!["heads", "matrix", "row", "values"].some(shows)) return null;
      const { inner } = recordOf(part), weights = row(inner.weights[state.head - 1], at), names = rowNames(part, inner);
      const key = keyOf(weights), best = argmax(weights);
      return say(`Head ${state.head} of ${named(part)}: `, part.side === "e" ? word(sourceText(at)) : ["the word after ", word(targetText(view.inputs[at]))],
        ` gives ${percent(weights[key])} of its attention to `, word(names.keys[key]), key !== best && [`, and most (${percent(weights[best])}) to `, word(names.keys[best])], ".",
        state.off.has(`head:${part.at}.${state.head}`) && " But the head is switched off, and passes on zeros.");
    }
    if (part.kind === "ff") {
      const record = recordOf(part), hidden = row(record.inner.hidden, at);
      return say(`Of its ${hidden.length} hidden numbers, ${hidden.filter((value) => value > 0).length} are above 0${config.activation ? "" : "; ReLU has set the others to 0"}. The output has the length ${number(length(row(record.inner.output, at)), 1)}; it is added to a vector of the length ${number(length(row(record.before, at)), 1)}.`);
    }
    if (part.kind === "embedding") {
      const id = part.side === "e" ? view.ids[at] : view.inputs[at];
      return say(word(part.side === "e" ? sourceText(at) : targetText(id)), ` is row ${id} of the table, and stands at position ${at}, counted from 0.`);
    }
    if (part.kind === "output") {
      const [first, second] = view.ranked, logits = row(view.trace.logits, view.at);
      return say(word(targetText(first.id)), ` has the largest logit, ${number(logits[first.id], 1)}; next comes `, word(targetText(second.id)), ` with ${number(logits[second.id], 1)}. The softmax makes that ${percent(first.probability)} against ${percent(second.probability)}.`);
    }
    return null;
  }

  // The token that the whole model would write here: how probable it was, and is.
  function wasIs() {
    const { view } = page, id = view.wholeTokens[view.at] ?? config.eos_id, now = view.ranked[0], was = Math.exp(view.wholeLogged[id]);
    return [word(targetText(id)), ` had ${percent(was)}, and now has ${percent(probabilityOf(view.trace, id))}`, now.id !== id && ["; ", word(targetText(now.id)), ` is ahead with ${percent(now.probability)}`], ". "];
  }

  function sayBroken() {
    const { state, view } = page;
    if (!state.off.size) return say("Everything is on. Switch something off, and the sentence is translated again.");
    const heads_off = [...state.off].filter((each) => each.startsWith("head:")).length;
    const others = [...state.off].filter((each) => !each.startsWith("head:")).map((each) => SWITCHES.find(([name]) => name === each)?.[1] ?? each.replace(":", " in ").replace("_", " "));
    return say(`Off: ${[...others, heads_off && `${heads_off} of ${heads} heads`].filter(Boolean).join(", ")}. `, ...(String(view.wholeTokens) === String(view.now.answer.tokens) ? ["The words stay the same."] : ["It was ", quoted(target.decode(view.wholeTokens)), " and is now ", quoted(target.decode(view.tokens)), "."]));
  }

  return { sayPair, sayNext, sayMap, sayPart, sayBroken, wasIs };
}
