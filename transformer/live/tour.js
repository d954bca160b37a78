// The tour: cards beside the model. Each sets a state, points at a part, asks for a guess,
// and says what happened when its reader has done what it asks.

const SELLS = "s=Jane+vend+sa+voiture";
const THREE_HEADS = [1, 2, 3].map((head) => `head:e2.self.${head}`);

// `see` is what the page shows now (`seen` in page.js). `state` and `after` are addresses:
// where a card begins, and what does its task. Words between stars are set as words.
const CARDS = [
  {
    title: "One word changes another",
    state: `${SELLS}&t=2`,
    text: "This small Transformer has learned to translate French into English, and it runs in this page. It has just translated *Jane vend sa voiture*. French *sa* can mean *his* or *her*: its form goes with the car, not with the owner.",
    ask: "If Paul sells the car, which English word will change besides the name?",
    options: ["sells", "her", "car", "none"],
    right: () => "her",
    task: "Now make Paul the seller: open the menu of *Jane* and choose *Paul*.",
    points: ".live-token:first-child",
    after: "s=Paul+vend+sa+voiture&t=2",
    done: (see) => see.sources[0] === "Paul",
    reveal: (see) => `It writes “${see.english}”. You changed the first word, and the third one followed. How did *${see.words[2]}* find out who is selling? That is what this tour is about.`,
    chapter: 1,
  },
  {
    title: "One word at a time",
    state: `${SELLS}&t=0&at=output`,
    text: "The model writes a single word at each step. It reads the whole French sentence and the English words that are already there, and gives every word it knows a probability of being the next.",
    ask: "How will it know when to stop?",
    options: ["it counts the French words", "it writes a word that means “the end”", "it waits for a full stop"],
    right: () => "it writes a word that means “the end”",
    task: "Step to the end with *›*, and look at what it writes last.",
    points: ".live-steps",
    after: `${SELLS}&t=4&at=output`,
    done: (see) => see.at > 0 && see.words[see.at] === "<eos>",
    reveal: (see) => `The last token is *<eos>*, the end of the sentence, with a probability of ${see.chance}. To the model it is an entry in its list of words like any other.`,
    chapter: 13,
  },
  {
    title: "Words become numbers",
    state: "s=Le+chat+noir+regarde+un+chien+blanc&t=2&at=source",
    text: "Each French word picks its row from a learned table. The row holds the same numbers wherever the word stands, so a second pattern is added to it that depends on the position alone.",
    ask: "Without these positions the model cannot see the order of the words. What will become of “the black cat looks at a white dog”?",
    options: ["it stays as it is", "the words get mixed up", "no word is recognised"],
    right: (see) => (see.english === see.was ? "it stays as it is" : "the words get mixed up"),
    task: "Switch the positions off.",
    points: '[data-key="here-positions"]',
    after: "s=Le+chat+noir+regarde+un+chien+blanc&t=2&at=source&off=positions&tab=detail",
    done: (see) => see.state.off.has("positions"),
    reveal: (see) => `It was “${see.was}”. It is now “${see.english}”. The model still finds words of the sentence, but not which of them belong together.`,
    chapter: 6,
  },
  {
    title: "Words look at each other",
    state: `${SELLS}&t=2&at=source&w=2`,
    text: "In self-attention every French word collects something from all words of the sentence. Its weights say how much it takes from each, and they add up to 100%. Several heads do this side by side.",
    ask: "We follow *sa*. Which word will it look at most, to become *his* or *her*?",
    options: ["Jane", "vend", "sa", "voiture"],
    right: (see) => see.most("e2.self", 2, 2)[0],
    task: "Open the outlined block: self-attention in the encoder’s second layer.",
    points: '[data-key="at-e2.self"]',
    after: `${SELLS}&t=2&at=e2.self&w=2&h=2&tab=detail`,
    done: (see) => see.state.at === "e2.self" && see.state.word === 2,
    reveal: (see) => `The word that *sa* looks at most, in heads 1 to 4: ${[1, 2, 3, 4].map((head) => see.most("e2.self", head, 2)).map(([word, weight]) => `*${word}* (${percent(weight)})`).join(", ")}. So something of the seller is now in the numbers of *sa*.`,
    chapter: 4,
  },
  {
    title: "One number, by hand",
    state: `${SELLS}&t=2&at=e2.self&w=2&h=2&tab=number`,
    text: "Where does a weight come from? *sa* asks with a vector called its query; every word answers with a key. Query and key are multiplied number by number, and the products are added up: the larger the sum, the larger the weight.",
    ask: "Suppose *sa* must not look at *Jane* in this one head. What will become of *her*?",
    options: ["just as likely", "less likely, still first", "no longer first"],
    right: (see) => (see.words[2] !== "her" ? "no longer first" : see.chanceOf("her") < see.chanceWas("her") - 0.05 ? "less likely, still first" : "just as likely"),
    task: "Drag the weight of *Jane* down to 0.",
    points: '[data-key="edit"]',
    after: `${SELLS}&t=2&at=e2.self&w=2&h=2&tab=number&set=e2.self.2.2.0:0`,
    done: (see) => see.state.edits.get("e2.self.2.2.0") <= 0.02,
    reveal: (see) => `*her* had a probability of ${percent(see.chanceWas("her"))} and now has ${percent(see.chanceOf("her"))}; *his* has ${percent(see.chanceOf("his"))}. You changed one weight of one head. Two other heads still look at *Jane*.`,
    chapter: 3,
  },
  {
    title: "Break it",
    state: `${SELLS}&t=2&at=e2.self&w=2&h=1`,
    text: "Three heads of this layer look from *sa* to *Jane*. A head that is switched off passes on nothing but zeros.",
    ask: "With all three off, what will the model write for *sa*?",
    options: ["her", "his", "the"],
    right: (see) => see.words[2],
    task: "Switch off heads 1, 2 and 3.",
    points: ".live-heads li:nth-child(-n + 3) .live-flip",
    after: `${SELLS}&t=2&at=e2.self&w=2&h=1&off=${THREE_HEADS}&tab=detail`,
    done: (see) => THREE_HEADS.every((head) => see.state.off.has(head)),
    reveal: (see) => `It was “${see.was}”. It is now “${see.english}”, and *${see.words[2]}* has ${see.chance}. Without these three heads it calls Jane’s car *his*.`,
    chapter: 14,
  },
  {
    title: "Each word by itself",
    state: `${SELLS}&t=2&at=e1.ff&w=2`,
    text: "After each attention comes a small network that looks at one word at a time. It widens the vector, sets all negative numbers to 0, and narrows it again. What it finds is added to the vector that came in.",
    ask: "It never looks at another word. What happens when it is switched off in all layers?",
    options: ["nothing changes", "a word or two change", "it breaks down"],
    right: (see) => (see.changed === 0 ? "nothing changes" : see.changed <= 2 ? "a word or two change" : "it breaks down"),
    task: "Under *Break it*, switch off *Feed-forward*.",
    points: '[data-key="off-feed_forward"]',
    after: `${SELLS}&t=2&at=e1.ff&w=2&off=feed_forward&tab=break`,
    done: (see) => see.state.off.has("feed_forward"),
    reveal: (see) => `It is now “${see.english.slice(0, 60)}${see.english.length > 60 ? " …" : ""}”. The other parts were trained together with this one and never learned to go without it.`,
    chapter: 7,
  },
  {
    title: "Only backwards",
    state: `${SELLS}&t=3&at=d1.self&h=2`,
    text: "The decoder writes the English. Its self-attention looks at the English words so far, and each of them looks only at itself and at earlier ones: the rest is masked.",
    ask: "We take the mask away. What will become of the translation?",
    options: ["it breaks down", "it stays as it is", "other words come out"],
    right: (see) => (see.changed === 0 ? "it stays as it is" : see.changed > 3 ? "it breaks down" : "other words come out"),
    task: "Switch the causal mask off.",
    points: '[data-key="here-causal"]',
    after: `${SELLS}&t=3&at=d1.self&h=2&off=causal&tab=detail`,
    done: (see) => see.state.off.has("causal"),
    reveal: (see) => `${see.english === see.was ? "It stays" : "It is now"} “${see.english}”; *${see.words[3]}* had ${percent(see.chanceWas(see.words[3]))} and now has ${see.chance}. The newest word has nothing after it to look at, mask or no mask; only the earlier words can now look ahead. In training the whole translation lies open, and a word that could look ahead would only learn to copy it.`,
    chapter: 8,
  },
  {
    title: "Over the wire",
    state: `${SELLS}&t=2&at=d2.self&w=2`,
    text: "The encoder has finished before the first English word. Its vectors, one for each French word, go over the wire to both layers of the decoder, which look at them in cross-attention.",
    ask: "At the step that writes *her*, which French word will the decoder look at?",
    options: ["Jane", "vend", "sa", "voiture"],
    right: (see) => see.most("d2.cross", 1, see.at)[0],
    task: "Open cross-attention in the decoder’s second layer.",
    points: '[data-key="at-d2.cross"]',
    after: `${SELLS}&t=2&at=d2.cross&w=2&tab=detail`,
    done: (see) => see.state.at === "d2.cross" && see.at === 2,
    reveal: (see) => { const [word, weight] = see.most("d2.cross", 1, see.at); return `Head 1 looks at *${word}* (${percent(weight)})${word === "sa" ? ", and not at *Jane*. It need not: in the encoder, *sa* has already looked at *Jane* (cards 4 and 6). So the news of the seller comes in two hops" : ""}.`; },
    chapter: 9,
  },
  {
    title: "If it had to answer here",
    state: `${SELLS}&t=2&at=target`,
    text: "A part does not replace the vector of a word, it adds to it. Beside each arrow of the decoder stands the word that the model would say if it had to answer at that place.",
    ask: "At first the decoder would say *his*. Which part will turn it into *her*?",
    options: ["feed-forward, layer 1", "cross-attention, layer 2", "feed-forward, layer 2"],
    right: (see) => ({ "d1.ff": "feed-forward, layer 1", "d2.cross": "cross-attention, layer 2", "d2.ff": "feed-forward, layer 2" })[see.firstToSay(see.words[2])],
    task: "Read the decoder from the bottom to the top, and open the first part after which it would say *her*.",
    points: ".live-tower:nth-child(2)",
    after: `${SELLS}&t=2&at=d2.cross&tab=detail`,
    done: (see) => see.state.at === see.firstToSay(see.words[2]),
    notYet: (see) => (see.state.at === "target" ? null : see.saidAfter(see.state.at) ? `Not yet: after this part it would say *${see.saidAfter(see.state.at)}*${see.saidAfter(see.state.at) === see.words[2] ? ", but another part said so first" : ""}.` : "Not yet: it is one of the parts in the decoder’s two layers."),
    reveal: (see) => `From here on it would say *${see.words[2]}*. This is the part that you opened in the card before. Take such words as hints: nobody trained the output to read the vectors inside.`,
    chapter: 14,
  },
  {
    title: "It reads the French",
    state: `${SELLS}&t=0&at=output`,
    text: "The model takes the likeliest word. It is never quite sure of it, because in training a tenth of every answer was kept back for all other words (label smoothing). You may choose another word, and it goes on from there.",
    ask: "Make it begin with *we* instead of *Jane*. What will become of *her car*?",
    options: ["our car", "her car", "his car"],
    right: (see) => `${see.words.at(-3)} car`,
    task: "Choose *we*, or any other word, in the list of the next token.",
    points: ".live-next",
    after: `${SELLS}&t=0&at=output&p=we`,
    done: (see) => see.state.prefix.length > 0,
    reveal: (see) => `It writes “${see.english}”. It says *${see.words.at(-3)}* because of the French it reads, whatever it has been made to say in English.`,
    chapter: 13,
  },
  {
    title: "Looking further ahead",
    state: "s=Le+grand+chien+noir+aime+le+petit+chat+blanc&t=2",
    text: "*Le grand chien noir aime le petit chat blanc*: the big black dog likes the small white cat. Word by word, the model gets it wrong. A beam search keeps the four best beginnings and decides at the end.",
    ask: "Will the beam get it right?",
    options: ["yes, all of it", "better, but not right", "no better"],
    right: (see) => (see.english === "The big black dog likes the small white cat" ? "yes, all of it" : see.english.includes("white cat") ? "better, but not right" : "no better"),
    task: "Choose *beam 4*.",
    points: '[data-key="mode-beam"]',
    after: "s=Le+grand+chien+noir+aime+le+petit+chat+blanc&m=beam&t=2",
    done: (see) => see.state.mode === "beam",
    reveal: (see) => `It is now “${see.english}”. Even the best of four is not what a person would write: this is a small model. That was the tour. Now write a sentence of your own, and see where it breaks.`,
    chapter: 13,
  },
];

// A text in which the words between stars are set apart.
const marked = (text) => text.split("*").map((part, i) => (i % 2 ? h("i", {}, part) : part));

// Of the page a tour needs its element, what is `seen` there, how to `go` to an address, and what to do when it is `finished`.
function makeTour({ root, seen, go, link, changed, finished }) {
  const panel = h("section", { class: "live-tour", "aria-label": "Tour", onkeydown: (event) => { if (event.key === "Escape") close(); } });
  const ticked = new Set();
  let card = null, guess = null, told = null, hint = null;

  const control = (key, attributes, ...children) => h("button", { type: "button", "data-key": key, ...attributes }, ...children);

  function show(number, from = CARDS[number].state) {
    if (card === null) makeRoom(true);
    card = number;
    guess = told = hint = null;
    draw();
    go(from);
    panel.querySelector("h2").focus({ preventScroll: true });
  }

  // In the book the list of chapters makes room.
  const chapters = document.querySelector(".bd-sidebar-primary:not(.pst-sidebar-hidden)");
  const makeRoom = (open) => chapters?.classList.toggle("pst-sidebar-hidden", open);

  function close() {
    if (card === null) return;
    card = null;
    makeRoom(false);
    draw();
    changed();
    root.querySelector('[data-key="tour"]').focus({ preventScroll: true });
  }

  function draw() {
    panel.hidden = card === null;
    if (panel.hidden) { panel.replaceChildren(); return; }
    const { title, text, ask, options, task, after, chapter } = CARDS[card], last = card === CARDS.length - 1;
    const option = (each, i) => control(`guess-${i}`, { "aria-pressed": String(guess === each), "aria-disabled": told && "true",
      onclick: () => { if (!told) { guess = each; draw(); bring(); } } }, each, told?.answer === each && " ✓");
    const wrong = told && guess !== null && guess !== told.answer, verdict = told && guess !== null && (wrong ? `Not quite: you guessed “${guess}”. ` : "Right. ");
    const focused = panel.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    panel.classList.toggle("live-guessed", guess !== null || told !== null);
    panel.classList.toggle("live-answered", told !== null);
    panel.replaceChildren(...[
      h("p", { class: "live-tour-where" }, h("span", {}, `Card ${card + 1} of ${CARDS.length}`),
        h("span", { class: "live-ticks", role: "img", "aria-label": `${ticked.size} of ${CARDS.length} done` },
          CARDS.map((_, i) => h("i", { class: [ticked.has(i) && "live-ticked", i === card && "live-on"].filter(Boolean).join(" ") || null }))),
        control("tour-close", { "aria-label": "Close the tour", onclick: close }, "×")),
      h("h2", { tabindex: "-1" }, title),
      h("div", { class: "live-tour-body" }, h("p", { class: "live-tour-text" }, marked(text)),
      h("p", { class: "live-tour-ask", id: "live-tour-ask" }, marked(ask)),
      h("div", { class: "live-tour-options", role: "group", "aria-labelledby": "live-tour-ask" }, options.map(option)),
      guess !== null && !told && h("p", { class: "live-tour-task" }, "→ ", marked(task), " ", control("tour-do", { onclick: () => go(after) }, "Show me")),
      h("p", { class: wrong || hint ? "live-tour-told live-wrong" : "live-tour-told", role: "status" }, told ? [!wrong && h("b", {}, "✓ "), verdict, marked(told.text), " ", link(chapter)] : hint && marked(hint))),
      h("p", { class: "live-tour-nav" }, control("tour-back", { "aria-disabled": card === 0 && "true", onclick: () => card > 0 && show(card - 1) }, "Back"),
        last ? control("tour-next", { class: told && "live-go", onclick: () => { close(); finished(); } }, "Finish") : control("tour-next", { class: told && "live-go", onclick: () => show(card + 1) }, told ? "Next" : "Skip")),
    ].filter(Boolean));
    fit();
    const body = panel.querySelector(".live-tour-body");
    if (guess !== null && !told) body.scrollTop = body.scrollHeight; // the task
    const again = focused && [...panel.querySelectorAll("[data-key]")].find((each) => each.dataset.key === focused);
    (again ?? (focused === "tour-do" ? panel.querySelector('[data-key="tour-next"]') : null))?.focus({ preventScroll: true });
  }

  // What is pointed at comes into view, above the card where that lies at the foot.
  function bring() {
    root.style.setProperty("--live-dock", `${panel.offsetHeight}px`);
    root.querySelector(".live-pointed")?.scrollIntoView({ block: "nearest", behavior: "instant" });
  }

  // After each change of the page: is the task done? Where is the part that is meant?
  function update() {
    for (const each of root.querySelectorAll(".live-pointed")) each.classList.remove("live-pointed");
    if (card === null || !seen()) return;
    const { done, right, reveal, points, notYet } = CARDS[card], see = seen(), before = hint;
    if (!told && done(see)) {
      told = { answer: right(see), text: reveal(see) };
      hint = null;
      ticked.add(card);
      draw();
    }
    hint = (!told && notYet?.(see)) || null;
    if (!told && hint !== before) draw();
    for (const each of root.querySelectorAll(points)) if (!told) each.classList.add("live-pointed");
  }

  // At the top of the page the card begins lower in the window, and has less room.
  const fit = () => { if (card !== null) panel.style.setProperty("--live-from", `${Math.max(0, Math.round(root.getBoundingClientRect().top))}px`); };
  addEventListener("scroll", fit, { passive: true });

  draw();
  return { panel, show, close, update, bring, get card() { return card; }, get onMap() { return card !== null && Boolean(CARDS[card].notYet); }, get pointed() { return root.querySelector(".live-pointed"); } };
}
