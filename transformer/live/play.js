// Play: the sentence climbs the encoder once, crosses the wire, and climbs the decoder once
// for each word, part by part.

const PACE = 320; // milliseconds a part, of the first word

// `page` says how far the translation is, goes on by a word, and redraws.
function makePlayer({ root, parts, begin, goOn, redraw }) {
  const climb = (side) => parts.filter((part) => part.side === side).map((part) => part.at);
  let timer = 0;

  function light(place) {
    for (const each of root.querySelectorAll(".live-lit")) each.classList.remove("live-lit");
    root.querySelector(`[data-at="${place}"], .live-${place}`)?.classList.add("live-lit");
    root.classList.toggle("live-said", place === "output"); // the word is there
  }

  function stop() {
    clearTimeout(timer);
    timer = 0;
    root.classList.remove("live-playing");
    light("none");
  }

  function play() {
    if (timer) { stop(); redraw(); return; }
    let stages = [...climb("e"), "wires", ...climb("d")], pace = Number(root.dataset.pace ?? PACE);
    const next = () => {
      if (!stages.length) {
        if (!goOn()) { stop(); redraw(); return; }
        if (root.dataset.pace === undefined) pace = PACE / 3; // the same way again
        stages = ["wires", ...climb("d")];
      }
      light(stages.shift());
      timer = setTimeout(next, pace);
    };
    timer = 1;
    root.classList.add("live-playing");
    begin();
    next();
  }

  return { play, stop, get playing() { return timer !== 0; } };
}
