"use strict";
// Draws the figures with Plotly, which comes packed in this page; the tables say the same without it.
const Plots = {
  NARROW: 520, // pixels: a narrower plot has its legend below, and its titles in several lines
  // A closed list: what a later Plotly adds to its toolbar (sharing a plot on a server, say) does not appear.
  BUTTONS: [["toImage"], ["zoom2d", "pan2d"], ["zoomIn2d", "zoomOut2d", "resetScale2d"]],
  MARKS: { circle: "●", square: "■", diamond: "◆", "triangle-up": "▲", cross: "✚", star: "★" },
  figures: {},
  drawn: new Set(),

  width(element) { return Paper.on ? Paper.WIDTH : element.clientWidth; },

  // In a section or a table that is folded, a plot has no width. It is drawn when a reader opens the section.
  isFolded(element) { return !Paper.on && element.closest("details:not([open])") !== null; },

  isNarrow(element) { return Paper.on || element.clientWidth < Plots.NARROW; },

  // A legend that would take more than two lines of a plot stands below it, in HTML, which breaks into lines as the
  // page does: Plotly's own would take the plot's room, or be scrolled.
  isBelow(element, figure) {
    const names = figure.data.length * Math.max(...figure.data.map((trace) => 45 + 7 * (trace.name || "").length));
    return Plots.isNarrow(element) || names > 2 * Plots.width(element);
  },

  isNamed(figure) {
    return figure.layout.showlegend !== false && figure.data.length > 1;
  },

  themed(element, figure) {
    const text = Theme.color("text"), grid = Theme.color("grid"), soft = Theme.color("soft");
    const axis = { gridcolor: grid, linecolor: soft, zerolinecolor: grid, tickcolor: soft, automargin: true };
    const layout = structuredClone(figure.layout), narrow = Plots.isNarrow(element), width = Plots.width(element);
    const lines = { x: 1, y: 1 };
    for (const name of Object.keys(layout)) {
      if (!/^[xy]axis/.test(name)) continue;
      layout[name] = { ...axis, ...layout[name] };
      const room = name[0] === "x" ? width - 90 : figure.height - 70;
      lines[name[0]] = Math.max(lines[name[0]], Plots.wrapTitle(layout[name], Math.floor(room / 7)));
      if (layout[name].type === "log") Plots.spaceTicks(layout[name], figure.data.flatMap((trace) => trace[name[0]] || []));
      if (narrow) Plots.wrapLabels(layout[name], figure.data.flatMap((trace) => trace[name[0]] || []));
    }
    const legend = { orientation: "h", yanchor: "bottom", y: 1.04, x: 0, traceorder: "normal", ...layout.legend };
    const above = Plots.isNamed(figure) && !Plots.isBelow(element, figure);
    const beside = figure.data.some((trace) => trace.textposition === "outside");
    return {
      margin: { l: 44 + 16 * lines.y, r: beside ? 56 : 20, t: above ? 40 : 14, b: 30 + 20 * lines.x },
      hovermode: "closest", bargap: 0.25, ...layout, legend, showlegend: above,
      width, height: figure.height, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: text, family: "system-ui, 'DejaVu Sans', sans-serif", size: narrow ? 11.5 : 12.5 },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: soft, activecolor: text },
      hoverlabel: { bgcolor: Theme.color("card"), font: { color: text }, bordercolor: soft },
    };
  },

  // Lines of limited length, broken between words; a longer word stays whole.
  wrapped(text, most) {
    const lines = [""];
    for (const word of text.split(" ")) {
      const last = lines[lines.length - 1];
      if (last && last.length + 1 + word.length > most) lines.push(word);
      else lines[lines.length - 1] = last ? last + " " + word : word;
    }
    return lines;
  },

  // Plotly cuts a title that is longer than its axis. Returns how many lines it has now.
  wrapTitle(axis, most) {
    if (!axis.title || !axis.title.text) return 1;
    const lines = Plots.wrapped(axis.title.text, Math.max(most, 12));
    axis.title.text = lines.join("<br>");
    return lines.length;
  },

  // Over many powers of ten only these are named: the digits between run into each other.
  spaceTicks(axis, values) {
    const known = values.filter((value) => value > 0);
    const decades = Math.log10(Math.max(...known) / Math.min(...known));
    if (decades > 2) axis.dtick = 1; else if (decades > 0.7) axis.dtick = "D2";
  },

  // Names of bars in two short lines, so that they leave room for the bars.
  wrapLabels(axis, values) {
    if (axis.type !== "category" || axis.ticktext) return;
    const names = [...new Set(values)].filter((name) => typeof name === "string" && name.length > 16);
    if (!names.length) return;
    const all = [...new Set(values)];
    axis.tickmode = "array";
    axis.tickvals = all.map(Plots.plain);
    axis.ticktext = all.map((name) => {
      const [first, ...rest] = Plots.wrapped(String(name), 16), second = rest.join(" ");
      return [first, second.length > 18 ? second.slice(0, 17) + "…" : second].filter(Boolean).map(Plots.plain).join("<br>");
    });
  },

  // A colour scale is named by its colour in the page's data; it starts at the theme's own ground.
  scaled(data) {
    const far = Theme.current === "dark" ? "#ffffff" : "#000000";
    const deep = (color) => Plots.mix(color, far, 0.4);
    const scale = (color) => [[0, Theme.color("mark")], [0.65, color], [1, deep(color)]];
    return data.map((trace) => typeof trace.colorscale === "string" ? { ...trace, colorscale: scale(trace.colorscale) } : trace);
  },

  // Plotly takes some tags in names for styles and links: names of runs and groups are text.
  plain(text) { return typeof text === "string" ? text.replaceAll("&", "&amp;").replaceAll("<", "&lt;") : text; },

  inert(data) {
    const all = (value) => Array.isArray(value) ? value.map(Plots.plain) : Plots.plain(value);
    const named = (trace) => ["name", "x", "y", "text"].filter((key) => key in trace).map((key) => [key, all(trace[key])]);
    return data.map((trace) => ({ ...trace, ...Object.fromEntries(named(trace)) }));
  },

  mix(a, b, share) {
    const part = (at) => Math.round((1 - share) * parseInt(a.slice(at, at + 2), 16) + share * parseInt(b.slice(at, at + 2), 16));
    return "#" + [1, 3, 5].map((at) => part(at).toString(16).padStart(2, "0")).join("");
  },

  // The names of a plot's colours, below it.
  legend(element, figure) {
    if (element.nextElementSibling.matches("ul.legend")) element.nextElementSibling.remove();
    if (!Plots.isNamed(figure) || !Plots.isBelow(element, figure)) return;
    const list = Object.assign(document.createElement("ul"), { className: "legend" });
    for (const trace of figure.data) {
      const item = document.createElement("li"), swatch = document.createElement("span");
      const mark = /markers/.test(trace.mode) && Plots.MARKS[trace.marker?.symbol || "circle"];
      if (mark) Object.assign(swatch, { textContent: mark, className: "mark" });
      swatch.style[mark ? "color" : "background"] = Plots.swatch(trace);
      swatch.style.opacity = trace.marker?.opacity ?? 1;
      item.append(swatch, trace.name);
      list.append(item);
    }
    element.after(list);
  },

  swatch({ marker = {}, line = {} }) {
    const { pattern } = marker, color = line.color || marker.color;
    if (pattern) return `repeating-linear-gradient(135deg, ${pattern.bgcolor} 0 3px, ${pattern.fgcolor} 3px 6px)`;
    return line.dash ? `repeating-linear-gradient(90deg, ${color} 0 4px, transparent 4px 6px)` : color;
  },

  // A plot is one stop of the Tab key; from there arrows reach its buttons, Escape leads back.
  oneStop(element) {
    element.tabIndex = 0;
    for (const button of Plots.tools(element)) button.tabIndex = -1;
    for (const picture of element.querySelectorAll(".main-svg")) picture.setAttribute("aria-hidden", "true");
    if (element.dataset.keys) return;
    element.dataset.keys = "yes";
    element.parentElement.addEventListener("keydown", (event) => Plots.onKey(element, event));
  },

  tools(element) { return [...element.parentElement.querySelectorAll(".modebar-btn")]; },

  onKey(element, event) {
    const tools = Plots.tools(element), at = tools.indexOf(document.activeElement);
    if (at < 0 && document.activeElement !== element) return;
    // A button of an older Plotly is a link without an address, which no key presses.
    if ((event.key === "Enter" || event.key === " ") && at >= 0 && tools[at].tagName !== "BUTTON") tools[at].click();
    const to = { ArrowRight: tools[(at + 1) % tools.length], ArrowLeft: tools.at(at < 0 ? -1 : at - 1), Escape: element }[event.key];
    if (!to || event.ctrlKey || event.altKey || event.metaKey) return;
    to.focus({ preventScroll: to !== element });
    event.preventDefault();
  },

  draw(element) {
    const figure = Plots.figures[element.dataset.figure];
    if (!figure) return;
    if (Plots.isFolded(element)) return void Plots.drawn.delete(element);
    Plots.drawn.add(element);
    Plots.legend(element, figure);
    const focused = Plots.tools(element).indexOf(document.activeElement);
    Plotly.react(element, Plots.scaled(Plots.inert(figure.data)), Plots.themed(element, figure), {
      displaylogo: false, modeBarButtons: Plots.BUTTONS, showSendToCloud: false, plotlyServerURL: "",
      toImageButtonOptions: { filename: element.dataset.figure, scale: 2 },
    });
    Plots.oneStop(element);
    if (focused >= 0) Plots.tools(element)[focused].focus({ preventScroll: true });
  },

  drawAll() { for (const element of document.querySelectorAll("[data-figure]")) Plots.draw(element); },

  async start() {
    const elements = [...document.querySelectorAll("[data-figure]")];
    if (!elements.length) return;
    if (typeof DecompressionStream === "undefined") {
      for (const element of elements) element.textContent = "This plot needs a browser from 2023 or later. The tables have its numbers.";
      return;
    }
    Plots.figures = JSON.parse(await Packed.text("figures"));
    const script = document.createElement("script");
    script.textContent = await Packed.text("plotly");
    document.head.append(script);
    // One by one, so that the page stays alive; what is on screen comes first.
    const seen = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        if (entry.isIntersecting && !Plots.drawn.has(entry.target)) Plots.draw(entry.target);
      }
    }, { rootMargin: "300px" });
    for (const element of elements) seen.observe(element);
    const rest = () => {
      const next = elements.find((element) => !Plots.drawn.has(element) && !Plots.isFolded(element));
      if (next) { Plots.draw(next); setTimeout(rest, 30); } else document.body.dataset.plots = "ready";
    };
    setTimeout(rest, 200);
    for (const part of Folds.all) part.addEventListener("toggle", () => { if (part.open) rest(); });
    Theme.listeners.push(() => Plots.drawn.forEach((element) => Plots.draw(element)));
    Plots.follow(elements);
  },

  // A plot is redrawn for its new width, not stretched: its legend and its titles depend on it.
  follow(elements) {
    const resized = new ResizeObserver((entries) => {
      for (const { target } of entries) {
        if (Paper.on || Plots.isFolded(target) || !Plots.drawn.has(target)) continue;
        if (target.layout.width !== target.clientWidth) Plots.draw(target);
      }
    });
    for (const element of elements) resized.observe(element);
  },
};
// After the first paint: unpacking Plotly takes a moment.
Paper.after(new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0))).then(Plots.start));
