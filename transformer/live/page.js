// The view of the live model. What a reader types reaches the page in text nodes alone.

// The parts of a model, from the first to the last that data passes.

function partsOf({ config }) {
  const parts = [{ at: "source", side: "e", kind: "embedding", name: "Embedding + positions" }];
  const layers = (side, count, kinds) => {
    for (let layer = 1; layer <= count; layer++)
      kinds.forEach((kind, n) => parts.push({
        at: `${side}${layer}.${kind}`, side, layer, n, kind: kind === "ff" ? "ff" : "attention",
        name: { self: side === "d" ? "Masked self-attention" : "Self-attention", cross: "Cross-attention", ff: "Feed-forward" }[kind],
      }));
    if (config.norm_first) parts.push({ at: `${side}.norm`, side, kind: "norm", name: "Last norm" });
  };
  layers("e", config.num_encoder_layers, ["self", "ff"]);
  parts.push({ at: "target", side: "d", kind: "embedding", name: "Embedding + positions" });
  layers("d", config.num_decoder_layers, ["self", "cross", "ff"]);
  parts.push({ at: "output", side: "d", kind: "output", name: "Output: the next word" });
  return parts;
}

const EXPLAIN = {
  source: ["A token’s id picks a row of a learned table, which is multiplied by √d_model. Sines and cosines of its position are added.", [2, 6]],
  "e.self": ["Each source token’s query is compared with the keys of all source tokens. The weights that result mix the values.", [4, 5, 7]],
  "d.self": ["As in the encoder, but a position attends to itself and to earlier ones only: the causal mask.", [8, 9]],
  "d.cross": ["Queries come from the translation so far, keys and values from the encoder’s output.", [9, 14]],
  ff: ["Two linear maps with an activation between them, the same at every position.", [7]],
  norm: ["With the norm before each sublayer, the last sum is left unnormalised: one more norm follows.", [7]],
  output: ["The logit of a token is the dot product of the last vector with that token’s row of the output matrix. A softmax turns logits into probabilities.", [10]],
  greedy: ["Greedy search takes the most probable token at every step.", [13]],
  beam: ["Beam search keeps the four likeliest beginnings, and in the end the best of those that are complete.", [13]],
  sample: ["Sampling draws each token by its probability; a temperature below 1 sharpens the probabilities.", [13]],
  break: ["Everything here is switched off after training: the other parts never adapted to it. The break-it lab trains models without a part.", [12]],
};
EXPLAIN.target = EXPLAIN.source;
const PAGES = ["", "01-why-attention", "02-embedding", "03-queries-keys-values", "04-attention", "05-multi-head", "06-positional", "07-encoder",
  "08-masks", "09-decoder", "10-model", "11-data", "12-training", "13-decoding", "14-attention-maps"];

const SWITCHES = [
  ["scale", "Scores ÷ √d_k", "scores stay as large as they are: the softmax saturates", 4],
  ["causal", "Causal mask", "earlier positions attend to later ones too", 8],
  ["positions", "Positions", "embeddings carry no order", 6],
  ["residual", "Residual connections", "a sublayer’s output replaces its input", 7],
  ["norm", "Layer norms", "vectors keep the length that they happen to have", 7],
  ["feed_forward", "Feed-forward", "its output is zero", 7],
];

const TABS = { answer: "Answer", map: "Map", detail: "Part", number: "Number", break: "Break it" };
const SECTIONS = {
  answer: ["pair", "next"], map: ["map"], detail: ["heads", "matrix", "row", "values", "join", "ff", "stream"], number: ["number"], break: ["break"],
};
const TOP = 8;
const KINDS = { who: "who", verb: "what one does", thing: "things", person: "people", opening: "the, my, two", size: "sizes", colour: "colours", mood: "moods", place: "places", time: "when" };

function mount(root, data) {
  const model = loadModel(data), { config } = model;
  const source = makeTokenizer(data.source), target = data.target ? makeTokenizer(data.target) : source;
  const typing = makeTyping(source, data);
  const parts = partsOf(model), byPlace = new Map(parts.map((part) => [part.at, part]));
  const heads = parts.filter((part) => part.kind === "attention").length * config.num_heads;
  const d_k = config.d_model / config.num_heads;
  const language = (code) => {
    if (["source", "target"].includes(code)) return `the ${code} language`;
    try { return new Intl.DisplayNames(["en"], { type: "language" }).of(code) ?? code; } catch { return code; }
  };
  // In a chapter: one view of the model, without its own address.
  const small = root.dataset.state !== undefined;
  const shows = (name) => !small || root.dataset.show.split(" ").includes(name);
  const section = (name, ...children) => (shows(name) ? children : []);
  const [from, into] = data.languages.map((code) => (code === "ids" ? "Token ids" : code ? language(code) : "Source"));

  // State, and its form in the address

  const atFirst = () => ({
    sentence: data.examples[0] ?? "", mode: "greedy", temperature: 1, seed: 1, prefix: [], step: 1, at: `d${config.num_decoder_layers}.cross`,
    head: 1, mean: true, word: 0, query: null, key: null, pads: 0, off: new Set(), edits: new Map(), tab: "answer", numbers: false,
  });

  function toHash(tab = state.tab) {
    const found = new URLSearchParams({ s: state.sentence, t: state.step, at: state.at });
    if (state.mode !== "greedy") found.set("m", state.mode);
    if (state.mode === "sample") { found.set("T", state.temperature); found.set("r", state.seed); }
    if (state.prefix.length) found.set("p", state.prefix.join("."));
    if (state.head !== 1) found.set("h", state.head);
    if (state.mean) found.set("mean", 1);
    if (state.word) found.set("w", state.word);
    if (state.query !== null) found.set("q", state.query);
    if (state.key !== null) found.set("k", state.key);
    if (state.pads) found.set("pads", state.pads);
    if (state.off.size) found.set("off", [...state.off].join(","));
    if (state.edits.size) found.set("set", [...state.edits].map(([at, value]) => `${at}:${value}`).join(","));
    if (tab !== "answer") found.set("tab", tab);
    if (tour?.card != null) found.set("tour", tour.card + 1);
    return `#${found}`;
  }

  const whole = (text, least, most, otherwise) => (/^\d{1,6}$/.test(text ?? "") ? Math.min(most, Math.max(least, Number(text))) : otherwise);

  // What cannot be is passed over: an address may come from anywhere.
  function fromHash(text) {
    const found = new URLSearchParams(text.slice(1)), next = atFirst();
    const place = "(?:" + parts.map((part) => part.at.replace(".", "\\.")).join("|") + ")";
    const part = new RegExp(`^(?:scale|causal|positions|residual|norm|feed_forward|padding|(?:residual|norm|feed_forward):${place}|head:${place}\\.\\d{1,2})$`);
    const edit = new RegExp(`^(${place}\\.\\d{1,2}\\.\\d{1,4}\\.\\d{1,4}):(0|1|0?\\.\\d{1,4})$`);
    if (found.has("s")) next.sentence = found.get("s").slice(0, 2000);
    if (["beam", "sample"].includes(found.get("m"))) next.mode = found.get("m");
    const temperature = Number(found.get("T"));
    if (temperature >= 0.1 && temperature <= 5) next.temperature = temperature;
    next.seed = whole(found.get("r"), 1, 999999, 1);
    next.prefix = (found.get("p") ?? "").split(".").filter((id) => /^\d{1,6}$/.test(id)).map(Number)
      .filter((id) => id < config.target_vocab_size && id !== config.pad_id && id !== config.bos_id);
    next.step = whole(found.get("t"), 0, config.max_length, 1);
    if (byPlace.has(found.get("at"))) next.at = found.get("at");
    next.head = whole(found.get("h"), 1, config.num_heads, 1);
    next.word = whole(found.get("w"), 0, config.max_length, 0);
    next.mean = found.has("mean") || !found.has("at");
    next.query = whole(found.get("q"), 0, config.max_length, null);
    next.key = whole(found.get("k"), 0, config.target_vocab_size, null);
    next.pads = whole(found.get("pads"), 0, 3, 0);
    next.off = new Set((found.get("off") ?? "").split(",").filter((each) => part.test(each)));
    next.edits = new Map((found.get("set") ?? "").split(",").map((each) => edit.exec(each)).filter(Boolean).map(([, at, value]) => [at, Number(value)]));
    if (found.get("tab") in TABS) next.tab = found.get("tab");
    return next;
  }

  // Computing

  // What was typed as tokens, or a line about what is wrong with it.
  function read(sentence) {
    if (!sentence.replace(/\ufeff/g, "").trim()) return { problem: `Type a sentence in ${from}.` };
    if (sentence.length > 2000) return { problem: `The sentence is too long: ${sentence.length} characters, at most 2000 are read.` };
    let tokens;
    try { tokens = typing.tokens(sentence); } catch (error) { return { problem: `${error.message[0].toUpperCase()}${error.message.slice(1)}.` }; }
    if (!tokens.length) return { problem: "There is no word in it." };
    if (tokens.some((token) => token.id === null)) return { tokens, unknown: true };
    if (tokens.length + state.pads > config.max_length)
      return { tokens, problem: `The sentence is too long: ${tokens.length} tokens, at most ${config.max_length} fit.` };
    return { tokens };
  }

  const changes = () => state.off.size > 0 || state.edits.size > 0 || state.prefix.length > 0;

  function search(encoded, run, prefix) {
    const most = room(model, encoded.ids.length);
    if (state.mode === "beam") return beamSearch(model, encoded, most, 4, 0.6, run, prefix);
    if (state.mode === "sample") return sample(model, encoded, most, state.temperature, state.seed, run, prefix);
    return greedySearch(model, encoded, most, run, prefix);
  }

  let remembered = {};
  const remember = (name, key, work) => {
    if (remembered[name]?.key !== key) remembered[name] = { key, value: work() };
    return remembered[name].value;
  };

  // The logits after a token, of what can be generated, at the temperature that is set.
  function logitsOf(trace, at) {
    const logits = row(trace.logits, at).slice(), temperature = state.mode === "sample" ? state.temperature : 1;
    logits[config.pad_id] = logits[config.bos_id] = -Infinity;
    return logits.map((value) => value / temperature);
  }

  // All that is shown, of the sentence that was last understood.
  function compute() {
    const ids = [...shown.tokens.map((token) => token.id), ...Array(state.pads).fill(config.pad_id)];
    const run = { off: state.off, edits: state.edits };
    const how = [ids, state.mode, state.temperature, state.seed].join();
    const changed = [how, [...state.off], [...state.edits], state.prefix].join(";");
    const began = performance.now();
    const plain = remember("plain", how, () => {
      const encoded = encode(model, ids);
      return { encoded, answer: search(encoded, WHOLE, []) };
    });
    const now = !changes() ? plain : remember("now", changed, () => {
      const encoded = encode(model, ids, run);
      return { encoded, answer: search(encoded, run, state.prefix) };
    });
    const { tokens, ended } = now.answer;
    const last = Math.min(tokens.length, config.max_length - 1);
    const at = Math.min(state.step, last);
    const inputs = [config.bos_id, ...tokens.slice(0, at)];
    const trace = remember("trace", [changed, at].join(";"), () => decode(model, now.encoded, inputs, run));
    const before = !changes() ? trace : remember("before", [how, inputs].join(";"), () => decode(model, plain.encoded, inputs));
    const milliseconds = performance.now() - began;
    const ranked = likeliest(logitsOf(trace, at), TOP);
    const wholeLogged = logSoftmax(logitsOf(before, at));
    const given = [...tokens, ...(ended && last === tokens.length ? [config.eos_id] : [])];
    return { ids, now, plain, tokens: given, wholeTokens: plain.answer.tokens, at, inputs, trace, before, ranked, wholeLogged, milliseconds, key: [changed, at].join(";") };
  }

  // What stands at a row or a column of a table of attention weights.
  const sourceText = (i) => shown.tokens[i]?.text ?? "<pad>";
  const targetText = (id) => target.piece(id);

  // Everything below draws `state` and what was computed from it.

  const said = h("p", { class: "live-quiet", role: "status" });
  const input = h("input", {
    type: "text", class: "live-input", autocomplete: "off", autocapitalize: "off", spellcheck: "false", enterkeyhint: "go",
    oninput: () => { root.classList.add("live-waiting"); clearTimeout(pause); pause = setTimeout(finish, 400, false); },
  });
  const form = h("form", { class: "live-ask", onsubmit: (event) => { event.preventDefault(); finish(true); } });
  const chips = h("p", { class: "live-tokens", role: "group", "aria-label": "Source" }), hint = h("p", { class: "live-note" }), notes = h("div", { class: "live-chips" });
  // Sliders stay while they are dragged; all else is drawn anew.
  const temperature = h("input", { type: "range", min: "0.1", max: "3", step: "0.1", "data-key": "temperature",
    oninput: () => set({ temperature: Number(temperature.value) }, "answer")() });
  const degrees = h("output"), sampling = h("p", { class: "live-sampling" },
    h("label", {}, "Temperature ", temperature, " ", degrees), h("button", { type: "button", "data-key": "again", onclick: () => set({ seed: state.seed + 1 }, "answer")() }, "Draw again"));
  const steps = h("span", { class: "live-steps" }), spoken = h("p", { class: "live-words", role: "group", "aria-label": "Translation" }), remarks = h("div", { class: "live-remarks" }), made = h("p", { class: "live-made" });
  const answer = h("section", { class: "live-top", "aria-label": "The sentence and its translation" },
    h("div", { class: "live-row" }, small ? [] : [chips, h("span", { class: "live-to", "aria-hidden": "true" }, "→")], spoken, steps), sampling, remarks);
  const edited = h("input", { type: "range", min: "0", max: "1", step: "0.01", "data-key": "edit",
    oninput: () => { state = { ...state, key: Number(edited.name.split(".").at(-1)), edits: new Map(state.edits).set(edited.name, Number(edited.value)) }; update("answer"); } });
  const amount = h("output"), unedit = h("button", { type: "button", "data-key": "unedit",
    onclick: () => { const edits = new Map(state.edits); edits.delete(edited.name); state = { ...state, edits }; update("answer"); } }, "Undo");
  const editor = h("div", {}, h("p", { class: "live-edit" }, h("label", {}, "Set this weight by hand ", edited, " ", amount), unedit),
    h("p", { class: "live-note" }, "The other weights of the row share the rest. The sentence is translated again."));
  const worked = h("div");
  const panes = Object.fromEntries(Object.keys(TABS).map((name) => [name, h("section", { class: `live-pane live-${name}`, "aria-label": TABS[name] })]));
  panes.number.append(worked, editor);
  for (const [name, pane] of Object.entries(panes)) pane.hidden = !SECTIONS[name].some(shows);
  const { break: last, ...others } = panes; // the part that stays in view scrolls away with the others
  const box = h("div", {}, h("div", { class: "live-panes" }, Object.values(others)), last);
  const tabs = h("div", { class: "live-tabs", role: "group", "aria-label": "What to look at" });

  const button = (key, attributes, ...children) => h("button", { type: "button", "data-key": key, ...attributes }, ...children);
  const fill = (element, ...children) => element.replaceChildren(...children.flat(Infinity).filter(Boolean));
  const set = (change, announce) => () => { state = { ...state, ...change }; update(announce); };

  function explain(name, more = []) {
    if (small) return null; // the page around it does
    const [text, chapters] = EXPLAIN[name];
    const links = [...chapters, ...more].map((chapter) =>
      data.links === null || data.links === undefined ? `chapter ${chapter}` : h("a", { href: `${data.links}${PAGES[chapter]}.html` }, `chapter ${chapter}`));
    return h("p", { class: "live-explain" }, formula(text), " ", h("span", {}, "More: ", links.flatMap((link, i) => (i ? [", ", link] : [link])), "."));
  }

  function drawForm() {
    fill(form,
      h("label", { class: small ? "live-quiet" : "live-label", for: input.id }, from === "Token ids" ? "Token ids" : `A sentence in ${from}`),
      h("div", { class: "live-line" }, input,
        !small && data.sentences.length > 1 && button("surprise", { onclick: surprise }, "Surprise me")),
      !small && drawWords());
  }

  // All that a sentence can be made of, by kind; a choice is written behind what is there.
  function drawWords() {
    const list = h("div", { class: "live-all", tabindex: "0", role: "group", "aria-label": "All words" }), sorted = new Intl.Collator(["fr", "en"]);
    const choice = (word) => button(`all-${word}`, { onclick: () => ask(joined([input.value.replace(/[.\s]+$/, ""), word])) }, word, gloss(typing.meaning(word)));
    const fillOnce = () => {
      if (list.childElementCount) return;
      const names = new Map(), left = new Set(source.words);
      for (const { name, words } of typing.kinds) names.set(KINDS[name], [...(names.get(KINDS[name]) ?? []), ...words.keys()].filter((word) => left.delete(word) || names.get(KINDS[name])?.includes(word)));
      if (left.size) names.set(names.size ? "small words" : "words", [...left]);
      fill(list, [...names].map(([name, words]) => [h("h3", {}, name), h("p", {}, [...new Set(words)].sort(sorted.compare).map(choice))]));
    };
    const all = from !== "Token ids" && source.words?.length <= 2000, examples = data.examples.length > 1;
    return (all || examples) && h("details", { ontoggle: all ? fillOnce : null }, h("summary", {}, examples ? "Examples" : "", examples && all ? ", and all " : all ? "All " : "", all && `${source.words.length} words`),
      examples && h("p", { class: "live-examples" }, data.examples.map((text, i) => button(`try-${i}`, { onclick: () => ask(text) }, text))), all && list);
  }

  // What was typed is translated at Enter, and at a pause if it may be whole: no sentence of words has fewer than three.
  let pause = 0;
  function finish(entered) {
    clearTimeout(pause);
    root.classList.remove("live-waiting");
    const { tokens = [], problem, unknown } = read(input.value);
    if (!entered && source.words && !problem && !unknown && tokens.length < 3) {
      hint.textContent = said.textContent = "Go on typing, or press Enter to translate this.";
      return;
    }
    state = { ...state, sentence: input.value, prefix: [], edits: new Map(), query: null, key: null, word: 0 };
    understand();
    update("answer");
  }

  const joined = (words) => words.filter(Boolean).join(" ").replace(/' /g, "'").replace(/ ,/g, ",");

  function ask(text) {
    clearTimeout(pause);
    root.classList.remove("live-waiting");
    input.value = text;
    state = { ...state, sentence: text, prefix: [], edits: new Map(), query: null, key: null, word: 0, step: 1 };
    understand();
    update("answer");
  }

  function surprise() {
    const others = data.sentences.filter((text) => text !== state.sentence);
    ask(others[Math.floor(Math.random() * others.length)]);
  }

  function replaceWord(tokens, place, word) {
    const step = state.step, follow = state.word;
    ask(joined(typing.swapped(tokens.map((token) => token.text), place, word)));
    if (understood === shown) { state = { ...state, step, word: follow }; update("answer"); }
  }

  function drawChips() {
    const { tokens = [], problem } = understood;
    const lines = [], words = shown?.tokens.map((token) => token.text) ?? [];
    fill(chips, words.map((text, i) => h("span", { class: "live-token" },
      button(`word-${i}`, { class: text === "<unk>" ? "live-unknown" : null, "aria-pressed": String(i === state.word), title: `id ${shown.tokens[i].id}`,
        onclick: set({ word: i, ...(byPlace.get(state.at).side === "e" ? { key: null } : {}) }, "part") }, text), drawSwap(words, i))),
      Array.from({ length: state.pads }, () => h("span", { class: "live-pad" }, "<pad>")));
    const unknown = tokens.filter((token) => token.id === null);
    if (unknown.length) {
      const first = tokens.indexOf(unknown[0]), offered = typing.nearest(tokens, first), sign = /^\p{P}$/u.test(unknown[0].text);
      lines.push(h("p", { class: "live-read" }, tokens.map((token) => h("span", { class: token.id === null ? "live-pad live-unknown" : "live-pad" }, token.text))));
      const names = [...new Set(unknown.map(({ text }) => `“${text.slice(0, 40)}”`))], several = names.length > 1;
      lines.push(h("p", { class: "live-problem" }, several ? `${names.slice(0, -1).join(", ")} and ${names.at(-1)} are not in the vocabulary` : `${names[0]} is not in the vocabulary`,
        sign ? [". ", button("suggest-none", { onclick: () => replaceWord(tokens, first, null) }, "Leave it out")]
          : [offered.length ? (several ? `. In place of ${names[0]}: ` : ". In its place: ") : `. The vocabulary has ${source.words.length} words, such as `,
        (offered.length ? offered : source.words.filter((word) => word.length > 2).slice(0, 4)).map((word, i) => button(`suggest-${i}`, { onclick: () => replaceWord(tokens, first, word) }, word, gloss(typing.meaning(word))))]));
    }
    if (problem) lines.push(h("p", { class: "live-problem" }, problem));
    const strange = tokens.filter((token) => token.text === "<unk>").length;
    if (strange) lines.push(h("p", { class: "live-problem" }, `${strange} of the characters ${strange > 1 ? "were" : "was"} in no training sentence: <unk>.`));
    if ((unknown.length || problem) && shown) lines.push(h("p", { class: "live-still-shown" }, "Below you still see ", quoted(shown.sentence), "."));
    hint.textContent = "";
    notes.replaceChildren(...lines, hint);
    root.classList.toggle("live-stale", understood !== shown);
  }

  const gloss = (text) => text && [" ", h("small", {}, text)];

  // A token's menu: what could stand in its place.
  function drawSwap(words, place) {
    const choices = small ? [] : typing.menu(words, place);
    return choices.length > 0 && h("select", { "data-key": `swap-${place}`, "aria-label": `Another word for ${quoted(words[place])}`, title: "Another word", onchange: (event) => replaceWord(shown.tokens, place, event.target.value) },
      choices.map(([word, meaning]) => h("option", { value: word, selected: word === words[place] }, `${word}: ${meaning}`)));
  }

  const player = makePlayer({
    root, parts, redraw: () => update("step"),
    begin() {
      look({ step: 0, query: null, key: null, tab: "map" }, "step");
      if (!tabs.getClientRects().length) reveal(panes.map);
    },
    goOn() {
      if (state.step >= view.tokens.length - 1) return false;
      state = { ...state, step: state.step + 1 };
      update("step");
      return true;
    },
  });

  function goTo(step) {
    player.stop();
    state = { ...state, step: Math.max(0, Math.min(view.tokens.length - 1, step)), query: null, key: null };
    update("step");
  }

  let drawn = []; // the tokens of the answer that was drawn last

  function drawAnswer() {
    const { tokens, at, wholeTokens, milliseconds } = view;
    let fresh = 0;
    const word = (id, i) => {
      const isNew = id !== drawn[i];
      const logged = i === at ? view.ranked.find((each) => each.id === id) : null;
      return button(`step-${i}`, {
        class: [isNew && "live-new", i > at && "live-later", i === state.prefix.length - 1 && "live-forced", changes() && id !== (wholeTokens[i] ?? config.eos_id) && "live-differs"].filter(Boolean).join(" ") || null, "aria-pressed": String(i === at), "aria-label": `Token ${i + 1}: ${targetText(id)}`, style: { "--i": isNew ? fresh++ : 0 }, onclick: () => goTo(i),
      }, targetText(id), logged && [" ", h("small", { "aria-hidden": "true" }, percent(logged.probability))]);
    };
    fill(steps,
        button("back", { "aria-label": "One token back", "aria-disabled": at === 0 && "true", onclick: at > 0 && (() => goTo(at - 1)) }, "‹"),
        h("span", {}, `step ${at + 1} of ${tokens.length}`),
        button("forth", { "aria-label": "One token on", "aria-disabled": at >= tokens.length - 1 && "true", onclick: at < tokens.length - 1 && (() => goTo(at + 1)) }, "›"),
        !small && button("play", { onclick: player.play }, player.playing ? "Stop" : "Play"));
    const loop = view.now.answer.ended ? null : findLoop(tokens), kept = loop && Math.max(at + 1, loop.from + loop.size);
    fill(spoken, loop ? [tokens.slice(0, kept).map(word), h("span", { class: "live-fold" }, `… and so on, ${tokens.length} tokens in all`)] : tokens.map(word));
    drawn = tokens;
    const chosen = spoken.children[at], left = chosen?.offsetLeft - spoken.offsetLeft;
    if (chosen && (left < spoken.scrollLeft || left + chosen.offsetWidth > spoken.scrollLeft + spoken.clientWidth))
      spoken.scrollLeft = left - spoken.clientWidth / 3;
    sampling.hidden = state.mode !== "sample";
    temperature.value = state.temperature;
    degrees.textContent = number(state.temperature, 1);
    fill(remarks,
      loop && h("p", { class: "live-note" }, "It repeats itself until there is no more room: it never outputs the token that ends a sentence.",
        source.words && shown.tokens.length < 3 && " None of the sentences that it was trained on is this short."),
      changes() && h("p", { class: "live-whole" }, h("span", {}, "Whole model: "),
        wholeTokens.map((id, i) => h("span", { class: id === tokens[i] ? null : "live-differs" }, targetText(id))),
        h("strong", {}, String(wholeTokens) === String(tokens.filter((id) => id !== config.eos_id)) ? " the same words." : " other words."), h("span", { class: "live-was" }, wasIs()),
        button("reset", { onclick: set({ off: new Set(), edits: new Map(), prefix: [] }, "answer") }, "Undo all changes")),
    );
    made.dataset.ms = milliseconds.toFixed(1);
    fill(made, !small && milliseconds >= 0.05 && `Computed in ${number(milliseconds, milliseconds < 10 ? 1 : 0)} ms. `,
      small ? h("a", { href: `${root.dataset.page}${toHash(SECTIONS.detail.some(shows) ? "detail" : "answer")}`, "data-key": "link" }, "Open this view in the whole model")
        : h("a", { href: toHash(), "data-key": "link", onclick: (event) => { event.preventDefault(); copyLink(event.currentTarget); } }, "Link to this view"));
  }

  async function copyLink(link) {
    try { await navigator.clipboard.writeText(String(new URL(toHash(), location.href))); link.textContent = "Copied"; } catch { link.textContent = "It is in the address bar"; }
    setTimeout(() => { link.textContent = "Link to this view"; }, 1500);
  }

  // Which source tokens the token in hand attended to: one head, or the mean of all.
  function crossWeights() {
    const part = byPlace.get(state.at), layers = view.trace.layers.map((layer) => layer[1].inner);
    if (part.at.endsWith(".cross") && !state.mean)
      return { label: `decoder ${part.layer}, cross-attention, head ${state.head}`, weights: row(layers[part.layer - 1].weights[state.head - 1], view.at) };
    const all = layers.flatMap((inner) => inner.weights.map((weights) => row(weights, view.at)));
    return { label: `mean of all ${all.length} heads of cross-attention`, weights: all[0].map((_, j) => all.reduce((sum, one) => sum + one[j], 0) / all.length) };
  }

  function drawPair() {
    const { label, weights } = crossWeights(), height = 34;
    const rows = Math.max(weights.length, view.tokens.length), high = rows * height;
    const top = (count) => ((rows - count) * height) / 2 + height / 2;
    const y = top(view.tokens.length) + view.at * height;
    const arcs = Array.from(weights, (weight, j) => {
      const x = top(weights.length) + j * height;
      return weight >= 0.01 && s("path", { d: `M0 ${x}C50 ${x} 50 ${y} 100 ${y}`, "stroke-width": number(12 * weight, 1) });
    });
    return section("pair",
      h("h2", {}, "What the chosen token attended to", h("small", {}, ` ${label}`)),
      sayPair(weights),
      h("div", { class: "live-pair" },
        h("ol", { "aria-label": "Source" }, Array.from(weights, (weight, j) =>
          h("li", {}, h("span", {}, sourceText(j)), h("b", { style: { "--w": number(weight, 3) } }, weight >= 0.005 ? short(weight) : "")))),
        s("svg", { viewBox: `0 0 100 ${high}`, style: { "--rows": rows }, preserveAspectRatio: "none", "aria-hidden": "true" }, arcs),
        h("ol", { "aria-label": "Translation" }, view.tokens.map((id, i) =>
          h("li", {}, button(`pair-${i}`, { "aria-pressed": String(i === view.at), class: i > view.at ? "live-later" : null, onclick: () => goTo(i) }, targetText(id)))))),
    );
  }

  const MODES = { greedy: "greedy", beam: "beam 4", sample: "sampling" };
  const drawModes = () => h("p", { class: "live-modes", role: "group", "aria-label": "Search" }, Object.entries(MODES).map(([mode, name]) =>
    button(`mode-${mode}`, { "aria-pressed": String(state.mode === mode), onclick: set({ mode, prefix: [] }, "answer") }, name)));

  function drawNext() {
    const so_far = view.inputs.slice(1).map(targetText).join(" ");
    return section("next",
      h("h2", {}, "The next token", so_far && [" after ", quoted(so_far)]),
      sayNext(), drawModes(),
      h("ol", { class: "live-next" }, view.ranked.map(({ id, probability }) => {
        const before = Math.exp(view.wholeLogged[id]);
        return h("li", {}, button(`next-${id}`, { "aria-pressed": String(id === view.tokens[view.at]), onclick: () => force(id),
          "aria-label": `${targetText(id)}, ${percent(probability)}${changes() ? `, in the whole model ${percent(before)}` : ""}: continue with it` }, targetText(id)),
          h("span", { class: "live-bar", "aria-hidden": "true" }, h("i", { style: { width: `${100 * probability}%` } }),
            changes() && h("u", { style: { width: `${100 * before}%` } })),
          h("b", {}, percent(probability)));
      })),
      h("p", { class: "live-note" }, "Choose a token to continue the translation with it.", changes() && " The outline is the whole model.",
        state.prefix.length > 0 && button("unforce", { onclick: set({ prefix: [] }, "answer") }, "Undo the choice")),
      state.mode === "beam" && [
        h("h3", {}, "What the beam finished"),
        h("ol", { class: "live-beam" }, view.now.answer.candidates.map(({ tokens, logProbability, score }) =>
          h("li", {}, h("b", {}, number(score)), h("b", {}, percent(Math.exp(logProbability))), h("span", {}, tokens.map(targetText).join(" "))))),
        h("p", { class: "live-note" }, "Score (log-probability over ((5 + length) / 6)", h("sup", {}, "0.6"), "), probability, translation; the best score wins.")],
      explain(state.mode),
    );
  }

  function force(id) {
    state = { ...state, prefix: [...view.inputs.slice(1), id], query: null, key: null };
    update("answer");
  }

  // The map

  function recordOf(part) {
    if (!part.layer) return null;
    return (part.side === "e" ? view.now.encoded : view.trace).layers[part.layer - 1][part.n];
  }

  // The row in hand: of the encoder a word's, of the decoder the last one, or in an attention part the one that was chosen.
  const rowOf = (part) => (part.side === "e" ? Math.min(state.word, view.ids.length - 1)
    : part.at === state.at && part.kind === "attention" ? Math.min(state.query ?? view.at, view.at) : view.at);

  // The same of the model as it was trained, for the same tokens.
  const wholeRecordOf = (part) => (part.side === "e" ? view.plain.encoded : view.before).layers[part.layer - 1][part.n];

  // The likeliest token if the output layer read this vector. No training asked for it.
  function probe(vector) {
    const x = matrix(1, vector.length, vector);
    const hidden = config.norm_first ? layerNorm(model.decoder.norm, x) : x;
    return likeliest(linear(model.output, hidden).data, 1)[0];
  }

  function drawBlock(part) {
    const record = recordOf(part), inner = record?.inner, at = rowOf(part);
    const off = state.off;
    const broken = [...off].some((each) => each.endsWith(`:${part.at}`) || each.startsWith(`head:${part.at}.`));
    let extra = null;
    if (part.kind === "attention")
      extra = h("span", { class: "live-thumbs" }, inner.weights.map((weights, i) =>
        h("span", { class: [off.has(`head:${part.at}.${i + 1}`) && "live-off", part.at === state.at && i + 1 === state.head && "live-on"].filter(Boolean).join(" ") || null }, heat(weights, at))));
    if (part.kind === "ff") {
      const hidden = row(inner.hidden, at);
      extra = h("small", {}, `${hidden.filter((value) => value > 0).length} of ${hidden.length} above 0`);
    }
    if (part.kind === "embedding")
      extra = h("small", {}, part.side === "e" ? sourceText(at) : targetText(view.inputs[at]), ` at position ${at}`);
    if (part.kind === "output") extra = h("small", {}, `${targetText(view.ranked[0].id)} ${percent(view.ranked[0].probability)}`);
    const after = part.kind === "embedding" ? row((part.side === "e" ? view.now.encoded : view.trace).positioned, at) : record && row(record.x, at);
    const read_out = part.side === "d" && record && probe(after);
    const title = part.layer ? `${part.side === "e" ? "Encoder" : "Decoder"} layer ${part.layer}, ${part.name}` : `${part.side === "e" ? "Encoder" : "Decoder"}, ${part.name}`;
    const norm = after ? number(Math.min(1, length(after) / (2.2 * Math.sqrt(config.d_model))), 3) : 0;
    return h("li", { class: `live-block live-kind-${part.kind}`, "data-at": part.at, style: { "--norm": norm } },
      button(`at-${part.at}`, { "aria-label": broken ? `${title}, changed` : title, "aria-pressed": String(part.at === state.at), onclick: () => { const to = { at: part.at, query: null, key: null }; if (tour?.onMap) set(to, "part")(); else look({ ...to, tab: "detail" }); } },
        h("span", { class: "live-name" }, part.name, broken && h("em", {}, " changed")), extra),
      after && h("span", { class: "live-stream" },
        h("i", {}), h("small", {}, number(length(after), 1), read_out && [" · would say ", word(targetText(read_out.id))])));
  }

  const stage = h("div", { class: "live-towers" });
  const wires = s("svg", { class: "live-wires", "aria-hidden": "true" });

  function drawMap() {
    const tower = (side, name) => {
      const groups = new Map();
      for (const part of parts.filter((each) => each.side === side)) {
        const key = part.layer ?? part.at;
        groups.set(key, [...(groups.get(key) ?? []), part]);
      }
      return h("div", { class: "live-tower", role: "group", "aria-label": name },
        h("p", { class: "live-tower-name" }, name, side === "e" ? `: ${sourceText(rowOf({ side }))}` : `: step ${view.at + 1}`),
        [...groups].map(([key, each]) => h("div", { class: typeof key === "number" ? "live-layer" : "live-single" },
          typeof key === "number" && h("p", { class: "live-layer-name" }, `Layer ${key}`), h("ol", {}, each.map(drawBlock)))));
    };
    stage.replaceChildren(tower("e", "Encoder"), tower("d", "Decoder"), wires);
    panes.map.replaceChildren(h("h2", {}, "The model"), sayMap(), stage,
      h("p", { class: "live-note" }, "Data flow from bottom to top; each small table is a head. The bar and the number after a part are the length of the vector in hand. ",
        "What a part “would say” is the likeliest token if the output layer read the vector there, which no training asked for."));
    requestAnimationFrame(drawWires);
  }

  // From the encoder's top to each cross-attention.
  function drawWires() {
    const box = stage.getBoundingClientRect(), towers = stage.querySelectorAll(".live-tower");
    if (!box.width || towers.length < 2) return;
    const [left, right] = [...towers].map((tower) => tower.getBoundingClientRect());
    const tops = towers[0].lastElementChild.getBoundingClientRect();
    const x = right.left - box.left - (right.left - left.right) / 2, beside = right.left - left.right > 6 && right.top < left.bottom;
    wires.setAttribute("viewBox", `0 0 ${box.width} ${box.height}`);
    const y = Math.max(2, tops.top - box.top - 10), out = (tops.left + tops.right) / 2 - box.left;
    const ends = [...stage.querySelectorAll('[data-at$=".cross"] > button')].map((block) => block.getBoundingClientRect());
    wires.replaceChildren(...(beside ? [
      s("path", { d: `M${out} ${tops.top - box.top}V${y}H${x}` }),
      ...ends.map((end) => s("path", { d: `M${x} ${y}V${end.top - box.top + end.height / 2}H${end.left - box.left}` })),
      ...ends.map((end) => s("path", { class: "live-arrow", d: `M${end.left - box.left} ${end.top - box.top + end.height / 2}l-7 -4v8z` })),
    ] : []));
  }

  // One part

  function toggle(name) {
    const off = new Set(state.off);
    if (!off.delete(name)) off.add(name);
    state = { ...state, off };
    update("answer");
  }

  const flip = (name, label, note, key = `off-${name}`) => h("label", { class: "live-flip" },
    h("input", { type: "checkbox", role: "switch", "data-key": key, checked: !state.off.has(name), onchange: () => toggle(name) }), h("span", {}, formula(label), note && h("small", {}, note)));

  const strips = (scale, ...each) => each.filter(Boolean).map(([values, label, colour, options]) => strip(values, label, { colour, scale, numbers: state.numbers, ...options }));

  function drawStream(part, record, at) {
    const x = row(record.before, at), added = row(record.inner.output, at), sum = row(record.sum, at), after = row(record.x, at);
    const scale = largest(x, added, sum, after);
    const normed = config.norm_first ? [row(record.input, at), "the layer norm of it: the sublayer’s input", "ink"] : null;
    const skipped = state.off.has("residual") || state.off.has(`residual:${part.at}`);
    return section("stream",
      h("h3", {}, "Residual and norm"),
      strips(scale, [x, "x, as it came in", "ink"], normed, [added, "the sublayer’s output", "added"],
        [sum, skipped ? "the output alone: the residual is switched off" : "their sum", "ink"], !config.norm_first && [after, "after the layer norm", "ink"]),
      part.side === "d" && probeLine(after),
      h("p", { class: "live-flips" }, flip(`residual:${part.at}`, "residual"), flip(`norm:${part.at}`, "layer norm"), part.kind === "ff" && flip(`feed_forward:${part.at}`, "feed-forward")),
    );
  }

  function probeLine(vector) {
    const { id, probability } = probe(vector);
    return h("p", { class: "live-note" }, "If the model had to answer here, it would say ", word(targetText(id)), `, with ${percent(probability)}.`);
  }

  const rowNames = (part, inner) => ({
    queries: part.side === "e" ? view.ids.map((_, i) => sourceText(i)) : view.inputs.map((id) => `after ${targetText(id)}`),
    keys: Array.from({ length: inner.keys.rows }, (_, j) => (part.at.endsWith(".self") && part.side === "d" ? targetText(view.inputs[j]) : sourceText(j))),
  });

  // A query in a sentence: of a word, or after what is written.
  const ofQuery = (part, i, word = "of") => (part.side === "e" ? `${word} ${quoted(sourceText(i))}` : `after ${quoted(targetText(view.inputs[i]))}`);
  const keyOf = (weights) => (state.key !== null && state.key < weights.length ? state.key : argmax(weights));
  const attended = (part, i, j) => (part.side === "d" && part.at.endsWith(".self") ? state.off.has("causal") || j <= i : view.ids[j] !== config.pad_id || state.off.has("padding"));

  function choose(part, query, key) {
    state = { ...state, key, ...(part.side === "e" ? { word: query } : { query: query === view.at ? null : query }) };
    update("part");
  }

  // A head's weights as a table of squares; its rows and keys are also reached as buttons.
  function drawMatrix(part, weights, names, at, key) {
    const side = weights.cols > 14 ? 18 : weights.cols > 9 ? 24 : 30, tilt = 48, longest = Math.max(...names.keys.map(widthOf));
    const left = 34 + Math.max(widthOf("keys"), ...names.queries.map(widthOf)), top = 20 + longest * Math.sin((tilt * Math.PI) / 180);
    const width = left + side * weights.cols + longest * Math.cos((tilt * Math.PI) / 180) + 4, height = top + Math.max(60, side * weights.rows) + 4;
    // A square of 28 pixels has room for its number.
    const squares = [], numbers = [], told = side >= 30;
    for (let i = 0; i < weights.rows; i++)
      for (let j = 0; j < weights.cols; j++) {
        const weight = weights.data[i * weights.cols + j];
        squares.push(s("rect", { x: left + j * side, y: top + i * side, width: side - 2, height: side - 2, rx: 3, class: weight === 0 ? "live-never" : null,
          style: { "--w": weight.toFixed(3) }, onclick: () => choose(part, i, j) },
          s("title", {}, `${names.queries[i]} → ${names.keys[j]}: ${number(weight)}`)));
        if (told && weight) numbers.push(s("text", { class: "live-value", style: { "--w": weight.toFixed(3) }, x: left + (j + 0.5) * side - 1, y: top + (i + 0.5) * side + 3 }, short(weight)));
      }
    return h("div", { class: "live-matrix", "aria-hidden": "true" }, s("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: told ? "live-told" : null },
      s("text", { class: "live-axis", x: left - 8, y: top - 8, "text-anchor": "end" }, "keys"),
      s("text", { class: "live-axis", transform: `translate(13 ${top}) rotate(-90)`, "text-anchor": "end" }, "queries"),
      names.queries.map((name, i) => s("text", { x: left - 8, y: top + (i + 0.5) * side + 3, "text-anchor": "end", class: i === at ? "live-on" : null }, name)),
      names.keys.map((name, j) => s("text", { transform: `translate(${left + (j + 0.5) * side + 3} ${top - 7}) rotate(${-tilt})`, class: j === key ? "live-on" : null }, name)),
      squares, numbers, s("rect", { class: "live-row", x: left - 3, y: top + at * side - 3, width: side * weights.cols + 4, height: side + 4, rx: 5 }),
      s("rect", { class: "live-here", x: left + key * side, y: top + at * side, width: side - 2, height: side - 2, rx: 3 })));
  }

  function drawAttention(part) {
    const record = recordOf(part), { inner } = record, query = rowOf(part), names = rowNames(part, inner);
    const trained = wholeRecordOf(part).inner.weights[state.head - 1], outlined = state.off.size + state.edits.size > 0;
    const head = state.head - 1, weights = inner.weights[head], weight = row(weights, query), scores = row(inner.scores[head], query), key = keyOf(weight);
    const slice = (m, i) => row(m, i).slice(head * d_k, (head + 1) * d_k);
    const cards = inner.weights.map((each, i) => {
      const own = row(each, query), best = argmax(own), name = `head:${part.at}.${i + 1}`, gone = state.off.has(name);
      return h("li", { class: gone ? "live-off" : null },
        button(`head-${i + 1}`, { "aria-pressed": String(i === head), onclick: set({ head: i + 1, key: null, ...(part.at.endsWith(".cross") ? { mean: false } : {}) }, "part"),
          "aria-label": `Head ${i + 1}: most to ${names.keys[best]}, ${number(own[best])}` },
          heat(each, query), h("span", {}, h("strong", {}, `Head ${i + 1}`), h("small", {}, names.keys[best], " ", short(own[best])))),
        flip(name, "on"));
    });
    const ranked = Array.from(weight, (value, j) => [value, j]).sort((a, b) => b[0] - a[0]).slice(0, 4).filter(([value]) => value >= 0.02);
    const mixed = slice(inner.heads, query), vectors = ranked.map(([value, j]) => slice(inner.values, j).map((x) => value * x));
    const scale = largest(mixed, ...vectors), joined = row(inner.heads, query);
    return [
      section("heads", h("h3", {}, `All ${config.num_heads} heads`, h("small", {}, ` ${ofQuery(part, query, "at")}`)), h("ul", { class: "live-heads" }, cards)),
      section("matrix", drawMatrix(part, weights, names, query, key)),
      section("row", h("h3", {}, `Head ${head + 1}: the row ${ofQuery(part, query)}`),
      h("div", { class: "live-scroll" }, h("table", { class: "live-row-table" },
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "key of"), h("th", { scope: "col" }, state.off.has("scale") ? "q · k" : `q · k ÷ √${d_k}`), h("th", { scope: "col" }, "softmax: weight"))),
        h("tbody", {}, Array.from(weight, (value, j) => {
          const byHand = state.edits.has(`${part.at}.${head + 1}.${query}.${j}`);
          return h("tr", { class: j === key ? "live-on" : null }, h("th", { scope: "row" }, button(`key-${j}`, { "aria-pressed": String(j === key), onclick: () => choose(part, query, j) }, names.keys[j])),
            h("td", {}, attended(part, query, j) ? number(scores[j]) : "masked"),
            h("td", {}, h("span", { class: "live-bar live-weight", "aria-hidden": "true" }, h("i", { style: { width: `${100 * value}%` } }), outlined && h("u", { style: { width: `${100 * row(trained, query)[j]}%` } })),
              h("b", {}, number(value, 3), byHand && h("em", {}, " by hand"))));
        })))),
        outlined && h("p", { class: "live-note" }, "The outline is the whole model."),
        h("p", { class: "live-flips" }, flip("scale", `÷ √${d_k}, in all heads`, null, "here-scale"), part.side === "d" && part.at.endsWith(".self") && flip("causal", "causal mask, in all layers", null, "here-causal"))),
      section("values", h("h3", {}, "Values, mixed by these weights"),
      strips(scale, ...ranked.map(([value, j], i) => [vectors[i], `${number(value)} × value of “${names.keys[j]}”`, "v", {}]), [mixed, state.off.has(`head:${part.at}.${head + 1}`) ? "head switched off: zeros" : `${ranked.length < weight.length ? "with all smaller ones, " : ""}their sum: the output of head ${head + 1}`, "mix", {}])),
      section("join", h("h3", {}, formula("Heads, side by side, through W^O")),
      strips(null, [joined, `${config.num_heads} × ${d_k} numbers, those of head ${head + 1} dark`, "mix", { scale: largest(joined), from: head * d_k, to: (head + 1) * d_k }],
        [row(inner.output, query), formula("times W^O, plus a bias: the sublayer’s output"), "added", { scale: largest(row(inner.output, query)) }])),
      drawStream(part, record, query),
    ];
  }

  function drawNumber() {
    const part = byPlace.get(state.at);
    editor.hidden = true;
    if (part.kind === "output") return drawLogit();
    if (part.kind !== "attention") return [h("h2", {}, "One number"), h("p", { class: "live-note" }, "Choose an attention part, and in it a key: this is where its weight is worked out.")];
    const { inner } = recordOf(part), query = rowOf(part), names = rowNames(part, inner);
    const head = state.head - 1, weight = row(inner.weights[head], query), scores = row(inner.scores[head], query), key = keyOf(weight);
    const q = row(inner.queries, query).slice(head * d_k, (head + 1) * d_k), k = row(inner.keys, key).slice(head * d_k, (head + 1) * d_k);
    const product = q.map((value, i) => value * k[i]), sum = product.reduce((total, value) => total + value, 0);
    const scaled = !state.off.has("scale"), edit = `${part.at}.${head + 1}.${query}.${key}`;
    const others = scores.reduce((total, value, j) => (attended(part, query, j) ? total + Math.exp(value - scores[key]) : total), 0);
    if (!edited.matches(":active")) edited.name = edit; // what is dragged stays the weight that it was
    edited.value = state.edits.get(edited.name) ?? weight[key];
    amount.textContent = number(Number(edited.value));
    unedit.hidden = !state.edits.has(edited.name);
    editor.hidden = false;
    return [
      h("h2", {}, "One number: the weight of ", quoted(names.keys[key]), ` ${ofQuery(part, query, "for")}`),
      say("The ", q.length, ` products of query and key add up to ${number(sum, 1)}. `, attended(part, query, key) ? `Against the other words’ sums, that is ${percent(weight[key])} of the attention.` : "The mask hides this key."),
      strips(null, [q, `q, the query ${ofQuery(part, query)}`, "q", { scale: largest(q, k) }], [k, `k, the key of “${names.keys[key]}”`, "k", { scale: largest(q, k) }], [product, "their products, number by number", "w", {scale: largest(product)}]),
      drawSum(q, k, product),
      h("dl", { class: "live-steps-out" },
        h("dt", {}, "Sum: q · k"), h("dd", {}, number(sum, 3)),
        scaled && [h("dt", {}, `Divided by √${d_k} = ${number(Math.sqrt(d_k), 3)}`), h("dd", {}, number(sum / Math.sqrt(d_k), 3))],
        attended(part, query, key)
          ? [h("dt", {}, "Softmax: 1 over the sum, for all keys, of e to (its score − this one)"), h("dd", {}, `1 ÷ ${others < 1e4 ? number(others, 3) : others.toExponential(1)} = ${number(1 / others, 3)}`)]
          : [h("dt", {}, "Masked"), h("dd", {}, "0")],
        state.edits.has(edit) && [h("dt", {}, "Set by hand"), h("dd", {}, number(weight[key], 3))]),
    ];
  }

  // Each product with its sign, the largest first; the small ones together unless all numbers are wanted.
  function drawSum(a, b, product) {
    const most = largest(product), order = [...product.keys()].sort((i, j) => Math.abs(product[j]) - Math.abs(product[i]));
    const shown = state.numbers ? order : order.slice(0, 5), others = order.slice(shown.length);
    const rest = others.reduce((sum, i) => sum + product[i], 0);
    const line = (text, value) => h("li", {}, h("span", {}, text),
      h("span", { class: "live-sign", "aria-hidden": "true" }, h("i", { class: value < 0 ? "live-minus" : null, style: { "--p": Math.min(1, Math.abs(value) / most) } })), h("b", {}, number(value)));
    return h("ol", { class: "live-sum", "aria-label": "The products, the largest first" },
      shown.map((i) => line(`${number(a[i])} × ${number(b[i])}`, product[i])), others.length > 0 && line(`${others.length} others together`, rest));
  }

  function drawLogit() {
    const { id, probability } = view.ranked[Math.min(state.key ?? 0, view.ranked.length - 1)], x = row(view.trace.hidden, view.at), w = row(model.output.weight, id);
    const product = x.map((value, i) => value * w[i]), sum = product.reduce((total, value) => total + value, 0);
    const bias = model.output.bias?.data[id] ?? null;
    return [
      h("h2", {}, "One number: the logit of ", quoted(targetText(id))),
      say("The ", x.length, ` products add up to ${number(sum, 1)}${bias === null ? "" : `, to which the token’s bias of ${number(bias, 1)} is added`}. Against the sums of all other tokens, that is ${percent(probability)}.`),
      strips(null, [x, "the last vector", "q", { scale: largest(x) }], [w, `the row of “${targetText(id)}” in the output matrix`, "k", { scale: largest(w) }], [product, "their products, number by number", "w", { scale: largest(product) }]),
      drawSum(x, w, product),
      h("dl", { class: "live-steps-out" }, h("dt", {}, bias === null ? "Sum: the logit" : "Sum and bias: the logit"), h("dd", {}, number(sum + bias, 3)),
        h("dt", {}, "Softmax over all tokens but <pad> and <bos>", state.mode === "sample" && `, at temperature ${number(state.temperature, 1)}`), h("dd", {}, percent(probability))),
    ];
  }

  function drawDetail() {
    const part = byPlace.get(state.at), at = rowOf(part), out = part.side === "e" ? view.now.encoded : view.trace;
    const crumbs = [h("span", {}, part.side === "e" ? "Encoder" : "Decoder", part.layer ? ` ${part.layer}` : ""), h("span", {}, part.name)];
    if (part.kind === "attention") {
      const { inner } = recordOf(part), names = rowNames(part, inner);
      const key = keyOf(row(inner.weights[state.head - 1], at));
      crumbs.push(h("span", {}, `head ${state.head}`), h("span", {}, names.queries[at], " → ", names.keys[key]));
    } else crumbs.push(h("span", {}, part.side === "e" ? sourceText(at) : targetText(view.inputs[at])));
    let body = [];
    if (part.kind === "attention") body = drawAttention(part);
    if (part.kind === "ff") {
      const record = recordOf(part), hidden = row(record.inner.hidden, at);
      body = [section("ff", h("h3", {}, `${config.d_model} numbers to ${hidden.length}, ${config.activation ?? "ReLU"}, and back`),
        strips(null, [row(record.input, at), "input", "ink", {scale: largest(row(record.input, at))}], [hidden, `hidden: ${hidden.filter((value) => value > 0).length} of ${hidden.length} are above 0`, "w", { scale: largest(hidden) }],
          [row(record.inner.output, at), "output", "added", { scale: largest(row(record.inner.output, at)) }])), drawStream(part, record, at)];
    }
    if (part.kind === "embedding") {
      const embedded = row(out.embedding, at), positions = row(out.positioned, at).map((value, i) => value - embedded[i]), scale = largest(row(out.positioned, at), embedded);
      body = [h("h3", {}, "Which token, and where"), strips(scale, [embedded, `row ${part.side === "e" ? view.ids[at] : view.inputs[at]} of the table × √${config.d_model}`, "k"],
        [positions, state.off.has("positions") ? "positions are switched off" : `sines and cosines of position ${at}`, "w"], [row(out.positioned, at), "their sum", "ink"]),
        h("p", { class: "live-flips" }, flip("positions", "positions", null, "here-positions"))];
    }
    if (part.kind === "norm") {
      const before = row(out.layers.at(-1).at(-1).x, at), after = row(part.side === "e" ? out.memory : out.hidden, at);
      body = [h("h3", {}, "One more norm"), strips(largest(before, after), [before, "before", "ink"], [after, "after", "ink"])];
    }
    if (part.kind === "output")
      body = [h("h3", {}, `From ${config.d_model} numbers to ${config.target_vocab_size} logits${model.output.bias ? ", each with a bias" : ""}`), strips(null, [row(view.trace.hidden, at), "the decoder’s last vector", "ink", {scale: largest(row(view.trace.hidden, at))}]),
        h("div", { class: "live-scroll" }, h("table", { class: "live-row-table" }, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "token"), h("th", { scope: "col" }, "logit"), h("th", { scope: "col" }, "probability"))),
          h("tbody", {}, view.ranked.map(({ id, probability }, i) => h("tr", { class: i === (state.key ?? 0) ? "live-on" : null },
            h("th", { scope: "row" }, button(`logit-${i}`, { "aria-pressed": String(i === (state.key ?? 0)), onclick: set({ key: i }) }, targetText(id))),
            h("td", {}, number(row(view.trace.logits, view.at)[id])), h("td", {}, h("span", { class: "live-bar", "aria-hidden": "true" }, h("i", { style: { width: `${100 * probability}%` } })), h("b", {}, percent(probability))))))))];
    const kind = part.kind === "attention" ? `${part.side}.${part.at.split(".")[1]}` : part.kind === "embedding" ? "source" : part.kind;
    fill(panes.detail,
      h("p", { class: "live-crumbs" }, crumbs.flatMap((each, i) => (i ? [h("i", { "aria-hidden": "true" }, "›"), each] : [each])),
        !small && h("label", { class: "live-flip" }, h("input", { type: "checkbox", "data-key": "numbers", checked: state.numbers, onchange: () => { state = { ...state, numbers: !state.numbers }; update(); } }), h("span", {}, "all numbers"))),
      !small && h("h2", {}, part.layer ? `${part.side === "e" ? "Encoder" : "Decoder"} layer ${part.layer}: ${part.name.toLowerCase()}` : part.name),
      sayPart(part, at), explain(kind), body);
  }

  // How probable the token in hand stays with one more head off, for each head.
  function withoutEach() {
    const wanted = view.tokens[view.at] ?? config.eos_id, found = new Map();
    for (const part of parts.filter((each) => each.kind === "attention"))
      for (let head = 1; head <= config.num_heads; head++) {
        const name = `head:${part.at}.${head}`, run = { off: new Set(state.off).add(name), edits: state.edits };
        const encoded = part.side === "e" ? encode(model, view.ids, run) : view.now.encoded;
        found.set(name, probabilityOf(decode(model, encoded, view.inputs, run), wanted));
      }
    return found;
  }

  const probabilityOf = (trace, id) => Math.exp(logSoftmax(logitsOf(trace, view.at))[id]);

  let alone = null; // what was found, and for which translation

  function tryEach() {
    alone = { key: view.key, found: withoutEach() };
    update("heads");
  }

  function drawHead(part, head, now, found) {
    const name = `head:${part.at}.${head}`, left = found?.get(name);
    const where = `${part.side === "e" ? "encoder" : "decoder"} ${part.layer}, ${part.at.endsWith("cross") ? "cross" : "self"}`;
    return h("span", {}, button(`grid-${name}`, { "aria-pressed": String(!state.off.has(name)),
      "aria-label": `Head ${head} of ${where}: on${found ? `; without it ${percent(left)}` : ""}`, onclick: () => toggle(name) }, String(head)),
      found && h("small", { class: left < now ? "heat-minus" : "heat-plus", "aria-hidden": "true", style: { "--w": number(Math.min(1, Math.abs(left - now)), 3) } }, percent(left)));
  }

  function drawBreak() {
    const attention = parts.filter((part) => part.kind === "attention");
    const found = alone?.key === view.key ? alone.found : null, token = view.tokens[view.at] ?? config.eos_id, now = probabilityOf(view.trace, token);
    fill(panes.break,
      h("h2", {}, "Break it"), sayBroken(), explain("break", [14]),
      h("div", { class: "live-switches" },
        SWITCHES.map(([name, label, note]) => flip(name, label, `off: ${note}`)),
        h("label", { class: "live-flip" }, h("input", { type: "checkbox", role: "switch", "data-key": "pads", checked: state.pads > 0, onchange: () => { state = { ...state, pads: state.pads ? 0 : 3 }; understand(); update("answer"); } }),
          h("span", {}, "Pad the source", h("small", {}, "three <pad> behind the sentence, as in a batch"))),
        flip("padding", "Padding mask", state.pads ? "off: the padding is attended to" : "off: matters where there is padding")),
      h("h3", {}, `Heads (${heads})`),
      h("p", { class: "live-try" }, button("alone", { onclick: tryEach }, "Try each head alone"),
        h("span", { class: "live-note" }, found ? [`Below each head: the probability of ${quoted(targetText(token))} with that head off. As it is now: ${percent(now)}.`]
          : `Switches off one after the other, and shows how probable ${quoted(targetText(token))} stays.`)),
      h("div", { class: "live-head-grid" }, attention.map((part) => h("fieldset", {}, h("legend", {}, `${part.side === "e" ? "Encoder" : "Decoder"} ${part.layer}, ${part.at.endsWith("cross") ? "cross" : "self"}`),
        Array.from({ length: config.num_heads }, (_, i) => drawHead(part, i + 1, now, found))))));
  }

  function drawTabs() {
    tabs.replaceChildren(...Object.entries(TABS).map(([name, label]) => button(`tab-${name}`, { "aria-pressed": String(state.tab === name), onclick: () => look({ tab: name }, null) }, label)));
    for (const [name, pane] of Object.entries(panes)) pane.classList.toggle("live-chosen", name === state.tab);
  }

  const { sayPair, sayNext, sayMap, sayPart, sayBroken, wasIs } = makeSayings({
    get state() { return state; }, get view() { return view; }, get smoothed() { return tour !== null; },
    config, parts, heads, target, sourceText, targetText, recordOf, rowNames, keyOf, probe, probabilityOf, shows,
  });

  // What a card of the tour asks about, and how it gets there

  const most = (at, head, i) => {
    const part = byPlace.get(at), { inner } = recordOf(part), weights = row(inner.weights[head - 1], i), best = argmax(weights);
    return [rowNames(part, inner).keys[best], weights[best]];
  };

  const seen = () => view && {
    state, at: view.at, most, sources: shown.tokens.map((token) => token.text), words: view.tokens.map(targetText),
    english: target.decode(view.tokens), was: target.decode(view.wholeTokens),
    changed: view.tokens.filter((id, i) => id !== (view.wholeTokens[i] ?? config.eos_id)).length,
    chance: percent(probabilityOf(view.trace, view.tokens[view.at])),
    chanceOf: (word) => probabilityOf(view.trace, target.ids.get(word)),
    chanceWas: (word) => Math.exp(view.wholeLogged[target.ids.get(word)]),
    saidAfter: (at) => { const part = byPlace.get(at); return part.side === "d" && part.layer ? targetText(probe(row(recordOf(part).x, view.at)).id) : null; },
    firstToSay: (word) => parts.find((part) => part.side === "d" && part.layer && targetText(probe(row(recordOf(part).x, view.at)).id) === word)?.at,
  };

  // The tour is about the phrasebook: another model has other words, or other parts.
  function canTour() {
    if (small || !source.words || !target.words || !["e2.self", "d2.cross"].every((at) => byPlace.has(at)) || config.num_heads < 3) return false;
    if (CARDS.some(({ state }) => source.tokens(new URLSearchParams(state).get("s")).some(({ id }) => id === null))) return false;
    const ids = source.tokens("Jane vend sa voiture").map(({ id }) => id);
    return target.decode(greedySearch(model, encode(model, ids), room(model, ids.length)).tokens) === "Jane sells her car";
  }

  // The part that a card points at comes into view: into its tab, where there is one pane at a time.
  function go(address) {
    state = fromHash(`#${address.replace(/p=([a-z]+)/, (_, word) => `p=${target.ids.get(word)}`)}`);
    input.value = state.sentence;
    understand();
    update("answer");
    const { pointed } = tour, narrow = tabs.getClientRects().length > 0;
    const tab = Object.keys(panes).find((name) => panes[name].contains(pointed));
    if (pointed) state = { ...state, tab: tab ?? "answer" };
    drawTabs();
    if (!narrow && ["map", "detail"].includes(tab)) reveal(panes.map);
    if (pointed) tour.bring();
    else if (narrow) reveal(panes[state.tab], false);
  }

  const chapterLink = (chapter) => (data.links === null || data.links === undefined ? h("span", { class: "live-note" }, `More: chapter ${chapter}.`)
    : h("a", { href: `${data.links}${PAGES[chapter]}.html` }, `More in chapter ${chapter}`));
  const tour = canTour() ? makeTour({ root, seen, go, link: chapterLink, changed: () => update("step"), finished }) : null;

  // The tour ends where a sentence is typed.
  function finished() {
    hint.textContent = said.textContent = "That was the tour. Now type a sentence of your own.";
    form.scrollIntoView({ block: "center", behavior: "instant" });
    input.focus({ preventScroll: true });
    input.select();
  }

  // An address may name a card, alone or with a state.
  function startTour(hash) {
    const asked = new URLSearchParams(hash.slice(1)), card = Number(asked.get("tour")) - 1;
    if (!tour || !CARDS[card]) return false;
    tour.show(card, asked.has("s") ? hash.slice(1) : undefined);
    return true;
  }

  // From what was typed to what is shown

  const asked = owner(root) && new URLSearchParams(location.search).get("s"); // by the form on the front page
  let state = small ? fromHash(`#${root.dataset.state}`) : owner(root) && location.hash.includes("s=") ? fromHash(location.hash) : atFirst();
  if (asked && !location.hash.includes("=")) state.sentence = asked.slice(0, 2000);
  let understood = {}, shown = null, view = null;

  function understand() {
    understood = { ...read(state.sentence), sentence: state.sentence };
    if (!understood.problem && !understood.unknown) shown = understood;
    else if (!shown && !read(data.examples[0] ?? "").problem) shown = { ...read(data.examples[0]), sentence: data.examples[0] };
  }

  function announce(what) {
    if (!view) return;
    const words = target.decode(view.tokens), next = targetText(view.tokens[view.at] ?? config.eos_id);
    if (understood !== shown) said.textContent = understood.problem ?? "A word is not in the vocabulary.";
    else if (what === "answer") said.textContent = `Translation: ${words}${changes() ? ` Whole model: ${target.decode(view.wholeTokens)}` : ""}`;
    else if (what === "heads") said.textContent = `Each of the ${heads} heads was switched off, one at a time.`;
    else if (what === "step") said.textContent = `Step ${view.at + 1}: ${next}.`;
    else if (what === "part") said.textContent = panes.detail.querySelector(".live-crumbs")?.innerText.replace(/\s*›\s*/g, ", ").replace(/\s+all numbers\s*$/, "") ?? "";
  }

  // The control in use keeps its place in the window, whatever is drawn above it.
  let used = null;
  for (const kind of ["click", "input", "change", "keydown"])
    root.addEventListener(kind, (event) => { used = event.target.closest("[data-key]"); }, true);
  const find = (key) => [...root.querySelectorAll("[data-key]")].find((element) => element.dataset.key === key);
  const placeOf = (element) => (element?.getClientRects().length ? element.getBoundingClientRect().top : null);

  function keepPlace(key, place) {
    const control = place === null ? null : find(key), now = placeOf(control);
    const apart = panes.detail.contains(control) && getComputedStyle(panes.detail).position === "sticky"; // it scrolls by itself
    if (now !== null && now !== place) (apart ? panes.detail : window).scrollBy({ top: now - place, behavior: "instant" });
  }

  // What stays at the top of the window while its reader scrolls.
  const bar = () => (getComputedStyle(answer).display === "contents" ? spoken : answer);

  function reveal(pane, always = true) {
    const { position, top } = getComputedStyle(bar()), narrow = tabs.getClientRects().length > 0;
    const covered = position === "sticky" ? parseFloat(top) + bar().offsetHeight + (narrow ? tabs.offsetHeight : 0) : 0;
    const over = pane.getBoundingClientRect().top - covered - 12;
    if (always || over < 0) scrollBy({ top: over, behavior: "instant" });
  }

  // Where there is one pane at a time, its beginning comes into view.
  function look(change, what = "part") {
    state = { ...state, ...change };
    update(what);
    if (tabs.getClientRects().length) reveal(panes[state.tab], what !== null);
  }

  function update(what) {
    const usedKey = root.contains(used) ? used.dataset.key : null, place = usedKey ? placeOf(used) : null;
    const key = root.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    const scrolled = chips.scrollLeft;
    drawChips();
    chips.scrollLeft = scrolled;
    answer.hidden = box.hidden = !shown;
    tabs.hidden = small || !shown;
    if (shown) {
      view = compute();
      drawAnswer();
      if (!panes.answer.hidden) panes.answer.replaceChildren(h("div", { class: "live-attended" }, drawPair()), h("div", { class: "live-nexts" }, drawNext()));
      if (!panes.map.hidden) drawMap();
      if (!panes.detail.hidden) drawDetail();
      if (!panes.number.hidden) fill(worked, drawNumber());
      if (!panes.break.hidden) drawBreak();
      if (!small) drawTabs();
    }
    const focused = key && find(key);
    if (focused && focused !== document.activeElement) focused.focus({ preventScroll: true });
    keepPlace(usedKey, place);
    used = null;
    announce(what);
    tour?.update();
    if (what && owner(root)) {
      try { history.replaceState(null, "", toHash()); } catch { /* a page that is no file has no address */ }
    }
    root.dataset.updates = 1 + Number(root.dataset.updates ?? 0);
  }

  answer.addEventListener("keydown", (event) => {
    if (!event.target.dataset.key?.startsWith("step-")) return;
    const from = Number(event.target.dataset.key.slice("step-".length));
    const to = { ArrowLeft: from - 1, ArrowRight: from + 1, Home: 0, End: view.tokens.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    goTo(to);
    root.querySelector(`[data-key="step-${view.at}"]`)?.focus({ preventScroll: true });
  });

  // To a state from an address: what it is about comes into view.
  function follow(hash) {
    if (startTour(hash)) return;
    tour?.close();
    state = fromHash(hash);
    input.value = state.sentence;
    understand();
    update();
    revealTab();
  }

  function revealTab() {
    if (state.tab === "answer") root.scrollIntoView({ behavior: "instant" });
    else reveal(panes[state.tab]);
  }

  addEventListener("hashchange", () => {
    if (owner(root) && location.hash.includes("=")) follow(location.hash);
  });
  // The same address once more is no change of the address.
  addEventListener("click", (event) => {
    const link = event.target.closest?.('a[href^="#s="]');
    if (link && !event.defaultPrevented && link.hash === location.hash && owner(root)) follow(link.hash);
  });
  new ResizeObserver(drawWires).observe(stage);
  atDusk(() => update());
  const measure = new ResizeObserver(() => root.style.setProperty("--live-bar", `${bar().offsetHeight}px`));
  for (const each of [answer, spoken]) measure.observe(each);

  input.id = `live-input-${document.querySelectorAll(".live-input").length}`;
  input.value = state.sentence;
  input.dataset.key = "input";
  drawForm();
  understand();
  const size = `${data.parameters.toLocaleString("en")} parameters, ${heads} heads, all in this page`;
  const lead = h("p", { class: "live-lead" }, data.languages[0] === data.languages[1] ? "" : `${from} to ${into}. `, size, "; nothing is sent anywhere.");
  const invitation = tour && h("p", { class: "live-invite" }, button("tour", { onclick: () => tour.show(0) }, "Take the tour"), ` ${CARDS.length} cards: guess, try it, see what happens.`);
  root.replaceChildren(h("div", { class: "live-body" }, h("div", { class: "live-main" }, !small && lead, invitation, form, notes, small && chips, answer, tabs, box, made, said), tour?.panel));
  update();
  if (owner(root) && !startTour(location.hash) && new URLSearchParams(location.hash.slice(1)).has("tab")) revealTab();
}

// The first whole model of a page keeps its state in the address.
const owner = (root) => document.querySelector("[data-live]:not([data-state])") === root;

function start(name, data, style) {
  if (!document.getElementById("live-style")) document.head.append(h("style", { id: "live-style" }, style));
  for (const root of document.querySelectorAll(`[data-live="${name}"]:not([data-ready])`)) {
    root.dataset.ready = "";
    root.classList.add("live-ready");
    mount(root, data);
  }
}
