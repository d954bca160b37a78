// Paper is white: print the light theme, then go back to the reader's own.
{
  const page = document.documentElement;
  let chosen = page.dataset.theme;
  matchMedia("print").addEventListener("change", ({ matches }) => {
    if (matches) chosen = page.dataset.theme;
    page.dataset.theme = matches ? "light" : chosen;
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
  const title = document.querySelector("article h1");
  if (!folds.length || !title) return;
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
  title.after(bar);
  let mode = "Read";
  try { mode = localStorage.getItem("folds") || mode; } catch {}
  choose(mode in opens ? mode : "Read", false);
});
