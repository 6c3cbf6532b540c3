// Elements are built from text nodes and attributes only, so that texts from spans are never parsed as markup.

const byId = (id) => document.getElementById(id);

function el(tag, props = {}, ...children) {
  const svg = tag === "svg" || tag === "path";
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, to] of Object.entries(value)) made.style.setProperty(key, to);
    else made.setAttribute(name, value === true ? "" : value);
  }
  fill(made, children);
  return made;
}

function fill(parent, children) {
  for (const child of children.flat(4)) {
    if (child === null || child === undefined || child === false) continue;
    parent.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return parent;
}

function refill(parent, ...children) {
  parent.replaceChildren();
  return fill(parent, children);
}

const count = (number) => (number === null || number === undefined ? "unknown" : number.toLocaleString("en-US"));
const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;
const percent = (part, whole) => `${((100 * part) / whole).toFixed(1)}\u00a0%`;

// Captured text can change the direction of writing: bdi isolates it.
const foreign = (text, tag = "bdi", props = {}) => el(tag, { dir: "auto", ...props }, text);

let lastSaid = null;
function say(text) {
  clearTimeout(lastSaid);
  // Wait, so that quick key presses do not interrupt a screen reader each time.
  lastSaid = setTimeout(() => refill(byId("said"), text), 150);
}

const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
const intoView = (node) => node.scrollIntoView({ block: "nearest", behavior: still() ? "auto" : "smooth" });

function remember(name, value) {
  try {
    if (value === undefined) return localStorage.getItem(`otel-assembly-${name}`);
    localStorage.setItem(`otel-assembly-${name}`, value);
  } catch {
    // A browser may forbid local storage for pages from files.
  }
  return null;
}
