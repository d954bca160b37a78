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

// A link to something folded opens what it is in.
{
  const reveal = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    for (let fold = target.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
    target.scrollIntoView();
  };
  addEventListener("hashchange", reveal);
  addEventListener("load", reveal);
}

// Read, Code, All: how much of the page is open. The paragraph in view stays in place.
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
  let mode = "Read";
  try { mode = localStorage.getItem("folds") || mode; } catch {}
  choose(mode in opens ? mode : "Read", false);
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

// Search: excerpts are sentences; terms of the glossary come first, the API's names last.
{
  const improve = () => {
    if (typeof Search === "undefined" || typeof Scorer === "undefined") return false;
    Scorer.score = ([docname, , anchor, description, score]) =>
      description || docname.endsWith("/api") ? score - 60 : anchor ? score + 3 : score;
    const find = Search._performSearch;
    Search._performSearch = (query, ...rest) => {
      const { indexentries, docnames, filenames } = Search._index;
      const wanted = query.toLowerCase().trim();
      const terms = Object.entries(indexentries).flatMap(([term, places]) => places
        .filter(([, id]) => id.startsWith("term-") && wanted.length > 2 && term.toLowerCase().includes(wanted))
        .map(([file, id]) => [docnames[file], `Glossary: ${term}`, "#" + id, null, 999 - term.length, filenames[file]]));
      const known = new Set(terms.map((term) => term[2]));
      const others = find(query, ...rest).filter((result) => !known.has(result[2]));
      return [...others, ...terms.sort((a, b) => a[4] - b[4])];
    };
    Search.htmlToText = (text, anchor) => {
      const page = new DOMParser().parseFromString(text, "text/html");
      const at = anchor && page.getElementById(decodeURIComponent(anchor.slice(1)));
      const part = at?.tagName === "DT" ? at.nextElementSibling : at || page.querySelector("article");
      if (!part) return "";
      for (const e of part.querySelectorAll("div.cell, svg, nav, script, style, table, h1, .headerlink, .math, math, .fold-deeper > summary")) e.remove();
      return part.textContent.replace(/\s+/g, " ");
    };
    return true;
  };
  if (!improve()) document.addEventListener("DOMContentLoaded", improve);
}
