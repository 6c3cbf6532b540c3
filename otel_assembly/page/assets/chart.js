// A ledger's turns as stacked bars under the ceiling's line. BokehJS draws; what can be reached and read lies above it.

const EDGE = { left: 54, right: 10, top: 6, bottom: 22 };
const LANE = 13;

const short = (tokens) => (tokens >= 1e6 ? `${+(tokens / 1e6).toFixed(1)}M` : tokens >= 1e3 ? `${+(tokens / 1e3).toFixed(1)}k` : `${tokens}`);
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function ticks(top, wanted) {
  const rough = top / wanted, magnitude = 10 ** Math.floor(Math.log10(rough || 1));
  const step = [1, 2, 2.5, 5, 10].map((one) => one * magnitude).find((one) => one >= rough && Number.isInteger(one)) ?? 1;
  return Array.from({ length: Math.floor(top / step) + 1 }, (_, index) => index * step);
}

class Chart {
  constructor(ledger, { height, kinds, most, marks, window, on }) {
    Object.assign(this, { ledger, height, kinds, most, lanes: marks, window, on });
    this.canvas = el("div", { class: "canvas", inert: true });
    this.cursor = el("div", { class: "cursor", role: "option", id: `turn-of-${ledger.number}`, "aria-selected": "true" });
    this.layer = el("div", {
      class: "layer", role: "listbox", tabindex: "0", "aria-label": `Turns of ${ledger.name}`, "aria-orientation": "horizontal",
      "aria-activedescendant": this.cursor.id,
      onkeydown: (event) => on.key(ledger, event),
      onfocus: () => on.focus(ledger),
      onpointermove: (event) => on.hover(ledger, this.under(event), event),
      onpointerleave: () => on.hover(null),
      onclick: (event) => on.open(ledger, this.under(event)),
    }, this.cursor);
    this.box = el("div", { class: "chart", style: { height: `${height}px` } }, this.canvas, this.layer);
  }

  get width() {
    return this.box.clientWidth;
  }

  x(number) {
    const { from, to } = this.window;
    return EDGE.left + ((number - from) / (to - from)) * (this.width - EDGE.left - EDGE.right);
  }

  under(event) {
    const { from, to } = this.window;
    const place = event.clientX - this.box.getBoundingClientRect().left - EDGE.left;
    return this.ledger.nearest(Math.round(from + (place / (this.width - EDGE.left - EDGE.right)) * (to - from)));
  }

  point(turn, active) {
    const left = Math.max(EDGE.left, this.x(turn.n - 0.5)), right = Math.min(this.width - EDGE.right, this.x(turn.n + 0.5));
    const wide = Math.max(right - left, 4);
    this.cursor.style.transform = `translateX(${(left + right - wide) / 2}px)`;
    this.cursor.style.width = `${wide}px`;
    this.cursor.classList.toggle("active", active);
    this.cursor.classList.toggle("aside", right < left);
    this.cursor.setAttribute("aria-label", this.ledger.sentence(turn));
    this.cursor.setAttribute("aria-posinset", this.ledger.places.get(turn.n) + 1);
    this.cursor.setAttribute("aria-setsize", this.ledger.turns.length);
  }

  move() {
    if (!this.range) return;
    this.range.setv({ start: this.window.from, end: this.window.to });
    this.grain();
  }

  // Bars with gaps where they are wide enough for it, patterns where they can be seen.
  grain() {
    const slot = (this.width - EDGE.left - EDGE.right) / (this.window.to - this.window.from);
    const width = slot < 3 ? 1.6 : slot < 8 ? 0.9 : 0.8, hatched = slot < 5 ? 0 : 0.35;
    if (this.grained !== `${width} ${hatched}`) for (const { glyph, pattern } of this.bars) {
      glyph.width = { value: width };
      if (pattern) glyph.hatch_alpha = { value: hatched };
    }
    this.grained = `${width} ${hatched}`;
    this.ticks.ticks = this.turnTicks();
  }

  turnTicks() {
    const { from, to } = this.window, wanted = Math.max(2, Math.floor((this.width - EDGE.left) / 70));
    const step = Math.max(1, ticks(to - from, wanted)[1] ?? 1);
    const first = Math.ceil(Math.ceil(from) / step) * step;
    return Array.from({ length: Math.max(0, Math.floor((to - first) / step) + 1) }, (_, index) => first + index * step);
  }

  async draw() {
    if (this.drawing) return this.drawing;
    return (this.drawing = this.paint());
  }

  async paint() {
    const models = Bokeh.require("models/index"), { Document } = Bokeh.require("document");
    const turns = this.ledger.ordered.map((place) => this.ledger.turns[place]), xs = turns.map((turn) => turn.n);
    const ink = css("--dim"), grid = css("--line"), alarm = css("--alarm");
    const inner = this.height - EDGE.top - EDGE.bottom, lanes = this.lanes.length * LANE + (this.lanes.length ? 4 : 0);
    const top = (Math.max(1, this.most) * 1.04 * inner) / (inner - lanes);
    this.range = new models.Range1d({ start: this.window.from, end: this.window.to });
    this.ticks = new models.FixedTicker({ ticks: [] });
    const plot = new models.Plot({
      x_range: this.range, y_range: new models.Range1d({ start: 0, end: top }),
      extra_y_ranges: new Map([["lanes", new models.Range1d({ start: inner / LANE, end: 0 })]]),
      width: this.width, height: this.height, toolbar_location: null, outline_line_color: null,
      background_fill_color: null, border_fill_color: null,
      min_border_left: EDGE.left, min_border_right: EDGE.right, min_border_top: EDGE.top, min_border_bottom: EDGE.bottom,
    });
    const look = {
      axis_line_color: grid, major_tick_line_color: grid, minor_tick_line_color: null,
      major_label_text_color: ink, major_label_text_font_size: "11px", major_label_text_font: css("--sans"), major_tick_in: 0, major_tick_out: 3,
    };
    const high = ticks(this.most * 1.04, Math.max(2, Math.floor((inner - lanes) / 34)));
    const yTicker = new models.FixedTicker({ ticks: high });
    const left = new models.LinearAxis({
      ticker: yTicker, ...look, axis_line_color: null, major_tick_line_color: null,
      major_label_overrides: new Map(high.map((tick) => [tick, short(tick)])),
    });
    const bottom = new models.LinearAxis({ ticker: this.ticks, ...look, formatter: new models.BasicTickFormatter({ use_scientific: false }) });
    plot.left = [left];
    plot.below = [bottom];
    plot.center = [new models.Grid({ dimension: 1, ticker: yTicker, grid_line_color: grid })];
    const renderers = [];
    const add = (data, glyph, more = {}) => {
      renderers.push(new models.GlyphRenderer({
        data_source: new models.ColumnDataSource({ data }), view: new models.CDSView({}), glyph, ...more,
      }));
      return glyph;
    };
    this.gaps(turns, (gaps) => add(gaps, new models.Quad({
      left: { field: "left" }, right: { field: "right" }, top: { value: top }, bottom: { value: 0 },
      fill_color: { value: grid }, fill_alpha: { value: 0.25 }, line_color: { value: null },
      hatch_pattern: { value: "right_diagonal_line" }, hatch_color: { value: ink }, hatch_alpha: { value: 0.25 }, hatch_scale: { value: 8 },
    })));
    this.bars = [];
    let floor = xs.map(() => 0);
    for (const name of this.kinds) {
      const tokens = turns.map((turn) => (turn.kinds ?? []).reduce((sum, [one, many]) => sum + (one === name ? many : 0), 0));
      if (!tokens.some(Boolean)) continue;
      const ceiling = floor.map((below, index) => below + tokens[index]);
      const { color, pattern } = kind(name);
      const glyph = add({ x: xs, bottom: floor, top: ceiling }, new models.VBar({
        x: { field: "x" }, bottom: { field: "bottom" }, top: { field: "top" }, width: { value: 0.8 },
        fill_color: { value: color }, line_color: { value: null },
        hatch_pattern: { value: pattern ?? null }, hatch_color: { value: "#000000" }, hatch_alpha: { value: 0.35 }, hatch_scale: { value: 6 }, hatch_weight: { value: 1 },
      }));
      this.bars.push({ glyph, pattern });
      floor = ceiling;
    }
    const over = turns.flatMap((turn) => (turn.signals ?? []).filter((one) => one.what === "overflow" && one.tokens && turn.budget).slice(0, 1)
      .map((one) => [turn.n, turn.budget + one.tokens, turn.out ?? 0]));
    if (over.length) {
      const glyph = add({ x: over.map(([x]) => x), bottom: over.map(([, , out]) => out), top: over.map(([, need]) => Math.min(need, this.most * 1.04)) }, new models.VBar({
        x: { field: "x" }, bottom: { field: "bottom" }, top: { field: "top" }, width: { value: 0.8 },
        fill_color: { value: null }, line_color: { value: alarm }, line_dash: { value: [3, 2] }, line_width: { value: 1 },
      }));
      this.bars.push({ glyph });
    }
    const edge = { x: [], y: [] };
    for (const turn of turns) {
      edge.x.push(turn.n - 0.5, turn.n + 0.5);
      edge.y.push(turn.budget ?? NaN, turn.budget ?? NaN);
    }
    add(edge, new models.Line({ x: { field: "x" }, y: { field: "y" }, line_color: { value: css("--ink") }, line_width: { value: 1.5 }, line_dash: { value: [5, 3] } }));
    for (const [lane, mark] of this.lanes.entries()) {
      const at = turns.filter((turn) => this.ledger.marks(turn).includes(mark)).map((turn) => turn.n);
      if (at.length) add({ x: at, y: at.map(() => lane + 0.5) }, new models.Scatter({
        x: { field: "x" }, y: { field: "y" }, marker: { value: MARKS[mark].shape }, size: { value: 7 },
        fill_color: { value: css(`--mark-${mark}`) }, line_color: { value: css(`--mark-${mark}`) }, line_width: { value: mark === "overflow" ? 2 : 0.5 },
      }), { y_range_name: "lanes" });
    }
    plot.renderers = renderers;
    this.plot = plot;
    this.grain();
    const document_ = new Document();
    document_.add_root(plot);
    await Bokeh.embed.add_document_standalone(document_, refill(this.canvas));
    this.box.dataset.drawn = "";
  }

  // Turns that were not recorded leave a gap that shows.
  gaps(turns, draw) {
    const found = { left: [], right: [] };
    let before = -1;
    for (const { n } of turns) {
      if (n > before + 1) {
        found.left.push(before + 0.5);
        found.right.push(n - 0.5);
      }
      before = Math.max(before, n);
    }
    if (found.left.length) draw(found);
  }

  resize() {
    if (!this.plot || this.plot.width === this.width || !this.width) return;
    this.plot.width = this.width;
    this.grain();
  }
}
