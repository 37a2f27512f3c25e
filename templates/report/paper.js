"use strict";
// The page on paper: light, every plot drawn, as wide as a portrait A4 or Letter sheet holds.
const Paper = {
  WIDTH: 680, // pixels: 180 mm, between the margins that page.css sets
  on: false,
  unpacking: [],

  begin() {
    if (Paper.on) return;
    Paper.on = true;
    Paper.theme = Theme.current;
    document.documentElement.dataset.theme = "light";
    Paper.redraw();
  },

  end() {
    if (!Paper.on) return;
    Paper.on = false;
    document.documentElement.dataset.theme = Paper.theme;
    Paper.redraw();
  },

  // At once, since no frame comes between "before print" and the print.
  redraw() {
    if (window.Plotly) Plots.drawAll();
    if (document.body.dataset.timeline) Timeline.forPaper();
  },

  // The page counts as loaded once this is done: a browser without a window prints as soon as it is. A frame that
  // is being written holds the loading up.
  after(unpacked) {
    Paper.unpacking.push(unpacked);
    if (Paper.frame) return;
    Paper.frame = Object.assign(document.createElement("iframe"), { hidden: true });
    document.body.append(Paper.frame);
    Paper.frame.contentDocument.open();
    document.addEventListener("DOMContentLoaded", async () => {
      await Promise.allSettled(Paper.unpacking);
      Paper.frame.contentDocument.close();
      Paper.frame.remove();
    });
  },

  start() {
    addEventListener("beforeprint", Paper.begin);
    addEventListener("afterprint", Paper.end);
    matchMedia("print").addEventListener("change", (event) => event.matches ? Paper.begin() : Paper.end());
  },
};
Paper.start();

// A table is a stop of the Tab key only where there is something to scroll.
const Scrolls = new ResizeObserver((entries) => {
  for (const { target } of entries) target.tabIndex = target.scrollWidth > target.clientWidth ? 0 : -1;
});
for (const table of document.querySelectorAll(".scroll")) Scrolls.observe(table);
