// The front page's translations: menus change the French, ribbons and words follow.
// All sentences were translated when the page was made; their data is in the page.
addEventListener("DOMContentLoaded", () => {
  const hero = document.querySelector(".hero");
  if (!hero) return;
  const { menus, said } = JSON.parse(hero.querySelector("script").textContent);
  const WIDE = 1000, HIGH = 100, FULL = 105; // as in hero.py
  const OWNER = 2; // the place of sa or son
  const state = { at: [0, 0, 0], chosen: null, guess: null, cut: false };

  // What the menus make, and what the model says of it
  const translation = (cut = state.cut) => {
    const [s, v, t] = state.at, found = said[(s * menus[1].length + v) * menus[2].length + t];
    const [words, weights] = cut ? found.slice(3) : found;
    const [owner, thing] = menus[2][t][0].split(" ");
    const french = [menus[0][s][0], menus[1][v][0], owner, thing], english = words.split(" ");
    const rows = english.map((_, i) => weights.slice(i * french.length, (i + 1) * french.length));
    return { french, english, rows, owner: found[2], his: english.length - 2 };
  };

  const element = (name, attributes = {}, ...children) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
      else made.setAttribute(key, value);
    }
    made.append(...children);
    return made;
  };
  const en = (word) => element("em", {}, word), fr = (word) => element("em", { lang: "fr" }, word);
  const calm = matchMedia("(prefers-reduced-motion: reduce)");

  // Ribbons, as in hero.py: their edges above and below, by English and French word.
  const ribbons = (rows) => {
    const columns = rows[0].length, found = new Map();
    const given = rows[0].map((_, j) => rows.reduce((sum, row) => sum + row[j], 0));
    const narrow = given.map((g) => Math.min(1, (0.8 * WIDE) / columns / ((FULL * Math.max(g, 1)) / 100)));
    const above = given.map((g, j) => (WIDE * (j + 0.5)) / columns - (FULL * narrow[j] * g) / 200);
    rows.forEach((row, i) => {
      let below = (WIDE * (i + 0.5)) / rows.length - (FULL * row.reduce((a, b) => a + b, 0)) / 200;
      row.forEach((percent, j) => {
        const wide = (FULL * percent) / 100, start = above[j], end = below;
        above[j] += wide * narrow[j];
        below += wide;
        found.set(`${i} ${j}`, [start, above[j], end, below]);
      });
    });
    return found;
  };
  const outline = (edges) => {
    const [a, b, c, d] = edges.map((x) => x.toFixed(1)), middle = HIGH / 2;
    return `M${a} 0C${a} ${middle} ${c} ${middle} ${c} ${HIGH}H${d}C${d} ${middle} ${b} ${middle} ${b} 0Z`;
  };

  const flow = hero.querySelector(".hero-flow"), arc = hero.querySelector(".hero-arc");
  const svg = (name) => document.createElementNS("http://www.w3.org/2000/svg", name);
  let drawn = ribbons(translation().rows), frame = 0;
  const groups = [...flow.children];
  const paths = new Map();
  groups.forEach((group, i) => [...group.children].forEach((path, j) => paths.set(`${i} ${j}`, path)));
  const path = (key) => {
    if (!paths.has(key)) {
      const i = Number(key.split(" ")[0]);
      while (groups.length <= i) groups.push(flow.appendChild(svg("g")));
      paths.set(key, groups[i].appendChild(svg("path")));
    }
    return paths.get(key);
  };
  const put = (edges) => {
    for (const [key, each] of edges) path(key).setAttribute("d", outline(each));
  };
  // A ribbon that comes or goes has no width where its English word is not.
  const shut = ([a, b, c, d]) => [(a + b) / 2, (a + b) / 2, (c + d) / 2, (c + d) / 2];
  const move = (rows) => {
    const wanted = ribbons(rows), from = drawn, to = new Map(wanted);
    for (const [key, edges] of from) if (!to.has(key)) to.set(key, shut(edges));
    cancelAnimationFrame(frame);
    if (calm.matches) { drawn = to; put(to); return; }
    const start = performance.now();
    const step = (now) => {
      const part = Math.min(1, Math.max(0, (now - start) / 350)), eased = 1 - (1 - part) ** 3;
      drawn = new Map([...to].map(([key, end]) => {
        const begin = from.get(key) ?? shut(end);
        return [key, end.map((x, k) => begin[k] + (x - begin[k]) * eased)];
      }));
      put(drawn);
      if (part < 1) frame = requestAnimationFrame(step);
    };
    step(start);
  };

  // Menus lie over their words, so that these look the same everywhere.
  const names = ["Who", "Does what", "To what"];
  const words = [...hero.querySelectorAll(".hero-word")];
  const selects = menus.map((menu, n) => {
    const options = menu.map(([french, gloss]) => element("option", { lang: "fr" }, `${french} (${gloss})`));
    const select = element("select", { "aria-label": names[n], onchange() {
      state.at[n] = select.selectedIndex;
      changed();
    } }, ...options);
    return select;
  });
  words.filter((_, i) => i !== OWNER).forEach((word, n) => word.append(selects[n]));
  hero.classList.add("hero-works");

  const english = hero.querySelector(".hero-english"), says = hero.querySelector(".hero-says");
  const riddle = element("div", { class: "hero-riddle" });
  hero.querySelector(".hero-riddle").replaceWith(riddle);
  says.setAttribute("aria-live", "polite");
  const label = (row, name) => { row.setAttribute("role", "group"); row.setAttribute("aria-label", name); };
  label(hero.querySelector(".hero-french"), "A French sentence, to change");
  label(english, "Its translation: choose a word");

  const choose = (i) => { state.chosen = i; light(); };
  const light = (i = state.chosen ?? translation().his) => {
    const { french, english: words, rows } = translation();
    groups.forEach((group, k) => group.classList.toggle("on", k === i));
    [...english.children].forEach((button, k) => {
      button.classList.toggle("on", k === i);
      button.setAttribute("aria-pressed", k === i);
    });
    const seen = rows[i].map((percent, j) => [percent, j]).filter(([percent]) => percent).sort((a, b) => b[0] - a[0]);
    const places = seen.flatMap(([percent, j], k) => [
      k === 0 ? "" : k === seen.length - 1 ? " and " : ", ", fr(french[j]), ` (${percent}%)`,
    ]);
    says.replaceChildren("To write ", en(words[i]), ", the model looked at ", ...places, ".");
  };

  const show = () => {
    const { french, english: now, rows, owner } = translation();
    const [s, v, t] = state.at, glosses = [menus[0][s][1], menus[1][v][1], "his, her", menus[2][t][1]];
    words.forEach((word, i) => {
      word.querySelector("b").textContent = french[i];
      word.querySelector("small").textContent = glosses[i];
    });
    const before = [...english.children].map((each) => each.textContent);
    if (now.length !== before.length) state.chosen = null;
    const focused = [...english.children].indexOf(document.activeElement);
    english.replaceChildren(...now.map((word, i) => element("button", {
      type: "button", class: `hero-said${word === before[i] ? "" : " new"}`,
      onclick() { choose(i); }, onpointerenter() { light(i); }, onpointerleave() { light(); },
    }, word)));
    english.children[focused]?.focus();
    move(rows);
    light();
    bow(owner[0]);
    const link = hero.querySelector(".hero-whole");
    link.href = link.href.replace(/#.*/, `#s=${encodeURIComponent(french.join(" "))}&t=${translation().his}`);
  };

  // The arc from the person to sa or son, once the reader has guessed.
  const bow = (percent) => {
    arc.classList.toggle("cut", state.cut);
    if (state.guess === null) return;
    if (!arc.children.length) arc.append(svg("path"));
    const [from, to] = [0.5, OWNER + 0.5].map((x) => (x * WIDE) / words.length);
    arc.firstChild.setAttribute("d", `M${from} ${HIGH}C${from} -25 ${to} -25 ${to} ${HIGH}`);
    arc.firstChild.setAttribute("pathLength", 1);
    arc.firstChild.style.strokeWidth = `${(0.14 * percent).toFixed(1)}px`;
  };

  const other = () => (state.at[0] < 3 ? "Paul" : "Jane");
  const answer = () => {
    const { french, english: now, rows, owner, his } = translation(false);
    const [who, does, whose, what] = french, word = now[his], row = rows[his];
    const swap = [fr(who), " did: put ", fr(other()), " there, and ", en(word), " becomes ", en(word === "her" ? "his" : "her"), "."];
    return [[
      ["Yes. Yet to write ", en(word), ", the model hardly looked at ", fr(who), ` (${row[0]}%). It looked at `, fr(whose), ` (${row[OWNER]}%), which is the same word for a woman and a man.`],
      ["No, ", fr(does), " has no say in it. ", ...swap],
      ["That is where the model looked. But ", fr(whose), " is the same word for a woman and a man. ", ...swap],
      ["No, ", fr(what), " only decides that French says ", fr(whose), ". ", ...swap],
    ][state.guess], [
      "So how does it know? While it was reading the French, ", fr(whose), " looked at ", fr(who), ` (${owner[0]}%, the arc). From then on, `,
      fr(whose), " carries its owner with it.",
    ]];
  };
  const ending = () => {
    const { english: now, his } = translation(true), was = translation(false).english[his];
    return was === now[his]
      ? ["Without the arc it still writes ", en(now[his]), ". It seems to be what it writes when it cannot tell: try ", fr(other()), "."]
      : ["Without the arc it writes ", element("strong", {}, now.join(" ")), ". No other word changed."];
  };
  const ask = () => {
    const { french, english: now, his } = translation(false);
    const past = state.cut ? " hero-past" : ""; // what was said of the whole model
    const question = element("p", { class: `hero-question${past}` }, "French ", fr(french[OWNER]), " can mean ", en("his"), " or ", en("her"), ". Who made it ", en(now[his]), "?");
    const guesses = element("div", { class: "hero-guesses", role: "group", "aria-label": "Your guess" }, ...french.map((word, i) =>
      element("button", { type: "button", lang: "fr", "aria-pressed": i === state.guess, onclick() {
        state.guess = i;
        show();
        ask();
        riddle.querySelector(`.hero-guesses button:nth-child(${i + 1})`).focus();
      } }, word)));
    if (state.guess === null) {
      const hint = element("p", { class: "hero-hint" }, "Before you guess, change the person, and watch the English.");
      riddle.replaceChildren(question, guesses, hint);
      return;
    }
    const [first, second] = answer();
    const cut = element("button", { type: "button", class: "hero-cut", "aria-pressed": state.cut, onclick() {
      state.cut = !state.cut;
      show();
      ask();
      riddle.querySelector(".hero-cut").focus();
    } }, state.cut ? "Mend the arc" : "Cut the arc");
    const paragraphs = [first, second, [cut, state.cut ? "" : " and see what becomes of ", state.cut ? "" : en(now[his])]];
    if (state.cut) {
      const start = element("a", { href: hero.dataset.next }, "Start with chapter 1.");
      paragraphs.push(ending(), ["The book goes on like this: it says what a part does, then breaks it and looks. ", start]);
    }
    const told = element("div", { "aria-live": "polite" }, ...paragraphs.map((each, i) => element("p", i < 2 ? { class: past } : {}, ...each)));
    riddle.replaceChildren(question, guesses, told);
  };
  const changed = () => { show(); ask(); };
  changed();
});
