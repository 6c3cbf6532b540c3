// The visible range of turns, which all charts of a conversation share.

// A page opens on the newest turns: all turns of a long conversation are narrower than a pixel.
const TAIL = 300;

function fit(turns = TAIL) {
  const { from, to } = ends();
  Object.assign(now.window, { from: Math.max(from, to - turns), to });
  now.tail = turns;
}

function zoom(by) {
  now.tail = null;
  const all = ends(), span = Math.min(all.to - all.from, Math.max(5, (now.window.to - now.window.from) * by));
  const middle = Math.max(all.from + span / 2, Math.min(all.to - span / 2, now.turn));
  Object.assign(now.window, { from: middle - span / 2, to: middle + span / 2 });
  moved();
}

function reveal() {
  const { from, to } = now.window, all = ends();
  if (now.turn - 0.5 >= from && now.turn + 0.5 <= to) return;
  now.tail = null;
  const span = to - from, middle = Math.max(all.from + span / 2, Math.min(all.to - span / 2, now.turn));
  Object.assign(now.window, { from: middle - span / 2, to: middle + span / 2 });
  moved();
}

let sliding = false;
function slid() {
  if (sliding) { sliding = false; return; }
  const all = ends(), span = now.window.to - now.window.from, room = parts.slide.scrollWidth - parts.slide.clientWidth;
  if (room <= 0) return;
  const from = all.from + (parts.slide.scrollLeft / room) * (all.to - all.from - span);
  now.tail = null;
  Object.assign(now.window, { from, to: from + span });
  moved(true);
}

// Keeps the newest turns in sight when turns were added, if they were in sight before: `to` was the end.
function followEnd(to) {
  const all = ends(), { from, to: right } = now.window;
  if (now.tail) fit(now.tail);
  else if (right >= to - 0.01) Object.assign(now.window, { from: Math.max(all.from, all.to - (right - from)), to: all.to });
}

let frame = null;
function moved(bySliding = false) {
  cancelAnimationFrame(frame);
  frame = requestAnimationFrame(() => {
    for (const chart of charts) chart.move();
    layout(bySliding);
    point();
    for (const node of document.querySelectorAll(".strip")) node.place();
  });
}

function layout(bySliding = false) {
  const all = ends(), part = (now.window.to - now.window.from) / (all.to - all.from);
  parts.slide.hidden = now.table || part > 0.999;
  parts.zoom.hidden = now.table || all.to - all.from < 12;
  if (parts.slide.hidden || bySliding) return;
  parts.slideInner.style.width = `${100 / part}%`;
  const room = parts.slide.scrollWidth - parts.slide.clientWidth;
  const to = Math.round(((now.window.from - all.from) / (all.to - all.from - (now.window.to - now.window.from))) * room);
  if (Math.abs(to - parts.slide.scrollLeft) > 1) { sliding = true; parts.slide.scrollLeft = to; }
}
