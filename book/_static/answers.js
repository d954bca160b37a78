// Exercises that are answered on the page. What Python's operators and functions mean, for checks that
// the build compiles (book/_ext/javascript.py); then the forms in which a reader answers.
const py = (() => {
  class Refused extends Error {}
  class Unanswered extends Error {}
  class Dict {
    constructor(pairs) { this.map = new Map(); for (const [k, v] of pairs) this.put(k, v); }
    key(k) { return Array.isArray(k) ? JSON.stringify(k) : k; }
    put(k, v) { this.map.set(this.key(k), [k, v]); }
    get(k, otherwise = null) { return this.map.has(this.key(k)) ? this.map.get(this.key(k))[1] : otherwise; }
    has(k) { return this.map.has(this.key(k)); }
    items() { return [...this.map.values()]; }
    keys() { return this.items().map(([k]) => k); }
  }
  const list = (x) => (x instanceof Dict ? x.keys() : [...x]);
  const eq = (a, b) => (Array.isArray(a) && Array.isArray(b) ? a.length === b.length && a.every((x, i) => eq(x, b[i])) : a === b);
  const set = (x) => list(x).filter((one, i, all) => all.findIndex((other) => eq(one, other)) === i);
  const truthy = (x) => (Array.isArray(x) ? x.length > 0 : x instanceof Dict ? x.map.size > 0 : Boolean(x));
  const sum = (x) => list(x).reduce((a, b) => a + b, 0);
  const most = (sign) => (...x) => (x.length > 1 ? x : list(x[0])).reduce((a, b) => (sign * (b - a) > 0 ? b : a));
  const repr = (x) => (Array.isArray(x) ? `[${x.map(repr).join(", ")}]` : typeof x !== "string" ? String(x) : x.includes("'") && !x.includes('"') ? `"${x}"` : `'${x.replaceAll("'", "\\'")}'`);
  const told = (x) => (Number.isNaN(x) ? "nan" : x > 0 ? "inf" : "-inf");

  const general = (x, digits) => { // Python's g
    const [mantissa, power] = x.toExponential(digits - 1).split("e");
    const short = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);
    if (power >= -4 && power < digits) return short(x.toFixed(digits - 1 - power));
    return `${short(mantissa)}e${power < 0 ? "-" : "+"}${String(Math.abs(power)).padStart(2, "0")}`;
  };
  const format = (x, spec) => {
    if (spec === "!r") return repr(x);
    if (spec === "") return Array.isArray(x) ? repr(x) : String(x);
    const digits = Number(spec.match(/\d/)?.[0] ?? 6);
    return spec.endsWith("f") ? x.toFixed(digits) : general(x, digits);
  };

  const named = (x) => (Array.isArray(x) ? "a list" : typeof x === "object" ? "a dict" : typeof x === "string" ? "text" : Number.isInteger(x) ? "an int" : "a float");
  const number = (answer) => {
    if (answer === null) throw new Unanswered();
    if (typeof answer === "string") throw new Refused("The answer should be a number, without quotes.");
    if (typeof answer === "boolean") return Number(answer);
    if (typeof answer !== "number") throw new Refused(`The answer should be a number, not ${named(answer)}.`);
    if (!Number.isFinite(answer)) throw new Refused(`The answer should be a number; yours is ${told(answer)}.`);
    return answer;
  };
  const numbers = (answer, wanted) => {
    if (answer === null) throw new Unanswered();
    if (!Array.isArray(answer)) throw new Refused(`Give back ${wanted}.`);
    return answer.flatMap((one) => (Array.isArray(one) ? numbers(one, wanted) : [number(one)]));
  };
  const blanks = (answer, names) => {
    if (Array.isArray(answer) || typeof answer !== "object") {
      throw new Refused(`Fill in the dictionary, with ${names.map(repr).join(", ")}; got ${named(answer)}.`);
    }
    for (const name of names) if (!(name in answer)) throw new Refused(`Nothing stands under ${repr(name)}: fill in every line.`);
    if (names.some((name) => answer[name] === null)) throw new Unanswered();
    return names.map((name) => answer[name]);
  };

  const methods = { // of text and lists; dictionaries bring their own
    join: (between, parts) => list(parts).join(between),
    strip: (text) => text.trim(),
    lower: (text) => text.toLowerCase(),
    replace: (text, old, other) => text.replaceAll(old, other),
    removeprefix: (text, start) => (text.startsWith(start) ? text.slice(start.length) : text),
    append: (x, one) => x.push(one),
    index: (x, one) => x.findIndex((other) => eq(one, other)),
  };
  const verdict = (kind) => (message) => ({ kind, message: message.split(/\s+/).join(" ").trim() });

  return {
    Refused, list, eq, set, truthy, sum, format, number, numbers, blanks,
    dict: (pairs) => new Dict(pairs),
    put: (x, k, v) => (x instanceof Dict ? x.put(k, v) : (x[k] = v)),
    at: (x, k) => (x instanceof Dict ? x.get(k) : x.at(k)),
    slice: (x, from, to) => x.slice(from ?? 0, to ?? undefined),
    has: (one, x) => (typeof x === "string" ? x.includes(one) : x instanceof Dict ? x.has(one) : x.some((other) => eq(one, other))),
    add: (a, b) => (Array.isArray(a) ? [...a, ...b] : a + b),
    floordiv: (a, b) => Math.floor(a / b),
    union: (a, b) => new Dict([...a.items(), ...b.items()]),
    join: (parts) => parts.join(""),
    method: (x, name, ...rest) => (x instanceof Dict ? x[name](...rest) : methods[name](x, ...rest)),
    len: (x) => (x instanceof Dict ? x.map.size : x.length),
    abs: Math.abs, max: most(1), min: most(-1), int: Math.trunc, str: String,
    tuple: list,
    all: (x) => list(x).every(truthy),
    any: (x) => list(x).some(truthy),
    map: (f, x) => list(x).map((one) => f(one)),
    sorted: (x) => list(x).sort((a, b) => (a < b ? -1 : a > b ? 1 : 0)),
    range: (from, to) => (to === undefined ? [...Array(from).keys()] : [...Array(Math.max(0, to - from)).keys()].map((i) => i + from)),
    zip: (...x) => list(x[0]).map((_, i) => x.map((one) => list(one)[i])),
    right: verdict("right"),
    wrong: verdict("wrong"),
    math: {
      ...Object.fromEntries(["exp", "log", "log2", "sqrt", "hypot"].map((name) => [name, Math[name]])),
      dist: (a, b) => Math.hypot(...a.map((x, i) => x - b[i])),
      isclose: (a, b, { rel_tol = 1e-9, abs_tol = 0 } = {}) =>
        a === b || Math.abs(a - b) <= Math.max(rel_tol * Math.max(Math.abs(a), Math.abs(b)), abs_tol),
    },
    // What a check says of an answer, as `exercise` in bookkit/exercises.py has it.
    judge: (check, answer) => {
      try {
        if (answer === null) throw new Unanswered();
        return check(answer);
      } catch (error) {
        if (error instanceof Unanswered) return verdict("unanswered")("Not answered yet: fill in every field.");
        if (error instanceof Refused) return verdict("wrong")(error.message);
        throw error;
      }
    },
  };
})();

// What a reader writes for a number: digits, or arithmetic such as 24 * 2^30 / 131072.
const calculate = (written) => {
  const text = written.replace(/(\d),(?=\d{3}(?!\d))/g, "$1").replaceAll("math.", "").replaceAll("−", "-").toLowerCase();
  const tokens = text.match(/\d+\.?\d*(?:e[+-]?\d+)?|\.\d+|\*\*|[a-z]+\d?|\S/g) ?? [];
  const known = { pi: Math.PI, π: Math.PI, e: Math.E };
  const functions = { sqrt: Math.sqrt, "√": Math.sqrt, log: Math.log, ln: Math.log, log2: Math.log2, exp: Math.exp };
  const signs = { "*": (a, b) => a * b, "×": (a, b) => a * b, "·": (a, b) => a * b, "/": (a, b) => a / b, "÷": (a, b) => a / b, "+": (a, b) => a + b, "-": (a, b) => a - b };
  let at = 0;
  const next = (...some) => some.includes(tokens[at]) && tokens[at++];
  const atom = () => {
    const token = tokens[at++] ?? "";
    if (/^[\d.]/.test(token)) return Number(token);
    if (Object.hasOwn(functions, token)) return functions[token](atom());
    if (Object.hasOwn(known, token)) return known[token];
    if (token !== "(") throw new SyntaxError(token);
    const inside = terms();
    if (!next(")")) throw new SyntaxError("(");
    return inside;
  };
  const signed = () => (next("-") ? -signed() : next("+") ? signed() : power());
  const power = () => {
    const base = atom();
    return next("**", "^") ? base ** signed() : base;
  };
  const row = (part, ...some) => () => {
    let value = part();
    for (let sign = next(...some); sign; sign = next(...some)) value = signs[sign](value, part());
    return value;
  };
  const factors = row(signed, "*", "×", "·", "/", "÷"), terms = row(factors, "+", "-");
  const value = terms();
  if (at < tokens.length) throw new SyntaxError(tokens[at]);
  return value;
};

// A list of whole numbers: 0, 1, 2 or 0–2, with or without brackets; "none" for an empty one.
const listed = (written) => {
  const text = written.replace(/^[[({]|[\])}]$/g, "").trim();
  if (/^(none|nothing|)$/i.test(text)) return [];
  return text.split(/[\s,;]+/).flatMap((part) => {
    const [, from, to] = /^(\d+)(?:[-–](\d+))?$/.exec(part) ?? [];
    if (from === undefined) throw new SyntaxError(part);
    return to === undefined ? [Number(from)] : py.range(Number(from), Number(to) + 1);
  });
};

addEventListener("DOMContentLoaded", () => {
  for (const form of document.querySelectorAll("form.answer")) {
    const fields = [...form.querySelectorAll("input, select")];
    const said = form.querySelector(".verdict"), { gives } = form.dataset;
    const blank = (field) => (field.type === "checkbox" ? !field.checked : !field.value.trim());
    const read = (field) => {
      if (field.type === "checkbox") return field.checked;
      const written = field.value.trim();
      if (field.matches("select")) return written || null;
      if (!written) return gives === "matrix" ? 0 : null;
      try {
        return "several" in form.dataset ? listed(written) : calculate(written);
      } catch {
        field.setAttribute("aria-invalid", "true");
        field.focus();
        throw new py.Refused("several" in form.dataset
          ? `“${written}” is no list of whole numbers: write them with commas, such as 0, 1, or a range, such as 0–7.`
          : `“${written}” is no number: write digits, with a point for decimals, or arithmetic such as 3 * 512 / 2 or 2 * pi ** 2.`);
      }
    };
    const answer = () => {
      for (const field of fields) field.removeAttribute("aria-invalid");
      if (fields.every(blank)) return null;
      const values = fields.map(read);
      if (gives === "one") return values[0];
      if (gives === "list") return values;
      if (gives === "dictionary") return Object.fromEntries(fields.map(({ name }, i) => [name, values[i]]));
      const columns = Number(form.dataset.columns);
      return py.range(values.length / columns).map((i) => values.slice(i * columns, (i + 1) * columns));
    };
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      let verdict;
      try {
        const given = answer(), check = checks[form.dataset.check]();
        verdict = given === null && fields.every(({ type }) => type === "checkbox")
          ? { kind: "unanswered", message: "Tick at least one square." } : py.judge(check, given);
      } catch (error) {
        if (!(error instanceof py.Refused)) throw error;
        verdict = py.wrong(error.message);
      }
      said.className = `verdict ${verdict.kind}`;
      said.textContent = ""; // so that the same words are said again
      requestAnimationFrame(() => {
        said.textContent = `${{ right: "✓ Right.", wrong: "✗", unanswered: "○" }[verdict.kind]} ${verdict.message}`;
      });
    });
    form.addEventListener("input", () => said.classList.add("old"));
  }
  for (const link of document.querySelectorAll("a.to-cell")) {
    link.addEventListener("click", () => dispatchEvent(new Event("show-code")));
  }
});
