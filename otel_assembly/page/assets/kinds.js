// The color of each kind, from a palette for color blindness; neighbors also differ by a pattern.

const KINDS = [
  ["prompt", "#0072b2"], ["system", "#0072b2", "dot"],
  ["tool_schemas", "#56b4e9", "vertical_line"], ["schema", "#56b4e9", "cross"],
  ["memory", "#8a6fc7"], ["state", "#5b4a9e", "dot"], ["evidence", "#44aa99"],
  ["summary", "#f0e442", "dot"],
  ["older", "#999933", "vertical_line"], ["recent", "#c9a227"],
  ["request", "#009e73"], ["query", "#009e73", "dot"],
  ["response", "#e69f00"],
  ["tool_call", "#cc79a7", "right_diagonal_line"], ["tool_result", "#d55e00"],
  ["alert", "#882255", "diagonal_cross"],
  ["other", "#8c8c8c"], ["framing", "#b5b9c0"], ["separators", "#d3d6db", "horizontal_line"],
];
const KNOWN = new Map(KINDS.map(([name, color, pattern], rank) => [name, { name, color, pattern, rank }]));

function kind(name) {
  return KNOWN.get(name) ?? { name, color: "#777777", pattern: "criss_cross", rank: KINDS.length };
}

const LINES = {
  vertical_line: "repeating-linear-gradient(90deg,#0007 0 1px,#0000 1px 4px)",
  horizontal_line: "repeating-linear-gradient(0deg,#0007 0 1px,#0000 1px 4px)",
  right_diagonal_line: "repeating-linear-gradient(135deg,#0007 0 1px,#0000 1px 4px)",
  diagonal_cross: "repeating-linear-gradient(45deg,#fff9 0 1px,#0000 1px 4px),repeating-linear-gradient(135deg,#fff9 0 1px,#0000 1px 4px)",
  criss_cross: "repeating-linear-gradient(45deg,#fff9 0 1px,#0000 1px 4px),repeating-linear-gradient(135deg,#fff9 0 1px,#0000 1px 4px)",
  cross: "repeating-linear-gradient(90deg,#0007 0 1px,#0000 1px 4px),repeating-linear-gradient(0deg,#0007 0 1px,#0000 1px 4px)",
  dot: "radial-gradient(#0008 0 1px,#0000 1.2px)",
};

function swatch(name) {
  const { color, pattern } = kind(name);
  return el("span", {
    class: `swatch ${pattern ?? ""}`, "aria-hidden": "true",
    style: { "background-color": color, ...(pattern ? { "background-image": LINES[pattern] } : {}) },
  });
}

const kindLabel = (name) => el("span", { class: "kind" }, name === undefined ? "kind unknown" : [swatch(name), words(name)]);

function kindsOf(ledgers) {
  const names = new Set(ledgers.flatMap((ledger) => [...ledger.kinds]));
  return [...names].sort((name, otherName) => kind(name).rank - kind(otherName).rank);
}

// The most tokens of a prompt: the budget. If the budget limits only the messages, the tokens that it does not count are
// added.
const ceiling = (turn) => (turn.budget ? turn.budget + (turn.used === undefined ? 0 : Math.max(0, turn.out - turn.used)) : undefined);
const budgetUsed = (turn) => percent(turn.used ?? turn.out ?? 0, turn.budget);

// The bar of one turn: its tokens by kind, and the budget.
function fillBar(turn) {
  const most = ceiling(turn), whole = Math.max(most ?? 0, turn.out ?? 0) || 1;
  const parts = [...(turn.kinds ?? [])].sort(([name], [otherName]) => kind(name).rank - kind(otherName).rank);
  return el("div", { class: "fill", "aria-hidden": "true" },
    parts.map(([name, tokens]) => {
      const part = swatch(name);
      part.style.setProperty("width", `${(100 * tokens) / whole}%`);
      part.title = `${words(name)}: ${count(tokens)}`;
      return part;
    }),
    most && turn.out > most
      ? el("span", { class: "limit", style: { left: `${(100 * most) / turn.out}%` } }) : null);
}
