"use strict";
// The meaning of a word beside it: while the pointer or the focus is on it, and after a click until the next one.
// Without this script a click leads to the list of words at the end of the page.
const Words = {
  box: null,
  shown: null,
  kept: false,

  show(link) {
    if (Words.shown !== link) Words.hide();
    Words.shown = link;
    const said = document.getElementById(link.hash.slice(1));
    Words.box.textContent = "";
    const name = Object.assign(document.createElement("strong"), { textContent: said.querySelector("dt").textContent });
    Words.box.append(name, ": ", said.querySelector("dd").textContent);
    Words.box.hidden = false;
    link.setAttribute("aria-describedby", "word-meaning");
    Words.place();
  },

  place() {
    if (!Words.shown) return;
    const place = Words.shown.getBoundingClientRect(), size = Words.box.getBoundingClientRect();
    if (place.bottom < 0 || place.top > innerHeight) return void Words.hide();
    const below = place.bottom + 6 + size.height <= innerHeight;
    Words.box.style.left = Math.max(8, Math.min(place.left, document.documentElement.clientWidth - size.width - 8)) + "px";
    Words.box.style.top = Math.max(8, below ? place.bottom + 6 : place.top - size.height - 6) + "px";
  },

  hide() {
    if (!Words.shown) return;
    Words.shown.removeAttribute("aria-describedby");
    Words.shown = null;
    Words.kept = false;
    Words.box.hidden = true;
  },

  at(event) { return event.target instanceof Element ? event.target.closest("a.word") : null; },

  start() {
    if (!document.querySelector("a.word")) return;
    Words.box = Object.assign(document.createElement("div"), { id: "word-meaning", hidden: true });
    Words.box.setAttribute("role", "tooltip");
    document.body.append(Words.box);
    for (const kind of ["pointerover", "focusin"]) {
      document.addEventListener(kind, (event) => { const link = Words.at(event); if (link) Words.show(link); });
    }
    document.addEventListener("pointerout", (event) => {
      if (Words.at(event) && !Words.kept && document.activeElement !== Words.shown) Words.hide();
    });
    document.addEventListener("focusout", (event) => { if (Words.at(event)) Words.hide(); });
    document.addEventListener("click", (event) => {
      const link = Words.at(event);
      if (!link) return void Words.hide();
      event.preventDefault();
      event.stopImmediatePropagation(); // the list of words stays folded
      Words.show(link);
      Words.kept = true;
    }, true);
    document.addEventListener("keydown", (event) => { if (event.key === "Escape") Words.hide(); });
    addEventListener("scroll", Words.place, { passive: true, capture: true });
    addEventListener("beforeprint", Words.hide);
  },
};
Words.start();
