"use strict";
// What a page carries packed: base64 of gzip, in script elements that no browser runs.
const Packed = {
  async bytes(id) {
    const text = atob(document.getElementById(id).textContent.trim());
    const raw = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) raw[i] = text.charCodeAt(i);
    const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  },
  async text(id) {
    return new TextDecoder().decode(await Packed.bytes(id));
  },
};

// Light or dark: as the system, until the reader chooses; #theme=dark in the address chooses too.
const Theme = {
  listeners: [],
  get current() { return document.documentElement.dataset.theme; },
  set(name) {
    document.documentElement.dataset.theme = name;
    for (const listener of Theme.listeners) listener();
  },
  color(name) { return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim(); },
  start() {
    const asked = /theme=(dark|light)/.exec(location.hash);
    const system = matchMedia("(prefers-color-scheme: dark)");
    Theme.set(asked ? asked[1] : system.matches ? "dark" : "light");
    let chosen = Boolean(asked);
    system.addEventListener("change", (event) => {
      const name = event.matches ? "dark" : "light";
      if (Paper.on) Paper.theme = chosen ? Paper.theme : name; else if (!chosen) Theme.set(name);
    });
    document.getElementById("theme").addEventListener("click", () => {
      chosen = true;
      Theme.set(Theme.current === "dark" ? "light" : "dark");
    });
  },
};
Theme.start();

const copy = document.getElementById("copy");
if (copy) {
  copy.addEventListener("click", async () => {
    const code = document.getElementById("command");
    getSelection().selectAllChildren(code);
    try {
      await navigator.clipboard.writeText(code.textContent);
      copy.textContent = "copied";
    } catch {
      copy.textContent = "press Ctrl+C";
    }
  });
}
