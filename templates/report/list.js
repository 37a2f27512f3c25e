"use strict";
// The list of runs: a click on a head sorts, a text filters, and two checked rows give the command that compares them.
const List = {
  heads: [...document.querySelectorAll("th")],
  rows: [...document.querySelectorAll("tbody tr")],
  chosen: [], // boxes, in the order of the clicks

  sort(head) {
    const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1, at = head.cellIndex;
    for (const each of List.heads) each.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
    const key = ({ cells }) => cells[at].dataset.number || cells[at].textContent.replace(/^–$/, "");
    const compared = new Intl.Collator("en", { numeric: true }).compare;
    List.rows.sort((a, b) => !key(a) - !key(b) || sign * compared(key(a), key(b))); // those without a value last
    document.querySelector("tbody").append(...List.rows);
  },

  // The rows that have all words; their bars on one scale.
  filter(text) {
    const words = text.toLowerCase().split(/\s+/);
    for (const row of List.rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
    const shown = List.rows.filter((row) => !row.hidden);
    document.getElementById("shown").textContent = `${shown.length} of ${List.rows.length}`;
    const bars = shown.map((row) => row.querySelector(".step")).filter(Boolean);
    const length = (bar) => Number(bar.parentElement.dataset.number);
    const longest = Math.max(...bars.map(length));
    for (const bar of bars) bar.style.width = `${100 * length(bar) / longest}%`;
  },

  choose(box) {
    const chosen = List.chosen.filter((each) => each !== box);
    List.chosen = [...chosen, ...(box.checked ? [box] : [])].slice(-2);
    for (const each of chosen) each.checked = List.chosen.includes(each);
    List.tell();
  },

  tell() {
    const names = List.chosen.map((box) => box.value), command = document.getElementById("command");
    command.textContent = [command.dataset.compare, ...names, ...["A", "B"].slice(names.length)].join(" ");
    copy.disabled = names.length < 2;
    copy.textContent = names.length < 2 ? "check two runs" : "copy";
  },

  start() {
    for (const head of List.heads) {
      const button = Object.assign(document.createElement("button"), { type: "button", textContent: head.textContent });
      button.addEventListener("click", () => List.sort(head));
      head.replaceChildren(button);
    }
    List.heads[0].before(Object.assign(document.createElement("td"), { className: "box" }));
    for (const row of List.rows) {
      const cell = row.insertCell(0), value = row.dataset.name;
      cell.className = "box";
      if (!value) continue;
      const box = Object.assign(document.createElement("input"), { type: "checkbox", value, ariaLabel: "compare " + value });
      box.addEventListener("change", () => List.choose(box));
      cell.append(box);
    }
    const text = document.getElementById("filter");
    text.addEventListener("input", () => List.filter(text.value));
    document.querySelector(".tools").hidden = false;
    List.tell();
  },
};
List.start();
