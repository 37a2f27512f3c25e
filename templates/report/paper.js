"use strict";
// The sections below the timeline are folded. A click, a link to a section, and paper open them.
const Folds = {
  all: [...document.querySelectorAll("details.part")],
  printed: [], // opened for paper, closed again after it

  // Open the section of an address such as #kernels. The section is what the address names, or is around it.
  follow(hash) {
    const named = document.getElementById(hash.slice(1));
    const part = named && (named.closest("details.part") || named.querySelector("details.part"));
    if (!part || part.open) return;
    part.open = true;
    named.scrollIntoView();
  },

  openAll() {
    Folds.printed = Folds.all.filter((part) => !part.open);
    for (const part of Folds.printed) part.open = true;
  },

  closeAgain() { for (const part of Folds.printed.splice(0)) part.open = false; },

  start() {
    addEventListener("hashchange", () => Folds.follow(location.hash));
    // The address does not change if it is this section's already.
    document.addEventListener("click", (event) => {
      const link = event.target.closest("a[href^='#']");
      if (link) Folds.follow(link.hash);
    });
    Folds.follow(location.hash);
  },
};
Folds.start();

// The page on paper: light, every plot drawn, as wide as a portrait A4 or Letter sheet holds.
const Paper = {
  WIDTH: 680, // pixels: 180 mm, between the margins that page.css sets
  on: false,
  unpacking: [],

  begin() {
    if (Paper.on) return;
    Paper.on = true;
    Paper.theme = Theme.current;
    Folds.openAll();
    document.documentElement.dataset.theme = "light";
    Paper.redraw();
  },

  end() {
    if (!Paper.on) return;
    Paper.on = false;
    document.documentElement.dataset.theme = Paper.theme;
    Folds.closeAgain();
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

// A table or a command is a stop of the Tab key only if there is something to scroll.
const Scrolls = new ResizeObserver((entries) => {
  for (const { target } of entries) target.tabIndex = target.scrollWidth > target.clientWidth ? 0 : -1;
});
for (const table of document.querySelectorAll(".scroll, p code")) Scrolls.observe(table);
