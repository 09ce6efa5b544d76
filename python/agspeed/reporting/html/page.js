"use strict";
// Three conveniences; the page says everything without them: the theme, copying the command, reading the timeline.
const root = document.documentElement;
document.getElementById("theme").addEventListener("click", () => {
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
});

const copy = document.getElementById("copy");
if (copy) {
  copy.addEventListener("click", async () => {
    const command = document.getElementById("command");
    try {
      await navigator.clipboard.writeText(command.textContent);
      copy.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(command); // no clipboard for local files: leave it selected
    }
  });
}

for (const svg of document.querySelectorAll(".timeline svg")) {
  const points = JSON.parse(svg.querySelector("[data-points]").dataset.points);
  const cursor = svg.querySelector(".cursor");
  const readout = svg.closest("figure").querySelector(".readout");
  const milliseconds = (value) => (value < 1 ? `${(value * 1000).toPrecision(3)} µs` : `${value.toPrecision(3)} ms`);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    const [at, step, ms, slowest, wait, seconds] = points.reduce((a, b) => (Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a));
    cursor.setAttribute("x1", at);
    cursor.setAttribute("x2", at);
    svg.classList.add("reading");
    readout.hidden = false;
    readout.textContent =
      `step ${step.toLocaleString("en")} at ${seconds.toFixed(1)} s: ${milliseconds(ms)}, slowest ${milliseconds(slowest)}, wait ${milliseconds(wait)}`;
    const figure = svg.closest("figure").getBoundingClientRect();
    const left = event.clientX - figure.left + 14;
    readout.style.left = `${Math.max(4, Math.min(left, figure.width - readout.offsetWidth - 8))}px`;
    readout.style.top = `${box.top - figure.top + 4}px`;
  });
  svg.addEventListener("pointerleave", () => {
    svg.classList.remove("reading");
    readout.hidden = true;
  });
}
