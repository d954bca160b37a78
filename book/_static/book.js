// Paper is white, and nothing on it opens: print the light theme and what is deeper,
// then go back to what the reader had.
{
  const page = document.documentElement;
  let chosen = page.dataset.theme, opened = [];
  matchMedia("print").addEventListener("change", ({ matches }) => {
    if (matches) {
      chosen = page.dataset.theme;
      opened = [...document.querySelectorAll("details.fold-deeper:not([open])")];
    }
    page.dataset.theme = matches ? "light" : chosen;
    for (const fold of opened) fold.open = matches;
  });
}

// A link to something folded opens what it is in, and one to a section what is folded there.
{
  const reveal = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    const section = target.matches("section > span:empty") ? target.parentElement : target; // a label's
    for (const fold of section.querySelectorAll(":scope > details.fold-deeper")) fold.open = true;
    for (let fold = target.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
    target.scrollIntoView();
  };
  addEventListener("hashchange", reveal);
  addEventListener("load", reveal);
}

// Read, Code, All: how much of the page is shown and open. The paragraph in view stays in place.
addEventListener("DOMContentLoaded", () => {
  const folds = [...document.querySelectorAll("article details.fold")];
  const place = document.querySelector(".header-article-items__end");
  if (!folds.length || !place) return;
  const opens = {
    Read: () => false,
    Code: (fold) => !fold.matches(".fold-claim, .fold-deeper"),
    All: () => true,
  };
  const atFirst = new Map(folds.map((fold) => [fold, fold.open]));
  const bar = document.createElement("div");
  bar.className = "fold-switch";
  bar.setAttribute("role", "group");
  bar.setAttribute("aria-label", "How much of this page is open");
  const choose = (mode, moved) => {
    const anchor = moved && [...document.querySelectorAll("article p, article h2")].find((e) => e.getBoundingClientRect().top > 0);
    const before = anchor && anchor.getBoundingClientRect().top;
    document.documentElement.dataset.folds = mode;
    for (const fold of folds) fold.open = atFirst.get(fold) || opens[mode](fold);
    for (const button of bar.children) button.setAttribute("aria-pressed", button.textContent === mode);
    if (anchor) scrollBy(0, anchor.getBoundingClientRect().top - before);
    try { localStorage.setItem("folds", mode); } catch {}
  };
  for (const mode of Object.keys(opens)) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = mode;
    button.addEventListener("click", () => choose(mode, true));
    bar.append(button);
  }
  place.prepend(bar);
  const { folds: mode } = document.documentElement.dataset;
  choose(mode in opens ? mode : "Read", false);
  addEventListener("show-code", () => choose("Code", false));
});

// A ✓ at the end of a sentence: what is asserted, beside it. Rest on it, tap it, or press Enter.
addEventListener("DOMContentLoaded", () => {
  const ticks = [...document.querySelectorAll("article a.tick")];
  if (!ticks.length || !HTMLElement.prototype.showPopover) return;
  const note = document.createElement("div");
  note.id = "checked";
  note.className = "checked";
  note.setAttribute("popover", "auto");
  note.setAttribute("role", "dialog");
  note.setAttribute("aria-label", "What is asserted");
  let shown = null, timer = 0;
  const place = (tick) => {
    const at = tick.getBoundingClientRect(), width = Math.min(innerWidth - 24, 640);
    note.style.width = `${width}px`;
    note.style.left = `${Math.max(12, Math.min(at.left - width / 2, innerWidth - width - 12))}px`;
    const below = at.bottom + 8 + note.offsetHeight < innerHeight || at.top < note.offsetHeight + 8;
    note.style.top = `${below ? at.bottom + 8 : at.top - note.offsetHeight - 8}px`;
  };
  const show = (tick) => {
    clearTimeout(timer);
    if (shown === tick && note.matches(":popover-open")) return;
    const fold = document.getElementById(tick.hash.slice(1));
    const said = document.createElement("p");
    said.append(...fold.querySelector("summary").cloneNode(true).childNodes);
    const code = fold.querySelector("div.highlight").cloneNode(true);
    for (const e of code.querySelectorAll("button, [id]")) e.removeAttribute("id");
    const link = document.createElement("a");
    link.href = tick.hash;
    link.textContent = "Show it among the code";
    link.addEventListener("click", () => {
      note.hidePopover();
      dispatchEvent(new Event("show-code"));
      fold.open = true;
    });
    note.replaceChildren(said, code, link);
    tick.after(note);
    note.showPopover();
    place(tick);
    shown = tick;
    for (const other of ticks) other.setAttribute("aria-expanded", other === tick);
  };
  note.addEventListener("toggle", ({ newState }) => {
    if (newState === "closed") { shown?.setAttribute("aria-expanded", "false"); shown = null; }
  });
  addEventListener("keydown", ({ key }) => { // Sphinx takes Escape for itself
    if (key === "Escape" && shown) { const tick = shown; note.hidePopover(); tick.focus(); }
  });
  const later = (wait, action) => { clearTimeout(timer); timer = setTimeout(action, wait); };
  const leave = () => later(300, () => { if (!note.matches(":hover, :focus-within")) note.hidePopover(); });
  note.addEventListener("pointerenter", () => clearTimeout(timer));
  note.addEventListener("pointerleave", ({ pointerType }) => { if (pointerType === "mouse") leave(); });
  for (const tick of ticks) {
    tick.setAttribute("role", "button");
    tick.setAttribute("aria-haspopup", "dialog");
    tick.setAttribute("aria-expanded", "false");
    tick.addEventListener("click", (event) => {
      event.preventDefault();
      if (shown === tick && event.detail === 0) note.hidePopover();
      else show(tick);
    });
    tick.addEventListener("keydown", (event) => { if (event.key === " ") { event.preventDefault(); tick.click(); } });
    tick.addEventListener("pointerenter", ({ pointerType }) => { if (pointerType === "mouse") later(150, () => show(tick)); });
    tick.addEventListener("pointerleave", ({ pointerType }) => { if (pointerType === "mouse") leave(); });
  }
});

// Cards: a guess opens what is so, and is counted.
addEventListener("DOMContentLoaded", () => {
  const cards = [...document.querySelectorAll("article .said")];
  const guessed = new Map();
  for (const card of cards) {
    const so = card.className.match(/said-(true|in-part|false)/)[1].replace("-", " ");
    const buttons = [...card.querySelectorAll(".said-guess button")];
    const details = card.querySelector("details");
    const [told, count] = ["said-told", "said-count"].map((name) => {
      const made = document.createElement("p");
      made.className = name;
      made.setAttribute("role", "status");
      return made;
    });
    details.querySelector("summary").after(told);
    details.append(count);
    for (const button of buttons) button.addEventListener("click", () => {
      const guess = button.textContent.toLowerCase();
      if (!guessed.has(card)) guessed.set(card, guess === so); // the first guess counts
      for (const other of buttons) other.setAttribute("aria-pressed", other === button);
      details.open = true;
      card.dataset.guess = guess === so ? "right" : "wrong";
      const right = [...guessed.values()].filter(Boolean).length;
      told.textContent = guess === so ? "Right." : "Not quite.";
      count.textContent = `So far ${right} of ${guessed.size} first guesses ${right === 1 ? "was" : "were"} right.`;
    });
  }
});

// The book's contents: the theme keeps where they were scrolled to, so bring this page's entry into view.
addEventListener("load", () => {
  const bar = document.querySelector("#pst-primary-sidebar"), here = [...bar?.querySelectorAll(".active > a") ?? []].pop();
  if (!here?.offsetParent) return;
  const place = here.getBoundingClientRect(), box = bar.getBoundingClientRect();
  if (place.top < box.top || place.bottom > Math.min(box.bottom, innerHeight)) bar.scrollTop += place.top - box.top - bar.clientHeight / 3;
});

// The page's own contents: the entry of what is being read is marked, and in view.
addEventListener("DOMContentLoaded", () => {
  const list = document.querySelector("#pst-page-toc-nav");
  const bar = document.querySelector("#pst-secondary-sidebar");
  if (!list || !bar) return;
  const links = [...list.querySelectorAll("a[href^='#']")];
  const sections = links.map((link) => document.getElementById(decodeURIComponent(link.hash.slice(1))));
  let timer = 0;
  const mark = () => {
    if (!bar.offsetParent) return;
    const end = scrollY + innerHeight > document.documentElement.scrollHeight - 4;
    const read = end ? [0, links.length - 1] : sections.map((section, i) => [section?.getBoundingClientRect().top ?? 1e9, i])
      .filter(([top]) => top < innerHeight / 3).pop();
    links.forEach((link, i) => {
      const here = Boolean(read) && i === read[1];
      link.classList.toggle("active", here);
      if (here) link.setAttribute("aria-current", "location");
      else link.removeAttribute("aria-current");
      if (!here) return;
      const place = link.getBoundingClientRect(), box = bar.getBoundingClientRect();
      if (place.top < box.top + 60) bar.scrollTop += place.top - box.top - 60;
      else if (place.bottom > Math.min(box.bottom, innerHeight) - 60) bar.scrollTop += place.bottom - Math.min(box.bottom, innerHeight) + 60;
    });
  };
  const soon = () => { clearTimeout(timer); timer = setTimeout(mark, 120); };
  for (const event of ["scroll", "hashchange", "resize"]) addEventListener(event, soon, { passive: true });
  document.addEventListener("toggle", soon, true);
  soon();
});

// Keyboards: what scrolls can be reached, copying is left to the mouse (the text can be selected).
addEventListener("load", () => {
  for (const button of document.querySelectorAll("button.copybtn")) button.tabIndex = -1;
  const reach = () => {
    for (const box of document.querySelectorAll("article div.math, article pre, article .pst-scrollable-table-container, article div.text_html")) {
      const wide = box.scrollWidth > box.clientWidth + 1 && !box.querySelector("a, button, input, [tabindex]");
      if (wide) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    }
  };
  document.fonts.ready.then(reach);
  document.fonts.addEventListener("loadingdone", reach);
  addEventListener("resize", reach);
  document.addEventListener("toggle", reach, true);
});

// Search: a term of the glossary comes first, names of the API typed as they are spelled,
// then the pages that hold the query's words, each at its best section. Headings are in the index; what else a
// section holds is read from the page, which a browser refuses where the book is a file.
{
  const OFTEN = `why how what when which who where does do did i my you your can should vs between
    from get gets use used using have has`.split(/\s+/);
  const CALLED = { // what others call it, and the book's words for it
    __proto__: null,
    batchnorm: "batch normalisation", kvcache: "keys and values are computed once cache", bf16: "bfloat16", bpe: "byte-pair encoding", complexity: "cost",
    custom: "own", ddp: "processes", decrease: "stuck", gqa: "grouped-query", hallucination: "invents",
    interpretability: "explain", kv: "key value", layernorm: "layer normalisation", mlp: "feed-forward",
    moe: "experts", mqa: "grouped-query", multiple: "several", noam: "warm-up", needweights: "attention weights",
    norm: "normalisation", pastkeyvalues: "key/value cache",
    postln: "post-norm", preln: "pre-norm", rope: "rotary", skip: "residual",
    speed: "faster", sqrt: "square root", tied: "tying", vit: "vision transformer",
  };
  const APART = /^(exercises|(three|five) lines to remember|further reading)$/i;
  // Sphinx's words, in the book's.
  const SAID = {
    "Your search did not match any documents. Please make sure that all words are spelled correctly and that you've selected enough categories.":
      "Nothing was found. Try a single word, or one of the field's own, such as mask or softmax.",
    "Search finished, found ${resultCount} page(s) matching the search query.": "${resultCount} found, the best first.",
  };
  const WORTH = { bibliography: 0.3, api: 0.5, sources: 0.6, glossary: 0.7, notation: 0.7, ledger: 0.8, intro: 0.8, misconceptions: 0.9 };
  const british = (text) => text.toLowerCase().replace(/iz(?=[aei])/g, "is");
  const plain = (text) => british(text).replace(/[^a-z0-9]/g, "");
  const spaced = (text) => ` ${british(text).replace(/[^a-z0-9]+/g, " ")} `;
  const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);

  let asked = []; // of each word of the query: what matches it, and how much it tells
  const told = (text) => sum(asked.filter(({ match }) => match.test(text)).map(({ weight }) => weight));
  const words = (text) => splitQuery(text.toLowerCase()).filter((word) => !stopwords.includes(word));
  const heading = (text) => { // much for the query's words alone, less among others
    const count = asked.filter(({ match }) => match.test(text)).length;
    return told(text) * (0.6 + 0.4 * Math.min(1, count / Math.max(1, words(text).length))) * (/^Deeper/.test(text) ? 0.6 : 1);
  };

  const understand = (query, terms, { docnames, terms: inText, titleterms: inTitles }) => {
    const stemmer = new Stemmer();
    const pagesOf = (stem) => {
      const pages = [inText, inTitles].flatMap((index) => (Object.hasOwn(index, stem) ? index[stem] : []));
      if (pages.length || stem.length < 4) return pages;
      return Object.keys(inText).filter((other) => other.includes(stem)).flatMap((other) => inText[other]);
    };
    const every = [...new Set(words(CALLED[plain(query)] ?? query))].map((word) => {
      const same = terms.filter(({ term }) => plain(term) === plain(word)).map(({ term }) => term);
      const ways = [word, british(word), CALLED[plain(word)] ?? "", ...same].map((way) => words(way).map((w) => stemmer.stemWord(w)));
      const known = ways.filter((stems) => stems.length);
      const pages = new Set(known.flatMap((stems) => stems.map(pagesOf).reduce((all, some) => all.filter((page) => some.includes(page)))));
      const source = known.map((stems) => stems.map((stem) => stem.replace(/i$/, "[iy]") + "\\w{0,5}\\b").join("\\W+")).join("|");
      return { pages, match: RegExp(`\\b(?:${source})`, "i"), weight: Math.log(1 + docnames.length / (1 + pages.size)) };
    }).filter(({ pages }) => pages.size);
    const cited = docnames.findIndex((name) => name.endsWith("/bibliography"));
    const written = every.filter(({ pages }) => pages.size > 1 || !pages.has(cited));
    asked = written.length ? written : every;
  };

  const cased = (term, id) => [...term].map((c, i) => (id[i + 5]?.toLowerCase() === c ? id[i + 5] : c)).join(""); // KV cache, from term-KV-cache

  const search = (query, searched, excluded, highlighted, objects) => {
    const { indexentries, docnames, filenames, titles, alltitles } = Search._index;
    // A result, as Sphinx has them: page, title, section, no description, score, file.
    const result = (file, title, anchor, score) => [docnames[file], title, anchor, null, score, filenames[file]];
    const terms = Object.entries(indexentries).flatMap(([term, places]) =>
      places.filter(([, id]) => id.startsWith("term-")).map(([file, id]) => ({ term, file, id })));
    understand(query, terms, Search._index);

    // Terms that hold the query, or that it holds: the nearest in length first.
    const named = terms.some(({ term }) => plain(term) === plain(query)) ? query : CALLED[plain(query)] ?? query;
    const wanted = plain(words(named).join("")), whole = plain(named);
    const glossary = terms
      .filter(({ term }) => (wanted.length > 3 && plain(term).includes(wanted)) || spaced(query).includes(spaced(term)))
      .sort((a, b) => Math.abs(plain(a.term).length - wanted.length) - Math.abs(plain(b.term).length - wanted.length))
      .map(({ term, file, id }) => result(file, `Glossary: ${cased(term, id)}`, `#${id}`, 0)).slice(0, 6);
    const first = glossary.length && [wanted, whole].some((text) => text && plain(glossary[0][1]).includes(text)) ? 1 : 0;

    // Pages, by the share of the query that they hold, their headings and their names.
    const all = sum(asked.map(({ weight }) => weight));
    const pages = docnames.map((name, file) => {
      const held = sum(asked.filter((word) => word.pages.has(file)).map(({ weight }) => weight)) / all;
      const sections = Object.entries(alltitles).flatMap(([title, places]) => places
        .filter(([page, id]) => page === file && !/^ex-|solution-\d/.test(id ?? "") && !APART.test(title))
        .map(([, id]) => ({ title, id, score: heading(title) / all })));
      const short = name.split("/").pop().replace(/^\d+-/, "").replace(/-/g, " "); // masks: what the page is about
      const best = sections.sort((a, b) => b.score - a.score)[0];
      const at = best?.id && best.score > 0.5 ? best : null;
      const about = heading(short) / all + (plain(short) === plain(query) ? 0.5 : 0);
      const score = held * held * (1 + (best?.score ?? 0) + about) * (WORTH[short] ?? 1);
      const title = at ? `${titles[file]} › ${at.title}` : titles[file];
      return { held, row: result(file, title, at ? `#${at.id}` : "", score) };
    }).filter(({ held, row }) => held > 0.3 && !(first && row[0].endsWith("/glossary")));
    const complete = pages.filter(({ held }) => held > 0.999);
    const found = (complete.length < 5 ? pages : complete).map(({ row }) => row).sort((a, b) => b[4] - a[4]).slice(0, 15);

    // Names of the API: first where one was typed as it is spelled, else last.
    const names = [...objects].flatMap((name) => Search.performObjectSearch(name, objects));
    const api = [...new Map(names.map((name) => [name[1], name])).values()].sort((a, b) => b[4] - a[4]);
    const exact = ([, name]) => /[A-Z_.]/.test(query.trim()) && `.${name}`.endsWith(`.${query.trim()}`);
    return [...glossary.slice(0, first), ...api.filter(exact), ...found.slice(0, 3), ...glossary.slice(first),
      ...found.slice(3), ...api.filter((name) => !exact(name))].reverse();
  };

  // The section of a page, or the entry of the glossary, that holds most of the words.
  const excerpt = (html, searched, anchor) => {
    const page = new DOMParser().parseFromString(html, "text/html");
    for (const e of page.querySelectorAll("div.cell, [data-live], [class^='live-'], .doors-name, .take-home, .made-here, svg, nav, script, style, summary, .headerlink, .section-number, .exercise, .solution, .said-guess, form, .answer-elsewhere")) e.remove();
    for (const e of page.querySelectorAll(".math, math")) { // short formulas in one line stay
      for (const [tag, sign] of [["msub", "_"], ["msup", "^"]]) for (const part of e.querySelectorAll(tag)) part.firstElementChild.after(sign);
      const text = e.textContent.trim(), high = e.querySelector("mfrac, msqrt, mroot, mtable, munder, mover, munderover, msubsup");
      e.replaceWith(e.matches("math:not([display=block])") && !high && text.length <= 30 ? text : "…");
    }
    for (const e of page.querySelectorAll("td, th, li")) e.append(" ");
    const sections = [...page.querySelectorAll("article section[id], dl.glossary > dd")].reverse().map((part) => {
      const terms = [];
      for (let e = part.previousElementSibling; part.tagName === "DD" && e?.tagName === "DT"; e = e.previousElementSibling) terms.unshift(e);
      const title = part.querySelector(":scope > :is(h1, h2, h3, h4)");
      const name = (terms[0] ?? title)?.textContent.trim() ?? "", top = title?.tagName === "H1";
      title?.remove();
      const text = part.textContent.replace(/\s+/g, " ").replace(/…( ?…)+/g, "…").trim();
      for (const e of [part, ...terms]) e.remove(); // what holds this section is read without it
      return { ids: terms.length ? terms.map((e) => e.id) : [part.id], name, text, top };
    }).filter(({ name, text }) => text && !APART.test(name));
    const score = ({ name, text, top }) => told(text) + (top ? 0 : heading(name))
      + sum(asked.map(({ match, weight }) => 0.1 * weight * Math.min(4, text.split(match).length - 1)));
    const id = decodeURIComponent(anchor.slice(1));
    const best = sections.find(({ ids }) => ids.includes(id)) ?? sections.sort((a, b) => score(b) - score(a))[0];
    if (!best) return null;

    const places = asked.map(({ match }) => best.text.search(match)).filter((at) => at >= 0);
    const from = places.map((at) => [told(best.text.slice(at, at + 200)), at]).sort((a, b) => b[0] - a[0] || a[1] - b[1])[0]?.[1] ?? 0;
    const before = best.text.slice(0, from), ends = Math.max(...[". ", ": ", "? ", "! "].map((end) => before.lastIndexOf(end)));
    const start = from < 120 ? 0 : from - ends < 120 ? ends + 2 : before.indexOf(" ", from - 80) + 1;
    const rest = best.text.slice(start), cut = rest.length > 260;
    const line = document.createElement("p");
    line.className = "context";
    line.textContent = (start ? "…" : "") + (cut ? rest.slice(0, 260).replace(/\s\S*$/, "…") : rest);
    if (!anchor && !best.top) queueMicrotask(() => {
      const link = line.closest("li").querySelector("a");
      [link.hash] = best.ids;
      link.append(` › ${best.name}`);
    });
    return line;
  };

  const improve = () => {
    if (typeof Search === "undefined" || typeof Stemmer === "undefined") return false;
    stopwords.push(...OFTEN);
    Search._performSearch = search;
    Search.makeSearchSummary = excerpt;
    Object.assign(Documentation.TRANSLATIONS, SAID);
    if (location.protocol === "file:") { // where a browser reads no other page: headings alone
      const ask = window.fetch;
      window.fetch = (...given) => ask(...given).catch(() => new Response(""));
    }
    return true;
  };
  if (!improve()) document.addEventListener("DOMContentLoaded", improve);
}
