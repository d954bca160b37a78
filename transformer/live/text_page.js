// The view of a language model: a text and how it goes on, where each token looked, and
// what may come next. What a reader types reaches the page in text nodes alone.

const NAMES = { LanguageModel: "language model", GPT2: "GPT-2", Llama: "Llama" };
const LIKELY = 10; // next tokens that are shown
const AT_ONCE = 20; // tokens that one press writes

function mountText(root, data) {
  const model = loadTextModel(data), tokenizer = makeTextTokenizer(data.tokenizer), { config } = model;
  const layers = model.encoder.layers.length, heads = config.num_heads;
  const token = (id) => h("i", {}, tokenizer.show(id));

  // `read` is what the model has computed: its cache, and for each token the weights of
  // all heads and the logits of the next. It is kept as far as a new text begins alike.
  let read = { past: nothingRead(model), weights: [], logits: [] };
  let state = { typed: 0, ids: [], at: 0, head: null, drawn: false, temperature: 0.8, seed: 1, writing: false };

  function understand(ids) {
    let same = 0;
    while (same < ids.length && same < read.past.ids.length && ids[same] === read.past.ids[same]) same++;
    read = { past: forget(read.past, same), weights: read.weights.slice(0, same), logits: read.logits.slice(0, same) };
    if (same < ids.length) {
      const out = extend(model, read.past, ids.slice(same));
      read.past = out.past;
      for (let i = 0; i < ids.length - same; i++) {
        read.weights.push(out.layers.map(([{ inner }]) => inner.weights.map((each) => row(each, i).slice(0, same + i + 1))));
        read.logits.push(row(out.logits, i).slice());
      }
    }
    state = { ...state, ids };
  }

  // The weights of a token over itself and those before it: of a head, or the mean of all.
  function lookedAt(at) {
    const all = read.weights[at];
    if (state.head) return all[state.head[0]][state.head[1]];
    const mean = new Float32Array(at + 1);
    for (const layer of all) for (const each of layer) each.forEach((weight, j) => { mean[j] += weight / (layers * heads); });
    return mean;
  }

  // An induction head looks, from a token that came before, at what followed it then:
  // the mean weight that each head gives there.
  function induction() {
    const places = [];
    state.ids.forEach((id, i) => {
      const before = state.ids.lastIndexOf(id, i - 1);
      if (i > 0 && before >= 0 && before + 1 < i) places.push([i, before + 1]);
    });
    if (places.length < 3) return null;
    let best = { mean: 0 };
    for (let l = 0; l < layers; l++)
      for (let k = 0; k < heads; k++) {
        const mean = places.reduce((sum, [i, j]) => sum + read.weights[i][l][k][j], 0) / places.length;
        if (mean > best.mean) best = { mean, head: [l, k], places: places.length };
      }
    return best;
  }

  const said = h("p", { class: "live-hidden", role: "status" }), problem = h("p", { class: "text-problem", role: "alert", hidden: true });
  const input = h("textarea", { id: "text-input", rows: 3, spellcheck: "false", autocapitalize: "off", oninput: () => type() });
  const complain = (text) => { problem.hidden = !text; problem.textContent = text; };

  function type(text = input.value) {
    stop();
    let ids;
    try { ids = tokenizer.encode(text.slice(0, 5000)); } catch (error) { complain(`${error.message[0].toUpperCase()}${error.message.slice(1)}.`); return; }
    if (!ids.length) { complain("Type how the text begins."); return; }
    if (ids.length >= data.longest) { complain(`These are ${ids.length} tokens; the page reads fewer than ${data.longest}, and leaves room for one more.`); return; }
    complain("");
    understand(ids);
    state = { ...state, typed: ids.length, at: ids.length - 1 };
    draw();
  }

  const ended = () => state.ids.length > state.typed && state.ids.at(-1) === config.eos_id;
  const full = () => state.ids.length >= data.longest;

  function choose(logits) {
    if (!state.drawn) return likeliest(logits, 1)[0].id;
    const random = randomNumbers(state.seed * 4096 + state.ids.length);
    let left = random();
    const logged = logSoftmax(logits.map((value) => value / state.temperature));
    for (let id = 0; id < logged.length; id++) if ((left -= Math.exp(logged[id])) < 0) return id;
    return likeliest(logits, 1)[0].id;
  }

  function add(id, at = state.ids.length - 1) {
    understand([...state.ids.slice(0, at + 1), id]);
    state = { ...state, typed: Math.min(state.typed, at + 1), at: at + 1 };
  }

  let timer = 0;
  function stop() { clearTimeout(timer); state = { ...state, writing: false }; }
  function write(count) {
    stop();
    if (!state.ids.length || full() || ended()) return;
    state = { ...state, writing: count > 1 };
    const one = () => {
      add(choose(read.logits.at(-1)));
      count--;
      if (count > 0 && !full() && !ended()) timer = setTimeout(one, 0);
      else { stop(); said.textContent = tokenizer.decode(state.ids); }
      draw();
    };
    one();
  }

  // Drawing

  const button = (name, action, attributes = {}) => h("button", { type: "button", onclick: action, ...attributes }, name);
  const controls = h("div", { class: "text-controls" });
  const whole = h("p", { class: "text-whole" });
  const tokens = h("div", { class: "text-tokens", role: "group", "aria-label": "The text: choose a token" });
  const looks = h("p", { class: "text-says" }), next = h("ol", { class: "text-next" }), nextTitle = h("h2", {});
  const grid = h("div", { class: "text-heads", role: "group", "aria-label": "Attention heads" }), about = h("p", { class: "text-note" });

  function drawControls() {
    const temperature = h("input", { type: "range", min: 0.1, max: 2, step: 0.1, value: state.temperature, id: "text-temperature",
      oninput: (event) => { state = { ...state, temperature: Number(event.target.value) }; event.target.nextSibling.textContent = event.target.value; } });
    const mode = (name, drawn) => button(name, () => { state = { ...state, drawn }; draw(); }, { "aria-pressed": String(state.drawn === drawn), "data-key": drawn ? "drawn" : "likeliest" });
    const why = ended() ? "The model has ended its text." : full() ? `The page reads at most ${data.longest} tokens.` : null;
    const focused = document.activeElement?.dataset?.key;
    controls.replaceChildren(...[
      state.writing ? button("Stop", () => { stop(); draw(); }, { class: "text-go", "data-key": "write" })
        : button(`Write ${AT_ONCE} tokens`, () => write(AT_ONCE), { class: "text-go", "data-key": "write", "aria-disabled": why ? "true" : null }),
      button("Write one", () => write(1), { "data-key": "one", "aria-disabled": why ? "true" : null }),
      state.ids.length > state.typed && button("Take back", () => { stop(); understand(state.ids.slice(0, state.typed)); state = { ...state, at: state.typed - 1 }; draw(); }, { "data-key": "back" }),
      h("span", { class: "text-modes", role: "group", "aria-label": "How the next token is chosen" }, "Next token: ", mode("the likeliest", false), mode("drawn", true)),
      state.drawn && h("label", { class: "text-temperature" }, "temperature ", temperature, h("b", {}, String(state.temperature))),
      state.drawn && button("another draw", () => { state = { ...state, seed: state.seed + 1 }; understand(state.ids.slice(0, state.typed)); state = { ...state, at: state.typed - 1 }; write(AT_ONCE); }, { "data-key": "seed" }),
      why && h("span", {}, why),
    ].filter(Boolean));
    if (focused) controls.querySelector(`[data-key="${focused}"]`)?.focus();
  }

  function drawWhole() {
    const [typed, all] = [state.typed, state.ids.length].map((count) => tokenizer.decode(state.ids.slice(0, count)));
    whole.replaceChildren(...(all.startsWith(typed) ? [typed, h("strong", {}, all.slice(typed.length))] : [all]));
  }

  function drawTokens() {
    const weights = lookedAt(state.at), had = tokens.contains(document.activeElement);
    tokens.replaceChildren(...state.ids.map((id, i) => {
      const weight = i <= state.at ? weights[i] : 0;
      return button(tokenizer.show(id), () => { state = { ...state, at: i }; draw(); }, {
        "aria-pressed": String(i === state.at), tabindex: i === state.at ? 0 : -1, style: { "--w": weight.toFixed(3) },
        class: `${i >= state.typed ? "text-written" : ""}${i > state.at ? " text-later" : ""}`,
        title: i <= state.at ? `${percent(weight)} of the attention` : null,
      });
    }));
    if (had) tokens.children[state.at]?.focus();
    const best = Array.from(weights, (weight, j) => [weight, j]).sort(([a], [b]) => b - a).slice(0, 3).filter(([weight]) => weight >= 0.005);
    const who = state.head ? `Head ${state.head[1] + 1} of layer ${state.head[0] + 1}` : "All heads together";
    looks.replaceChildren(`${who}: `, token(state.ids[state.at]), " looked at ", ...best.flatMap(([weight, j], k) => [
      k === 0 ? "" : k === best.length - 1 ? " and " : ", ", j === state.at ? "itself" : token(state.ids[j]), ` (${percent(weight)})`]), ".");
  }
  tokens.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
    if (!step) return;
    event.preventDefault();
    state = { ...state, at: Math.max(0, Math.min(state.ids.length - 1, state.at + step)) };
    draw();
  });

  function drawNext() {
    const logits = read.logits[state.at], ranked = likeliest(logits, LIKELY);
    nextTitle.replaceChildren("After ", token(state.ids[state.at]), ", the next token");
    next.replaceChildren(...ranked.map(({ id, probability }) => h("li", { class: id === state.ids[state.at + 1] ? "text-came" : "" },
      button(tokenizer.show(id), () => { stop(); add(id, state.at); draw(); }, { title: "Write this one here, in place of what follows" }),
      h("span", { class: "text-bar" }, h("span", { style: { width: `${(100 * probability).toFixed(1)}%` } })), h("b", {}, percent(probability)))));
  }

  const canvases = Array.from({ length: layers }, (_, l) => Array.from({ length: heads }, (_, k) => {
    const canvas = h("canvas", { "aria-hidden": "true" });
    const one = button("", () => { state = { ...state, head: state.head?.[0] === l && state.head[1] === k ? null : [l, k] }; draw(); },
      { "aria-label": `Layer ${l + 1}, head ${k + 1}` });
    one.append(canvas);
    return { canvas, one };
  }));
  grid.style.setProperty("--heads", heads);
  canvases.forEach((line, l) => grid.append(h("span", {}, String(l + 1)), ...line.map(({ one }) => one)));

  function drawHeads() {
    const n = state.ids.length;
    canvases.forEach((line, l) => line.forEach(({ canvas, one }, k) => {
      one.setAttribute("aria-pressed", String(state.head?.[0] === l && state.head[1] === k));
      canvas.width = canvas.height = n;
      const image = new ImageData(n, n);
      for (let i = 0; i < n; i++)
        read.weights[i][l][k].forEach((weight, j) => image.data.set([0, 0, 0, Math.round(255 * fullness(weight))], 4 * (i * n + j)));
      const pen = canvas.getContext("2d");
      pen.putImageData(image, 0, 0);
      pen.globalCompositeOperation = "source-in";
      pen.fillStyle = hue("--heat-weight");
      pen.fillRect(0, 0, n, n);
    }));
    const found = induction();
    about.replaceChildren("Each square is a head, from layer 1 above to the last: a row for each token, shaded where it looked. Choose one, and the text shows where it looked.",
      ...(found && found.mean > 0.3 ? [" ", button(`Head ${found.head[1] + 1} of layer ${found.head[0] + 1}`, () => { state = { ...state, head: found.head }; draw(); }, { class: "text-link" }),
        ` works like an induction head here: from a token that the text had before, it looks at what came after it then (${percent(found.mean)} of its attention, over ${found.places} tokens).`] : []));
  }

  function draw() {
    drawControls();
    drawWhole();
    drawTokens();
    drawNext();
    if (!state.writing) drawHeads();
    root.dataset.updates = Number(root.dataset.updates ?? 0) + 1;
  }

  const prompts = data.prompts.map((prompt) => button(prompt, () => { input.value = prompt; type(); }));
  const units = { ids: "numbers", bytes: "bytes", subwords: "subwords", llama2c: "subwords", bytelevel: "subwords" }[data.tokenizer.kind];
  root.replaceChildren(
    h("p", { class: "text-note" }, `A ${NAMES[data.kind]} with ${data.parameters.toLocaleString("en")} learned numbers runs in this page. It reads ${units}, here at most ${data.longest} of them. Nothing is sent anywhere.`),
    h("label", { for: "text-input" }, "How the text begins"), input, problem,
    h("p", { class: "text-prompts" }, "Or ", ...prompts.flatMap((each, i) => (i ? [" ", each] : [each]))),
    controls, whole, h("h2", {}, "Its tokens"), tokens, looks,
    h("div", { class: "text-two" }, h("section", {}, nextTitle, next), h("section", {}, h("h2", {}, "Where each head looked"), grid, about)), said,
  );
  atDusk(draw);
  input.value = data.prompts[0] ?? "";
  type();
  if (data.tokenizer.kind !== "ids" && state.ids.length) write(Math.min(AT_ONCE, 12));
}

function startText(name, data, style) {
  if (!document.getElementById("live-style")) document.head.append(h("style", { id: "live-style" }, style));
  for (const root of document.querySelectorAll(`[data-live="${name}"]:not([data-ready])`)) {
    root.dataset.ready = "";
    mountText(root, data);
  }
}
