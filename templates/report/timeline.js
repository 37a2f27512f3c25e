"use strict";
// The timeline: streams, ranges and gaps of the shown ranks on one canvas, to zoom into as in Perfetto.
// The bytes are harness/report/timeline/encode.py's. Times here are ticks (unit_ns nanoseconds) since the first shown step.

const Timeline = {
  GUTTER: 158, RULER: 40, MOST_HEIGHT: 640, MOST_ON_PAPER: 760, SMALLEST_SPAN_NS: 50, DENSE_PX: 2,
  HEIGHTS: { title: 24, ranges: 16, idle: 11, stream: 20 },
  PASTELS: ["#c3d4e4", "#d8cbe6", "#cfe0cb", "#e7d9bd", "#c9dfdf", "#dcd3cb"],
  NAMED: [[/forward/i, "#bcd6ee"], [/backward/i, "#d3bfe4"], [/optim|adam|sgd|zero_grad|scheduler/i, "#c5dfbf"],
          [/data|load|batch_gen|fetch/i, "#ecc4da"], [/step|iter|batch|epoch/i, "#d9dde2"], [/nccl|gloo|send|recv|reduce|gather/i, "#f3d3a5"]],
  view: { from: 0, to: 1, scroll: 0 }, shown: new Set(), rows: [], held: new Set(), hover: null, chosen: null, area: null, frames: 0,

  // --- reading ---------------------------------------------------------------------------------------------

  read(bytes) {
    const size = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
    const head = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + size)));
    const total = head.strips.reduce((sum, strip) => sum + strip.lanes.reduce((n, lane) => n + lane.n, 0), 0);
    let at = 4 + size;
    const column = () => {
      const values = new Uint32Array(total);
      for (let i = 0; i < total; i++) {
        values[i] = bytes[at + i] | (bytes[at + total + i] << 8) | (bytes[at + 2 * total + i] << 16) | (bytes[at + 3 * total + i] << 24);
      }
      at += 4 * total;
      return values;
    };
    const delta = column(), length = column(), text = column(), code = bytes.subarray(at, at + total);
    let row = 0;
    for (const strip of head.strips) {
      for (const lane of strip.lanes) {
        lane.start = new Float64Array(lane.n);
        lane.end = new Float64Array(lane.n);
        let now = strip.begin;
        for (let i = 0; i < lane.n; i++) {
          now += delta[row + i];
          lane.start[i] = now;
          lane.end[i] = now + length[row + i];
        }
        lane.text = text.subarray(row, row + lane.n);
        lane.code = code.subarray(row, row + lane.n);
        lane.strip = strip;
        row += lane.n;
      }
    }
    Object.assign(Timeline, head);
    Timeline.whole = [Math.min(...head.strips.map((s) => s.window[0])), Math.max(...head.strips.map((s) => s.window[1]))];
  },

  // Time per kind up to each interval: any stretch is then summed in one subtraction per kind.
  sums(lane) {
    if (lane.sums) return lane.sums;
    const codes = [...new Set(lane.code)];
    lane.sums = codes.map((code) => {
      const sum = new Float64Array(lane.n + 1);
      for (let i = 0; i < lane.n; i++) sum[i + 1] = sum[i] + (lane.code[i] === code ? lane.end[i] - lane.start[i] : 0);
      return [code, sum];
    });
    return lane.sums;
  },

  // First index whose value is above `limit`.
  above(values, limit, low = 0) {
    let high = values.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (values[middle] > limit) high = middle; else low = middle + 1;
    }
    return low;
  },

  color(lane, i) {
    if (lane.group === "idle") return Timeline.causes[lane.code[i]][1];
    return lane.group === "ranges" ? Timeline.rangeColor(lane.text[i]) : Timeline.kinds[lane.code[i]][1];
  },

  rangeColors: new Map(),
  rangeColor(text) {
    let color = Timeline.rangeColors.get(text);
    if (!color) {
      const name = Timeline.texts[text];
      const named = Timeline.NAMED.find(([pattern]) => pattern.test(name));
      let hash = 0;
      for (const c of name.replace(/\d+/g, "")) hash = (hash * 31 + c.charCodeAt(0)) >>> 0;
      color = named ? named[1] : Timeline.PASTELS[hash % Timeline.PASTELS.length];
      Timeline.rangeColors.set(text, color);
    }
    return color;
  },

  // --- layout and drawing ----------------------------------------------------------------------------------

  layout() {
    const rows = [];
    let y = 0;
    Timeline.strips.forEach((strip, index) => {
      if (!Timeline.shown.has(index)) return;
      rows.push({ title: Timeline.name(strip), y, height: Timeline.HEIGHTS.title });
      y += Timeline.HEIGHTS.title;
      for (const lane of strip.lanes) {
        const height = Timeline.HEIGHTS[lane.group];
        rows.push({ lane, y, height });
        y += height + (lane.group === "ranges" ? 1 : 3);
      }
      y += 8;
    });
    Timeline.rows = rows;
    Timeline.content = y;
    Timeline.height = Math.min(Paper.on ? Timeline.MOST_ON_PAPER : Timeline.MOST_HEIGHT, Timeline.RULER + y);
    Timeline.canvas.style.height = Timeline.height + "px";
    Timeline.resize();
  },

  name(strip) {
    const file = strip.path.split("/").pop();
    const who = strip.rank === null ? file : "rank " + strip.rank;
    return [who, "device " + Timeline.devices(strip), strip.host].filter(Boolean).join(" · ");
  },

  devices(strip) { return [...new Set(strip.lanes.map((lane) => lane.device).filter((device) => device >= 0))].join(", "); },

  resize() {
    const ratio = Paper.on ? 2 : window.devicePixelRatio || 1;
    Timeline.width = Paper.on ? Paper.WIDTH : Timeline.canvas.clientWidth;
    Timeline.GUTTER = Timeline.width < 520 ? 96 : 158;
    Timeline.canvas.width = Math.round(Timeline.width * ratio);
    Timeline.canvas.height = Math.round(Timeline.height * ratio);
    Timeline.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    Timeline.ask();
  },

  // A changed canvas is empty until it is drawn, and paper waits for no frame.
  forPaper() {
    Timeline.ink = null;
    Timeline.hover = null;
    Timeline.tell(null);
    Timeline.scroll(0);
    Timeline.layout();
    Timeline.draw();
    Timeline.sayNotes();
  },

  sayNotes() {
    const cut = Paper.on && Timeline.content > Timeline.height - Timeline.RULER;
    const notes = [...Timeline.notes, ...(cut ? ["the other rows do not fit on paper"] : [])];
    document.getElementById("timeline-notes").textContent = notes.join("; ");
  },

  ask() {
    if (Timeline.asked) return;
    Timeline.asked = true;
    requestAnimationFrame((now) => {
      Timeline.asked = false;
      Timeline.move(now);
      Timeline.draw();
    });
  },

  x(time) { return Timeline.GUTTER + (time - Timeline.view.from) * Timeline.scale; },
  time(x) { return Timeline.view.from + (x - Timeline.GUTTER) / Timeline.scale; },

  draw() {
    const { context: g, view, width, height, RULER } = Timeline;
    Timeline.frames++;
    Timeline.scale = (width - Timeline.GUTTER) / (view.to - view.from);
    Timeline.ink ??= Object.fromEntries(["text", "soft", "line", "card", "mark"].map((name) => [name, Theme.color(name)]));
    g.fillStyle = Timeline.ink.card;
    g.fillRect(0, 0, width, height);
    g.fillStyle = Timeline.ink.line; // below the titles, which may be longer than the labels' column
    g.fillRect(Timeline.GUTTER - 1, RULER, 1, height);
    g.font = "11px system-ui, 'DejaVu Sans', sans-serif";
    g.textBaseline = "middle";
    g.save();
    g.beginPath();
    g.rect(0, RULER, width, height - RULER);
    g.clip();
    for (const row of Timeline.rows) {
      const y = RULER + row.y - view.scroll;
      if (y + row.height < RULER || y > height) continue;
      if (row.title) Timeline.drawTitle(row, y); else Timeline.drawLane(row.lane, y, row.height);
    }
    Timeline.drawMarks();
    g.restore();
    Timeline.drawRuler();
    Timeline.drawScrollbar();
  },

  drawTitle(row, y) {
    const { context: g, ink, width } = Timeline;
    g.fillStyle = ink.mark;
    g.fillRect(0, y, width, row.height - 4);
    g.fillStyle = ink.text;
    g.font = "600 12px system-ui, 'DejaVu Sans', sans-serif";
    g.fillText(row.title, 8, y + row.height / 2 - 2);
    g.font = "11px system-ui, 'DejaVu Sans', sans-serif";
  },

  drawLane(lane, y, height) {
    const { context: g, view, scale, GUTTER, width } = Timeline;
    if (lane.label) {
      g.fillStyle = Timeline.ink.soft;
      g.fillText(Timeline.fit(lane.label, GUTTER - 16), 12, y + height / 2);
    }
    g.save();
    g.beginPath();
    g.rect(GUTTER, y, width - GUTTER, height);
    g.clip();
    let i = Timeline.above(lane.end, view.from);
    let run = null; // neighbouring columns that look alike, drawn as one rectangle
    const flush = () => {
      if (run) {
        g.fillStyle = run.color;
        g.fillRect(run.x, y + height - run.tall, run.width, run.tall);
        run = null;
      }
    };
    while (i < lane.n && lane.start[i] < view.to) {
      const left = GUTTER + (lane.start[i] - view.from) * scale, wide = (lane.end[i] - lane.start[i]) * scale;
      if (wide >= Timeline.DENSE_PX) {
        flush();
        Timeline.drawOne(lane, i, left, wide, y, height);
        i++;
        continue;
      }
      const column = Math.floor(left), edge = Timeline.time(column + 1);
      let next = Math.max(Timeline.above(lane.start, edge, i), i + 1);
      // The last to begin in this column may reach far beyond it: that one is drawn by itself.
      if (next > i + 1 && (lane.end[next - 1] - lane.start[next - 1]) * scale >= Timeline.DENSE_PX) next--;
      const [color, share] = Timeline.column(lane, i, next);
      const tall = Math.max(2, Math.round(height * Math.min(1, 0.25 + 0.75 * share * scale)));
      if (run && run.x + run.width === column && run.color === color && run.tall === tall) run.width++;
      else {
        flush();
        run = { x: column, width: 1, color, tall };
      }
      i = next;
    }
    flush();
    g.restore();
  },

  // The colour that most of the time in [i, next) has, and that time in all.
  column(lane, i, next) {
    if (next === i + 1) return [Timeline.color(lane, i), lane.end[i] - lane.start[i]];
    let most = -1, best = 0, total = 0;
    for (const [code, sum] of Timeline.sums(lane)) {
      const time = sum[next] - sum[i];
      total += time;
      if (time > most) { most = time; best = code; }
    }
    if (lane.group === "ranges") return [Timeline.color(lane, i), total];
    return [(lane.group === "idle" ? Timeline.causes : Timeline.kinds)[best][1], total];
  },

  drawOne(lane, i, left, wide, y, height) {
    const { context: g, GUTTER, width } = Timeline;
    // Whole pixels: edges between them would have to be blended, which costs more than all else.
    const x = Math.round(Math.max(left, GUTTER - 2)), w = Math.max(Math.round(Math.min(left + wide, width + 2)) - x, 1);
    g.fillStyle = Timeline.color(lane, i);
    g.fillRect(x, y, w > 4 ? w - 1 : w, height);
    if (w > 34 && height > 12) {
      g.fillStyle = lane.group === "stream" && Timeline.isDark(Timeline.kinds[lane.code[i]][1]) ? "#ffffff" : "#14181d";
      g.fillText(Timeline.fit(Timeline.texts[lane.text[i]], w - 8), x + 4, y + height / 2 + 0.5);
    }
  },

  isDark(color) {
    const [r, green, b] = [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
    return 0.3 * r + 0.59 * green + 0.11 * b < 140;
  },

  fit(text, width) {
    const most = Math.floor(width / 6);
    return text.length <= most ? text : most < 3 ? "" : text.slice(0, most - 1) + "…";
  },

  drawMarks() {
    const { context: g, height, RULER, view, GUTTER, width } = Timeline;
    g.save();
    g.beginPath();
    g.rect(GUTTER, RULER, width - GUTTER, height);
    g.clip();
    const first = Timeline.strips.find((_, index) => Timeline.shown.has(index));
    if (first) {
      g.strokeStyle = Timeline.ink.soft;
      g.globalAlpha = 0.5;
      g.setLineDash([2, 3]);
      g.beginPath();
      for (const [, start] of first.steps) {
        if (start < view.from || start > view.to) continue;
        const x = Math.round(Timeline.x(start)) + 0.5;
        g.moveTo(x, RULER);
        g.lineTo(x, height);
      }
      g.stroke();
      g.setLineDash([]);
      g.globalAlpha = 1;
    }
    for (const [mark, line] of [[Timeline.hover, 1], [Timeline.chosen, 2]]) {
      const row = mark && Timeline.rows.find((r) => r.lane === mark.lane);
      if (!row) continue;
      const x = Timeline.x(mark.lane.start[mark.i]), w = (mark.lane.end[mark.i] - mark.lane.start[mark.i]) * Timeline.scale;
      g.strokeStyle = Timeline.ink.text;
      g.lineWidth = line;
      g.strokeRect(Math.max(x, GUTTER - 4), RULER + row.y - view.scroll, Math.min(Math.max(w, 2), width + 8), row.height);
    }
    if (Timeline.area) {
      const [a, b] = [Timeline.x(Timeline.area.from), Timeline.x(Timeline.area.to)];
      g.fillStyle = Timeline.ink.text;
      g.globalAlpha = 0.1;
      g.fillRect(Math.min(a, b), RULER, Math.abs(b - a), height);
      g.globalAlpha = 1;
    }
    g.restore();
  },

  drawRuler() {
    const { context: g, ink, width, view, GUTTER, RULER } = Timeline;
    g.fillStyle = ink.card;
    g.fillRect(0, 0, width, RULER);
    g.strokeStyle = ink.line;
    g.beginPath();
    g.moveTo(0, RULER - 0.5);
    g.lineTo(width, RULER - 0.5);
    g.moveTo(GUTTER - 0.5, 0);
    g.lineTo(GUTTER - 0.5, RULER);
    g.stroke();
    const span = (view.to - view.from) * Timeline.unit_ns;
    const rough = span / Math.max((width - GUTTER) / 110, 1);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
    g.fillStyle = ink.soft;
    for (let t = Math.ceil(view.from * Timeline.unit_ns / step) * step; t <= view.to * Timeline.unit_ns; t += step) {
      const x = Timeline.x(t / Timeline.unit_ns);
      g.fillRect(x, RULER - 6, 1, 6);
      g.fillText(Timeline.clock(t, step), x + 3, RULER - 9);
    }
    const first = Timeline.strips.find((_, index) => Timeline.shown.has(index));
    let free = GUTTER;
    for (const [name, start, end] of first ? first.steps : []) {
      const x = Math.max(Timeline.x(start), GUTTER), wide = Math.min(Timeline.x(end), width) - x;
      if (wide < 24 || x < free) continue;
      g.fillStyle = ink.text;
      g.fillText(Timeline.fit(name, wide - 4), x + 3, 10);
      free = x + 20;
    }
    g.fillStyle = ink.soft;
    g.fillText("time", 12, RULER - 9);
  },

  drawScrollbar() {
    const { context: g, height, RULER, view, width, content } = Timeline;
    const shown = height - RULER;
    if (content <= shown) return;
    g.fillStyle = Timeline.ink.soft;
    g.globalAlpha = 0.5;
    g.fillRect(width - 6, RULER + view.scroll / content * shown, 4, shown * shown / content);
    g.globalAlpha = 1;
  },

  clock(ns, step) {
    const [size, unit] = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]].find(([s]) => Math.max(Math.abs(ns), step) >= s) || [1, "ns"];
    const digits = Math.max(0, Math.min(6, Math.ceil(-Math.log10(step / size) - 1e-9)));
    return (ns / size).toFixed(digits) + " " + unit;
  },

  duration(ticks) {
    const ns = ticks * Timeline.unit_ns;
    const [size, unit] = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]].find(([s]) => ns >= s) || [1, "ns"];
    return (ns / size).toPrecision(ns / size >= 100 ? 4 : 3).replace(/^(\d{4,})\.$/, "$1") + " " + unit;
  },

  // --- what is under the pointer ---------------------------------------------------------------------------

  pick(x, y) {
    if (x < Timeline.GUTTER || y < Timeline.RULER) return null;
    const at = y - Timeline.RULER + Timeline.view.scroll;
    const row = Timeline.rows.find((r) => r.lane && at >= r.y && at < r.y + r.height);
    if (!row) return null;
    const { lane } = row, time = Timeline.time(x), reach = 2.5 / Timeline.scale;
    let i = Timeline.above(lane.end, time);
    if (i < lane.n && lane.start[i] <= time) return { lane, i };
    const near = [i - 1, i].filter((k) => k >= 0 && k < lane.n && lane.start[k] - time < reach && time - lane.end[k] < reach);
    return near.length ? { lane, i: near[0] } : null;
  },

  describe({ lane, i }) {
    const step = lane.strip.steps.findLast(([, start, end]) => lane.start[i] >= start && lane.start[i] < end);
    const since = step ? Timeline.clock((lane.start[i] - step[1]) * Timeline.unit_ns, 1) + " into " + step[0] : "";
    const kind = lane.group === "stream" ? Timeline.kinds[lane.code[i]][0] : lane.group === "ranges" ? "range" : "gap";
    return [Timeline.texts[lane.text[i]], Timeline.duration(lane.end[i] - lane.start[i]) + " · " + kind + (lane.label ? " · " + lane.label : ""), since, Timeline.name(lane.strip)].filter(Boolean);
  },

  tell(mark, x, y) {
    const box = Timeline.tooltip;
    box.hidden = !mark;
    if (!mark) return;
    box.replaceChildren(...Timeline.describe(mark).map((line) => Object.assign(document.createElement("div"), { textContent: line })));
    const left = Math.min(x + 14, Timeline.width - box.offsetWidth - 4);
    box.style.left = Math.max(left, 4) + "px";
    box.style.top = y + 18 + "px";
  },

  choose(mark) {
    Timeline.chosen = mark;
    Timeline.area = null;
    Timeline.said.replaceChildren(...(mark ? Timeline.describe(mark) : [Timeline.HINT]).map((line) => Object.assign(document.createElement("div"), { textContent: line })));
    Timeline.ask();
  },

  // Time per kind inside a stretch, for each shown process: exact, cut at the edges.
  totals(from, to) {
    return Timeline.strips.filter((_, index) => Timeline.shown.has(index)).map((strip) => {
      const parts = new Map();
      for (const lane of strip.lanes) {
        if (lane.group === "ranges") continue;
        const first = Timeline.above(lane.end, from), last = Timeline.above(lane.start, to, first);
        for (const [code, sum] of Timeline.sums(lane)) {
          let time = sum[last] - sum[first];
          if (last > first) {
            if (lane.code[first] === code) time -= Math.max(from - lane.start[first], 0);
            if (lane.code[last - 1] === code) time -= Math.max(lane.end[last - 1] - to, 0);
          }
          const name = lane.group === "idle" ? "idle: " + strip.causes[code] : Timeline.kinds[code][0];
          if (time > 0) parts.set(name, (parts.get(name) || 0) + time);
        }
      }
      return [strip, [...parts].sort((a, b) => b[1] - a[1])];
    });
  },

  sayArea() {
    const from = Math.min(Timeline.area.from, Timeline.area.to), to = Math.max(Timeline.area.from, Timeline.area.to);
    const lines = [Timeline.duration(to - from) + " selected. F zooms into it, Esc clears it"];
    for (const [strip, parts] of Timeline.totals(from, to)) {
      lines.push(Timeline.name(strip) + ": " + (parts.map(([name, time]) => name + " " + Timeline.duration(time)).join(", ") || "nothing"));
    }
    Timeline.said.replaceChildren(...lines.map((line) => Object.assign(document.createElement("div"), { textContent: line })));
  },

  // --- moving ----------------------------------------------------------------------------------------------

  go(from, to) {
    const [low, high] = Timeline.whole, room = (high - low) * 0.05;
    const span = Math.min(Math.max(to - from, Timeline.SMALLEST_SPAN_NS / Timeline.unit_ns), high - low + 2 * room);
    from = Math.min(Math.max(from, low - room), high + room - span);
    Timeline.view.from = from;
    Timeline.view.to = from + span;
    Timeline.ask();
  },

  zoom(factor, x = (Timeline.GUTTER + Timeline.width) / 2) {
    const time = Timeline.time(Math.max(x, Timeline.GUTTER)), { from, to } = Timeline.view;
    const span = Math.max((to - from) / factor, Timeline.SMALLEST_SPAN_NS / Timeline.unit_ns);
    const share = (time - from) / (to - from);
    Timeline.go(time - share * span, time + (1 - share) * span);
  },

  pan(share) {
    const { from, to } = Timeline.view;
    Timeline.go(from + share * (to - from), to + share * (to - from));
  },

  scroll(pixels) {
    const most = Math.max(0, Timeline.content - (Timeline.height - Timeline.RULER));
    const before = Timeline.view.scroll;
    Timeline.view.scroll = Math.min(Math.max(before + pixels, 0), most);
    Timeline.ask();
    return Timeline.view.scroll !== before;
  },

  fitAll() { Timeline.go(...Timeline.whole); },

  focusChosen() {
    if (Timeline.area) {
      const { from, to } = Timeline.area;
      Timeline.area = null;
      Timeline.go(Math.min(from, to), Math.max(from, to));
    } else if (Timeline.chosen) {
      const { lane, i } = Timeline.chosen, room = Math.max(lane.end[i] - lane.start[i], 1) * 0.4;
      Timeline.go(lane.start[i] - room, lane.end[i] + room);
    }
  },

  // Held keys move as long as they are held, at the same pace on any screen.
  move(now) {
    const passed = Math.min(now - (Timeline.moved || now), 50);
    Timeline.moved = Timeline.held.size ? now : 0;
    if (!Timeline.held.size) return;
    const faster = passed / 1000;
    if (Timeline.held.has("w")) Timeline.zoom(Math.exp(3 * faster), Timeline.pointer);
    if (Timeline.held.has("s")) Timeline.zoom(Math.exp(-3 * faster), Timeline.pointer);
    if (Timeline.held.has("a")) Timeline.pan(-0.9 * faster);
    if (Timeline.held.has("d")) Timeline.pan(0.9 * faster);
    Timeline.ask();
  },

  neighbour(direction) {
    const mark = Timeline.chosen;
    if (!mark) return Timeline.firstInView();
    const i = Math.min(Math.max(mark.i + direction, 0), mark.lane.n - 1);
    Timeline.choose({ lane: mark.lane, i });
    Timeline.keepInView();
  },

  otherLane(direction) {
    const lanes = Timeline.rows.filter((row) => row.lane).map((row) => row.lane);
    if (!Timeline.chosen) return Timeline.firstInView();
    const { lane, i } = Timeline.chosen, to = lanes[lanes.indexOf(lane) + direction];
    if (to) Timeline.choose({ lane: to, i: Math.min(Timeline.above(to.end, lane.start[i]), to.n - 1) });
  },

  firstInView() {
    const row = Timeline.rows.find((r) => r.lane && Timeline.above(r.lane.end, Timeline.view.from) < r.lane.n);
    if (row) Timeline.choose({ lane: row.lane, i: Timeline.above(row.lane.end, Timeline.view.from) });
  },

  keepInView() {
    const { lane, i } = Timeline.chosen, { from, to } = Timeline.view;
    if (lane.start[i] < from || lane.end[i] > to) Timeline.go(lane.start[i] - 0.5 * (to - from), lane.start[i] + 0.5 * (to - from));
  },

  // --- keys, wheel, pointer --------------------------------------------------------------------------------

  KEYS: {
    f: () => Timeline.focusChosen(),
    "0": () => Timeline.fitAll(),
    home: () => Timeline.fitAll(),
    escape: () => Timeline.choose(null),
    arrowleft: () => Timeline.neighbour(-1),
    arrowright: () => Timeline.neighbour(1),
    arrowup: () => Timeline.otherLane(-1),
    arrowdown: () => Timeline.otherLane(1),
    "[": () => Timeline.toStep(-1),
    "]": () => Timeline.toStep(1),
    "?": () => { Timeline.help.open = !Timeline.help.open; },
  },

  listen() {
    const { canvas } = Timeline;
    canvas.addEventListener("wheel", Timeline.onWheel, { passive: false });
    canvas.addEventListener("pointerdown", Timeline.onDown);
    canvas.addEventListener("pointermove", Timeline.onMove);
    canvas.addEventListener("pointerup", Timeline.onUp);
    canvas.addEventListener("pointerenter", () => { Timeline.inside = true; });
    canvas.addEventListener("pointerleave", () => { Timeline.inside = false; Timeline.hover = null; Timeline.tell(null); Timeline.ask(); });
    canvas.addEventListener("dblclick", () => Timeline.focusChosen());
    canvas.addEventListener("blur", () => Timeline.held.clear());
    window.addEventListener("blur", () => Timeline.held.clear());
    document.addEventListener("keydown", Timeline.onKey);
    document.addEventListener("keyup", (event) => Timeline.held.delete(event.key.toLowerCase()));
    new ResizeObserver(() => { if (!Paper.on) Timeline.resize(); }).observe(canvas);
    Theme.listeners.push(() => {
      Timeline.ink = null;
      Timeline.ask();
    });
  },

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    const focused = document.activeElement === Timeline.canvas;
    if (!Timeline.inside && !focused) return;
    const key = event.key.toLowerCase();
    if ("wasd".includes(key)) {
      Timeline.held.add(key);
      if (!focused) Timeline.canvas.focus({ preventScroll: true });
      Timeline.ask();
    } else if (Timeline.KEYS[key] && (focused || !key.startsWith("arrow"))) Timeline.KEYS[key]();
    else return;
    event.preventDefault();
  },

  onWheel(event) {
    const inRuler = event.offsetY < Timeline.RULER;
    if (event.ctrlKey || event.metaKey || inRuler) Timeline.zoom(Math.exp(-event.deltaY * 0.0022), event.offsetX);
    else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) Timeline.pan((event.deltaX || event.deltaY) * 0.0009);
    else if (!Timeline.scroll(event.deltaY)) return; // the page scrolls on
    event.preventDefault();
  },

  onDown(event) {
    if (event.button !== 0) return;
    Timeline.canvas.setPointerCapture(event.pointerId);
    Timeline.drag = { x: event.offsetX, pan: event.shiftKey, moved: false, from: Timeline.view.from, to: Timeline.view.to };
  },

  onMove(event) {
    Timeline.pointer = event.offsetX;
    const { drag } = Timeline;
    if (drag && Math.abs(event.offsetX - drag.x) > 4) drag.moved = true;
    if (drag && drag.moved && drag.pan) {
      const ticks = (drag.x - event.offsetX) / Timeline.scale;
      Timeline.go(drag.from + ticks, drag.to + ticks);
    } else if (drag && drag.moved) {
      Timeline.chosen = null;
      Timeline.area = { from: Timeline.time(Math.max(drag.x, Timeline.GUTTER)), to: Timeline.time(Math.max(event.offsetX, Timeline.GUTTER)) };
      Timeline.sayArea();
      Timeline.ask();
    } else {
      Timeline.hover = Timeline.pick(event.offsetX, event.offsetY);
      Timeline.tell(Timeline.hover, event.offsetX, event.offsetY);
      Timeline.ask();
    }
  },

  onUp(event) {
    if (Timeline.drag && !Timeline.drag.moved) Timeline.choose(Timeline.pick(event.offsetX, event.offsetY));
    Timeline.drag = null;
  },

  // --- what is above the canvas ----------------------------------------------------------------------------

  buttons() {
    const box = document.getElementById("timeline-ranks");
    Timeline.strips.forEach((strip, index) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = strip.rank === null ? "device " + Timeline.devices(strip) : "rank " + strip.rank;
      button.setAttribute("aria-pressed", "true");
      button.addEventListener("click", () => {
        const on = !Timeline.shown.delete(index);
        if (on) Timeline.shown.add(index);
        button.setAttribute("aria-pressed", String(on));
        Timeline.view.scroll = 0;
        Timeline.hover = Timeline.chosen = null;
        Timeline.layout();
      });
      box.append(button);
    });
    const steps = document.getElementById("timeline-steps");
    Timeline.strips[0].steps.forEach(([name, start, end], index) => {
      steps.append(new Option(name + " (" + Timeline.duration(end - start) + ")", String(index)));
    });
    steps.addEventListener("change", () => (steps.value === "" ? Timeline.fitAll() : Timeline.showStep(Number(steps.value))));
    for (const [id, act] of [["in", () => Timeline.zoom(2)], ["out", () => Timeline.zoom(0.5)], ["all", () => Timeline.fitAll()]]) {
      document.getElementById("timeline-" + id).addEventListener("click", act);
    }
  },

  // The step whose length is nearest to the median, which is shown first.
  usualStep(strip = Timeline.strips[0]) {
    const lengths = strip.steps.map(([, start, end]) => end - start);
    const median = [...lengths].sort((a, b) => a - b)[lengths.length >> 1];
    return lengths.indexOf(median);
  },

  // The step on every shown rank: from the first to start to the last to end.
  showStep(index) {
    const found = Timeline.strips.filter((_, i) => Timeline.shown.has(i)).map((strip) => strip.steps[index]).filter(Boolean);
    if (!found.length) return;
    document.getElementById("timeline-steps").value = String(index);
    const from = Math.min(...found.map((s) => s[1])), to = Math.max(...found.map((s) => s[2]));
    Timeline.go(from - 0.02 * (to - from), to + 0.02 * (to - from));
  },

  toStep(direction) {
    const now = document.getElementById("timeline-steps").value, { steps } = Timeline.strips[0];
    const next = now === "" ? 0 : Number(now) + direction;
    if (next >= 0 && next < steps.length) Timeline.showStep(next);
  },

  // A link to an instant: the step around it. Without steps, or where the step is not among the shown ones, it says so.
  toMoment({ at, rank }) {
    const strip = Timeline.strips.find((s) => String(s.rank ?? "") === rank);
    if (!strip) return Timeline.say(`Rank ${rank} is not shown here: the command export perfetto writes a trace of all ranks.`);
    const index = Timeline.strips.indexOf(strip);
    if (!Timeline.shown.has(index)) document.querySelectorAll("#timeline-ranks button")[index].click();
    const moment = Number(BigInt(at) - BigInt(strip.origin_ns)) / Timeline.unit_ns;
    const step = strip.steps.findIndex(([, start, end]) => moment >= start && moment < end);
    if (step < 0) return Timeline.say("This step is not shown here.");
    Timeline.showStep(step);
    Timeline.say(`${strip.steps[step][0]} of rank ${rank}`);
  },

  say(text) { Timeline.said.textContent = text; },

  async start() {
    Timeline.canvas = document.getElementById("timeline-canvas");
    if (!Timeline.canvas) return;
    Timeline.said = document.getElementById("timeline-said");
    Timeline.HINT = Timeline.said.textContent;
    if (typeof DecompressionStream === "undefined") {
      Timeline.said.textContent = "The timeline needs a browser from 2023 or later. For an older browser, the command `export perfetto` writes a trace.";
      return;
    }
    Timeline.context = Timeline.canvas.getContext("2d", { alpha: false });
    Timeline.tooltip = document.getElementById("timeline-tooltip");
    Timeline.help = document.getElementById("timeline-help");
    Timeline.read(await Packed.bytes("timeline-data"));
    Timeline.strips.forEach((_, index) => Timeline.shown.add(index));
    [Timeline.view.from, Timeline.view.to] = Timeline.whole;
    Timeline.width = Timeline.canvas.clientWidth;
    Timeline.height = Timeline.MOST_HEIGHT;
    Timeline.scale = 1;
    const used = new Set(Timeline.totals(-Infinity, Infinity).flatMap(([, parts]) => parts.map(([name]) => name)));
    for (const item of document.querySelectorAll("#timeline .legend li")) if (!used.has(item.textContent)) item.remove();
    Timeline.buttons();
    Timeline.layout();
    Timeline.listen();
    Timeline.showStep(Timeline.usualStep());
    for (const link of document.querySelectorAll("a[data-at]")) link.addEventListener("click", () => Timeline.toMoment(link.dataset));
    Timeline.sayNotes();
    document.body.dataset.timeline = "ready";
  },
};
Paper.after(Timeline.start());
