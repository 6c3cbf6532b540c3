// Ledgers from the spans: the state of each item on each turn, including unknown states.

// "first" and "resumed" are not breaks: there is no previous prompt, or it belongs to another process.
const isBroken = (turn) => Boolean(turn.break) && turn.break !== "first" && turn.break !== "resumed";

// Item ids are numbers, with the prefix m if a policy made the item. A run is "first-last".
const idOf = (id) => (id[0] === "m" ? [true, Number(id.slice(1))] : [false, Number(id)]);
const idText = (made, number) => `${made ? "m" : ""}${number}`;
const byItem = (id, otherId) => idOf(id)[0] - idOf(otherId)[0] || idOf(id)[1] - idOf(otherId)[1];

const parse = (runs) => (runs ?? []).map((run) => {
  const [first, last = first] = run.split("-");
  return [...idOf(first), idOf(last)[1]];
});
const among = (runs, [made, number]) => runs.some((run) => run[0] === made && run[1] <= number && number <= run[2]);
const size = (runs) => parse(runs).reduce((sum, [, first, last]) => sum + last - first + 1, 0);

function expand(runs) {
  const ids = [];
  for (const [made, first, last] of parse(runs)) for (let number = first; number <= last; number++) ids.push(idText(made, number));
  return ids;
}

// The last entry at or before a turn. Entries are [number of the turn, value], sorted by number.
function at(entries, number) {
  let low = 0, high = (entries ?? []).length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (entries[middle][0] <= number) low = middle + 1;
    else high = middle;
  }
  return low ? entries[low - 1] : null;
}

const MARKS = {
  overflow: { symbol: "✖", label: "overflow" },
  halt: { symbol: "■", label: "halt" },
  error: { symbol: "●", label: "policy error" },
  alert: { symbol: "▲", label: "alert" },
  compacted: { symbol: "◆", label: "compacted" },
  dropped: { symbol: "▼", label: "dropped" },
};

// Turns are sorted by number. Each value that depends on all turns is updated when a turn is added.
class Ledger {
  constructor(raw, number, twins) {
    this.raw = raw;
    this.number = number;
    this.turns = [];
    this.places = new Map();
    this.items = new Map();
    this.kinds = new Set();
    this.sums = this.followed = null;
    this.name = (raw.name ?? (raw.agent ? `agent ${raw.agent}` : raw.framework ? `calls of ${raw.framework}` : "unnamed assembler")) + (twins ? ` (${twins + 1})` : "");
  }

  get first() {
    return this.turns.length ? this.turns[0].n : 0;
  }

  get last() {
    return this.turns.length ? this.turns.at(-1).n : 0;
  }

  // Adds turns and items, in any order; a turn or an item that is known is replaced.
  add(turns, items) {
    for (const item of items) this.items.set(item.o, item);
    let sorted = true;
    for (const turn of turns) {
      for (const [name] of turn.kinds ?? []) this.kinds.add(name);
      const place = this.places.get(turn.n);
      if (place !== undefined) {
        this.turns[place] = turn;
        this.sums = this.followed = null;
        continue;
      }
      sorted &&= !this.turns.length || turn.n > this.turns.at(-1).n;
      this.places.set(turn.n, this.turns.push(turn) - 1);
      if (this.sums) this.sum(this.sums, turn);
    }
    if (!sorted) this.sort();
  }

  // Removes the turns before a number, and the items that arrived in them.
  trim(first) {
    this.turns = this.turns.filter(({ n }) => n >= first);
    for (const [id, { t }] of this.items) if (t < first) this.items.delete(id);
    this.sums = null;
    this.sort();
  }

  sort() {
    this.followed = null;
    this.turns.sort((turn, nextTurn) => turn.n - nextTurn.n);
    this.places = new Map(this.turns.map(({ n }, place) => [n, place]));
  }

  turn(number) {
    return this.turns[this.places.get(number)];
  }

  // The place of the first turn with at least this number.
  place(number) {
    let low = 0, high = this.turns.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.turns[middle].n < number) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  // The recorded turn that is nearest to a number; null if there is none.
  nearest(number) {
    const place = this.place(number), before = this.turns[place - 1], after = this.turns[place];
    if (!before || !after) return (before ?? after)?.n ?? null;
    return number - before.n <= after.n - number ? before.n : after.n;
  }

  // The number of the recorded turn that is `by` recorded turns after another one.
  step(number, by) {
    const here = this.places.get(this.nearest(number));
    return this.turns[Math.max(0, Math.min(this.turns.length - 1, here + by))].n;
  }

  item(id) {
    return this.items.get(id) ?? { o: id };
  }

  // A turn's runs, parsed once.
  runs(turn) {
    return turn.runs ??= {
      offered: parse(turn.offered), kept: parse(turn.kept),
      steps: (turn.steps ?? []).map((step) => ({
        policy: step.policy, index: step.index, made: parse(step.made),
        lists: [...(step.drops ?? []).map(([reason, runs]) => ({ word: "dropped", reason, runs: parse(runs) })), { word: "compacted", reason: "compacted", runs: parse(step.gone) }],
        rest: step.rest ?? [],
      })).reverse(),
    };
  }

  // The state of an item on a turn; null if the turn does not mention it. An item that no policy lists was dropped by a policy with an incomplete list.
  said(id, turn) {
    const item = idOf(id), { offered, kept, steps } = this.runs(turn);
    if (turn.unsent) return among(offered, item) ? { word: "not sent", in: false } : null;
    if (among(kept, item)) return { word: "in prompt", in: true };
    let made = false;
    for (const { policy, index, lists, made: put } of steps) {
      const list = lists.find(({ runs }) => among(runs, item));
      if (list) return { word: list.word, in: false, reason: list.reason, policy, index };
      if ((made = among(put, item))) break;
    }
    if (!made && !among(offered, item)) return null;
    const some = steps.flatMap(({ policy, index, rest }) => rest.map((reason) => ({ word: "dropped", in: false, reason, policy, index })));
    if (some.length === 1 && !turn.partial) return some[0];
    return { word: "left", in: false, reason: null, some: turn.partial ? [] : some };
  }

  // The state of an item on a turn. If several policies may have dropped it, an earlier turn can name the policy.
  state(id, place) {
    const ownState = this.said(id, this.turns[place]);
    if (!ownState?.some?.length) return ownState;
    for (const turn of this.before(place)) {
      const state = this.said(id, turn);
      if (state?.some?.length) continue;
      return ownState.some.find((candidate) => same(candidate, state)) ?? ownState;
    }
    return ownState;
  }

  // The turns before a turn that sent a prompt, the newest first, up to the first turn that is missing in the spans.
  *before(place) {
    for (; place > 0 && this.turns[place - 1].n === this.turns[place].n - 1; place--) if (!this.turns[place - 1].unsent) yield this.turns[place - 1];
    return place;
  }

  // The first turn of an item's current state; with ≤ if the turn before is missing.
  since(id, place) {
    const state = this.state(id, place);
    let first = this.turns[place].n, last = place;
    for (const turn of this.before(place)) {
      const was = this.said(id, turn);
      if (!same(state, was) && !was?.some?.some((candidate) => same(state, candidate))) return String(first);
      first = turn.n;
      last = this.places.get(first);
    }
    while (last > 0 && this.turns[last - 1].n === this.turns[last].n - 1) last--;
    return this.turns[last].n === 0 ? String(first) : `≤ ${first}`;
  }

  tokens(id, place) {
    return at(this.item(id).n, this.turns[place].n)?.[1] ?? null;
  }

  // Ranges of turns with the same state of an item; turns that were not recorded have the state undefined. The ranges
  // of the item that was asked for last are kept, and extended when turns are added.
  stretches(item) {
    if (this.followed?.item !== item.o) this.followed = { item: item.o, place: 0, ranges: [] };
    const known = this.followed, { ranges } = known;
    for (; known.place < this.turns.length; known.place++) {
      const turn = this.turns[known.place], before = this.turns[known.place - 1]?.n;
      const state = this.state(item.o, known.place);
      const from = before === undefined ? this.first : before + 1;
      if (before !== undefined && turn.n > from) ranges.push({ from, to: turn.n - 1, state: undefined });
      const last = ranges.at(-1);
      if (last && last.state !== undefined && same(last.state, state)) last.to = turn.n;
      else ranges.push({ from: turn.n, to: turn.n, state });
    }
    return ranges.filter((range) => range.state !== null);
  }

  marks(turn) {
    return turn.marks ??= Object.keys(MARKS).filter((mark) =>
      mark === "dropped" ? turn.new
        : mark === "compacted" ? turn.replaced
          : (turn.signals ?? []).some((signal) => signal.what === mark));
  }

  totals() {
    if (this.sums) return this.sums;
    this.sums = { marks: {}, left: 0, breaks: 0, unsent: 0, peak: 0, needs: 0, ceiling: 0, budgets: new Set(), limits: new Set() };
    for (const turn of this.turns) this.sum(this.sums, turn);
    return this.sums;
  }

  sum(sums, turn) {
    for (const mark of this.marks(turn)) sums.marks[mark] = (sums.marks[mark] ?? 0) + 1;
    sums.left += turn.new ?? 0;
    sums.breaks += isBroken(turn) ? 1 : 0;
    sums.unsent += turn.unsent ? 1 : 0;
    if (turn.budget) (turn.used === undefined ? sums.budgets : sums.limits).add(turn.budget);
    sums.ceiling = Math.max(sums.ceiling, ceiling(turn) ?? 0);
    sums.peak = Math.max(sums.peak, turn.out ?? 0);
    sums.needs = Math.max(sums.needs, turn.needs ?? 0);
  }

  // The top of the chart's scale. It includes the needed tokens of overflows, up to four times everything else.
  get top() {
    const { peak, needs, ceiling } = this.totals(), rest = Math.max(peak, ceiling);
    return Math.max(rest, Math.min(needs, 4 * rest));
  }

  get overflow() {
    return this.turns.find((turn) => this.marks(turn).includes("overflow"));
  }

  // A turn in one sentence, for screen readers and tooltips.
  sentence(turn) {
    const said = [`Turn ${turn.n}`];
    if (turn.unsent) said.push("nothing was sent");
    else if (turn.budget && turn.used === undefined) said.push(`${count(turn.out)} of ${count(turn.budget)} tokens, ${budgetUsed(turn)}`);
    else if (turn.budget) said.push(`${count(turn.out)} tokens`, `messages ${count(turn.used)} of ${count(turn.budget)}, ${budgetUsed(turn)}`);
    else said.push(`${count(turn.out)} tokens, no budget`);
    if (turn.needs) said.push(`needed ${count(turn.needs)}`);
    if (turn.new) said.push(`${plural(turn.new, "item")} dropped`);
    if (turn.resumed) said.push(`${plural(turn.resumed, "item")} dropped before this ledger resumed`);
    if (turn.replaced) said.push(`${plural(size(turn.replaced), "item")} compacted`);
    if (isBroken(turn)) said.push(`cached prefix broke, ${words(turn.break)}`);
    for (const mark of this.marks(turn)) if (!["dropped", "compacted"].includes(mark)) said.push(MARKS[mark].label);
    if (turn.partial) said.push("some spans are missing");
    return said.join("; ");
  }
}

const same = (state, otherState) => ["word", "reason", "policy", "index"].every((name) => state?.[name] === otherState?.[name]);

const words = (name) => String(name).replaceAll("_", " ");

const REASONS = {
  not_conversation: "is not part of the conversation",
  outside_window: "lies outside the window",
  over_budget: "did not fit the budget",
  below_floor: "belongs to a block that fell below its minimum",
  low_rank: "ranked too low",
  orphaned_tool_result: "is a tool result without its call",
  orphaned_tool_call: "is a tool call without a result",
  orphaned_reasoning: "is reasoning without its next item, or an item without its reasoning",
  before_user_message: "came before the first user message, with which the prompt has to start",
  duplicate: "repeats another item",
  forbidden_scope: "is out of scope",
  stale: "has a newer version",
  compacted: "is covered by a summary",
  policy: "was dropped by a policy that gave no reason",
  policy_error: "was dropped by a policy that failed",
};

function why(state) {
  if (state.in) return "in the prompt";
  if (state.word === "not sent") return "offered; no prompt was sent";
  if (state.reason === null) return `not in the prompt; ${state.some.length ? `dropped by one of: ${state.some.map(({ reason, policy }) => `${policy} (${reason})`).join(", ")}` : "the spans do not record why"}`;
  const verb = REASONS[state.reason] ?? words(state.reason);
  return `${state.word}: ${verb}${state.policy ? ` (${state.reason}, ${state.policy})` : ` (${state.reason})`}`;
}
