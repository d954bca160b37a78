// Paper is white: print the light theme, then go back to the reader's own.
{
  const page = document.documentElement;
  let chosen = page.dataset.theme;
  matchMedia("print").addEventListener("change", ({ matches }) => {
    if (matches) chosen = page.dataset.theme;
    page.dataset.theme = matches ? "light" : chosen;
  });
}
