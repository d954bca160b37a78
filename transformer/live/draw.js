// How the page draws: elements, numbers as words, vectors as bars, weights as squares.

// Elements

function make(space, tag, attributes, children) {
  const element = document.createElementNS(`http://www.w3.org/${space}`, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, each] of Object.entries(value)) element.style.setProperty(key, each);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false));
  return element;
}

const h = (tag, attributes = {}, ...children) => make("1999/xhtml", tag, attributes, children);
const s = (tag, attributes = {}, ...children) => make("2000/svg", tag, attributes, children);

const number = (value, digits = 2) => (Object.is(Math.round(value * 10 ** digits), -0) ? 0 : value).toFixed(digits).replace("-", "−");
const short = (weight) => number(weight).replace("0.", ".");
const percent = (p) => (p >= 0.9995 ? "100%" : p >= 0.0995 ? `${(100 * p).toFixed(0)}%` : p >= 0.001 ? `${(100 * p).toFixed(1)}%` : "< 0.1%");
const length = (values) => Math.sqrt(values.reduce((sum, value) => sum + value * value, 0));
const largest = (...vectors) => vectors.reduce((most, values) => values.reduce((m, v) => Math.max(m, Math.abs(v)), most), 1e-9);
const quoted = (text) => `“${text}”`;
// A text of ours with d_k and W^O as formulas write them.
const formula = (text) => text.split(/([_^]\w+)/).map((part) =>
  (/^[_^]/.test(part) ? h(part[0] === "_" ? "sub" : "sup", {}, part.slice(1)) : part));

// A vector as bars up and down from a middle line.
function strip(values, label, { colour = "ink", scale = largest(values), from = 0, to = values.length, numbers = false } = {}) {
  const bars = (first, last) => Array.from(values.slice(first, last), (value, i) =>
    `M${first + i + 0.1} 1V${(1 - value / scale).toFixed(3)}h.8V1z`).join("");
  const low = Math.min(...values), high = Math.max(...values), size = number(length(values));
  return h("figure", { class: `live-strip live-${colour}` },
    h("figcaption", {}, h("span", {}, label), h("small", { title: "What the full height of the bars stands for, and the length of the vector" }, `±${number(scale, 1)} · length ${size}`)),
    s("svg", { viewBox: `0 0 ${values.length} 2`, preserveAspectRatio: "none", role: "img",
      "aria-label": `${[label].flat().map((each) => each.textContent ?? each).join("")}: ${values.length} numbers from ${number(low)} to ${number(high)}, length ${size}` },
      s("path", { class: "live-dim", d: bars(0, from) + bars(to, values.length) }),
      s("path", { d: bars(from, to) }),
      s("path", { class: "live-middle", d: `M0 1H${values.length}`, "vector-effect": "non-scaling-stroke" })),
    numbers && h("p", { class: "live-numbers" }, Array.from(values, (value) => number(value)).join("  ")));
}

// How full the square of a weight is: the smallest is seen, a masked one is empty.
const fullness = (weight) => (weight === 0 ? 0 : 0.06 + 0.94 * weight);
const hue = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);
// Canvases have the colours of the day or of the night in which they were drawn.
function atDusk(redraw) {
  new MutationObserver(redraw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}

// Attention weights as squares; `on` is the row in hand. Few squares stay small: the frame needs room around them.
function heat(weights, on) {
  const side = 8, least = 6, edge = 2, [wide, high] = [weights.cols, weights.rows].map((count) => Math.max(least, count) * side + edge);
  const canvas = h("canvas", { width: wide, height: high, "aria-hidden": "true" }), pen = canvas.getContext("2d");
  const left = edge + Math.floor((wide - edge - weights.cols * side) / 2), top = edge + Math.floor((high - edge - weights.rows * side) / 2);
  pen.fillStyle = hue("--heat-weight");
  for (let i = 0; i < weights.rows; i++)
    for (let j = 0; j < weights.cols; j++) {
      pen.globalAlpha = fullness(weights.data[i * weights.cols + j]);
      pen.fillRect(left + j * side, top + i * side, side - edge, side - edge);
    }
  pen.globalAlpha = 1;
  pen.strokeStyle = "#7d7d7d";
  pen.lineWidth = 1.5;
  if (weights.rows > 1) pen.strokeRect(left - 1, top + on * side - 1, weights.cols * side, side);
  return canvas;
}

// How wide a label is at the most: in bold, as the chosen one.
const ruler = document.createElement("canvas").getContext("2d");
function widthOf(text) {
  ruler.font = "700 13px system-ui, sans-serif";
  return ruler.measureText(text).width;
}
