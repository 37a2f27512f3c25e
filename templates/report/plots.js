"use strict";
// Draws the figures with Plotly, which comes packed in this page; the tables say the same without it.
const Plots = {
  figures: {},
  drawn: new Set(),

  themed(figure) {
    const text = Theme.color("text"), grid = Theme.color("grid"), soft = Theme.color("soft");
    const axis = { gridcolor: grid, linecolor: soft, zerolinecolor: grid, tickcolor: soft, automargin: true };
    const layout = structuredClone(figure.layout);
    for (const name of Object.keys(layout)) {
      if (/^[xy]axis/.test(name)) layout[name] = { ...axis, ...layout[name] };
    }
    const legend = { orientation: "h", yanchor: "bottom", y: 1.04, x: 0, traceorder: "normal", ...layout.legend };
    const named = layout.showlegend !== false && figure.data.length > 1 && figure.data[0].type !== "heatmap";
    return {
      margin: { l: 60, r: 20, t: named ? 40 : 14, b: 50 }, hovermode: "closest", bargap: 0.25, ...layout, legend,
      height: figure.height, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: text, family: "system-ui, 'DejaVu Sans', sans-serif", size: 12.5 },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: soft, activecolor: text },
      hoverlabel: { bgcolor: Theme.color("card"), font: { color: text }, bordercolor: soft },
    };
  },

  // A colour scale is named by its colour in the page's data; it starts at the theme's own ground.
  scaled(data) {
    const far = Theme.current === "dark" ? "#ffffff" : "#000000";
    return data.map((trace) => typeof trace.colorscale === "string" ? { ...trace, colorscale: [
      [0, Theme.color("mark")], [0.65, trace.colorscale], [1, Plots.mix(trace.colorscale, far, 0.4)],
    ] } : trace);
  },

  // Plotly takes some tags in names for styles and links: names of runs and groups are text.
  inert(data) {
    const plain = (text) => typeof text === "string" ? text.replaceAll("&", "&amp;").replaceAll("<", "&lt;") : text;
    const all = (value) => Array.isArray(value) ? value.map(plain) : plain(value);
    const named = (trace) => ["name", "x", "y", "text"].filter((key) => key in trace).map((key) => [key, all(trace[key])]);
    return data.map((trace) => ({ ...trace, ...Object.fromEntries(named(trace)) }));
  },

  mix(a, b, share) {
    const part = (at) => Math.round((1 - share) * parseInt(a.slice(at, at + 2), 16) + share * parseInt(b.slice(at, at + 2), 16));
    return "#" + [1, 3, 5].map((at) => part(at).toString(16).padStart(2, "0")).join("");
  },

  // Layers of one heatmap are seen one at a time: a button for each.
  buttons(element, figure) {
    if (figure.data.length < 2 || figure.data[0].type !== "heatmap" || element.dataset.layered) return;
    element.dataset.layered = "yes";
    const box = Object.assign(document.createElement("div"), { className: "bar" });
    box.setAttribute("role", "group");
    box.setAttribute("aria-label", "What the colours show");
    figure.data.forEach((layer, index) => {
      const button = Object.assign(document.createElement("button"), { type: "button", textContent: layer.name });
      button.setAttribute("aria-pressed", String(index === 0));
      button.addEventListener("click", () => {
        figure.data.forEach((other, i) => { other.visible = i === index; });
        [...box.children].forEach((other, i) => other.setAttribute("aria-pressed", String(i === index)));
        Plots.draw(element);
      });
      box.append(button);
    });
    element.before(box);
  },

  draw(element) {
    const figure = Plots.figures[element.dataset.figure];
    if (!figure) return;
    Plots.drawn.add(element);
    Plots.buttons(element, figure);
    Plotly.react(element, Plots.scaled(Plots.inert(figure.data)), Plots.themed(figure), {
      responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
      toImageButtonOptions: { filename: element.dataset.figure, scale: 2 },
    });
  },

  async start() {
    const elements = [...document.querySelectorAll("[data-figure]")];
    if (!elements.length) return;
    if (typeof DecompressionStream === "undefined") {
      for (const element of elements) element.textContent = "This plot needs a browser from 2023 or later; the numbers are below.";
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
      const next = elements.find((element) => !Plots.drawn.has(element));
      if (next) { Plots.draw(next); setTimeout(rest, 30); } else document.body.dataset.plots = "ready";
    };
    setTimeout(rest, 200);
    Theme.listeners.push(() => Plots.drawn.forEach((element) => Plots.draw(element)));
  },
};
// After the first paint: unpacking Plotly takes a moment.
requestAnimationFrame(() => setTimeout(() => Plots.start(), 0));
