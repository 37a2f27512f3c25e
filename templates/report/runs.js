"use strict";
// Several runs on the timeline: each is moved so that the step chosen of it begins at 0. timeline.js starts this
// when its strips name their run.
const Runs = {
  all: [],

  start() {
    const names = [...new Set(Timeline.strips.map((strip) => strip.run))];
    Runs.all = names.map((name) => ({ name, strips: Timeline.strips.filter((strip) => strip.run === name) }));
    const own = document.getElementById("timeline-steps").parentElement;
    own.hidden = true;
    for (const run of Runs.all) own.before(Runs.select(run));
    Timeline.showStep = Runs.show;
    Timeline.toStep = Runs.step;
    const title = Timeline.drawTitle;
    Timeline.drawTitle = (row, y) => {
      title(row, y);
      Runs.drawSteps(row, y);
    };
    if (Timeline.content > Timeline.height - Timeline.RULER) Runs.firstOnly();
    Runs.show();
  },

  // Where not all fits, the first rank of each run is seen; the buttons bring the others.
  firstOnly() {
    const first = new Set(Runs.all.map((run) => run.strips[0]));
    const buttons = document.querySelectorAll("#timeline-ranks button");
    Timeline.strips.forEach((strip, index) => { if (!first.has(strip)) buttons[index].click(); });
  },

  select(run) {
    const label = Object.assign(document.createElement("label"), { textContent: run.name + ": step " });
    run.select = document.createElement("select");
    const { steps } = run.strips[0];
    steps.forEach(([name, start, end], index) => {
      run.select.append(new Option(name + " (" + Timeline.duration(end - start) + ")", String(index)));
    });
    if (!steps.length) run.select.append(new Option("no step was found; the recording's start", "-1"));
    run.select.value = String(Timeline.usualStep(run.strips[0]));
    run.select.addEventListener("change", Runs.show);
    label.append(run.select);
    return label;
  },

  // The chosen step on all ranks of the run, from the first to start to the last to end.
  chosen(run) {
    const index = Number(run.select.value);
    const found = run.strips.map((strip) => strip.steps[index]).filter(Boolean).map(([, start, end]) => [start, end]);
    const spans = found.length ? found : run.strips.map((strip) => strip.window);
    return [Math.min(...spans.map(([start]) => start)), Math.max(...spans.map(([, end]) => end))];
  },

  show() {
    for (const run of Runs.all) {
      const [begin] = Runs.chosen(run);
      for (const strip of run.strips) Runs.shift(strip, -begin);
    }
    Timeline.whole = [Math.min(...Timeline.strips.map((s) => s.window[0])), Math.max(...Timeline.strips.map((s) => s.window[1]))];
    const longest = Math.max(...Runs.all.map((run) => Runs.chosen(run)[1]));
    Timeline.go(-0.02 * longest, 1.02 * longest);
  },

  shift(strip, by) {
    if (!by) return;
    for (const { start, end, n } of strip.lanes) {
      for (let i = 0; i < n; i++) {
        start[i] += by;
        end[i] += by;
      }
    }
    strip.steps = strip.steps.map(([name, start, end]) => [name, start + by, end + by]);
    strip.window = strip.window.map((moment) => moment + by);
  },

  // [ and ]: the next step of every run.
  step(direction) {
    for (const { select } of Runs.all) {
      select.selectedIndex = Math.min(Math.max(select.selectedIndex + direction, 0), select.options.length - 1);
    }
    Runs.show();
  },

  // The ruler knows the steps of the first run only: each run's own stand beside its name.
  drawSteps(row, y) {
    const { context: g, GUTTER, view, width, ink } = Timeline;
    const next = Timeline.rows[Timeline.rows.indexOf(row) + 1];
    if (!next || !next.lane) return;
    g.fillStyle = ink.soft;
    let free = Math.max(GUTTER, 20 + row.title.length * 7);
    for (const [name, start, end] of next.lane.strip.steps) {
      const x = Math.round(Timeline.x(start));
      if (x < free || start > view.to || end < view.from) continue;
      const wide = Math.min(Timeline.x(end), width) - x;
      g.fillRect(x, y, 1, row.height - 4);
      if (wide < 24) continue;
      const text = Timeline.fit(name, wide - 8);
      g.fillText(text, x + 4, y + row.height / 2 - 2);
      free = x + 10 + text.length * 6;
    }
  },
};
