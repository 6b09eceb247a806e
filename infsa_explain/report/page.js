"use strict";
(() => {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const hidden = { name: new Set(), order: new Set() };

  function show() {
    for (const line of document.querySelectorAll(".line")) {
      const off = hidden.name.has(line.dataset.name) || hidden.order.has(line.dataset.order);
      line.classList.toggle("off", off);
    }
    for (const button of document.querySelectorAll(".legend button")) {
      const kind = "name" in button.dataset ? "name" : "order";
      button.setAttribute("aria-pressed", String(!hidden[kind].has(button.dataset[kind])));
    }
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest(".legend button");
    if (!button) return;
    const kind = "name" in button.dataset ? "name" : "order";
    const value = button.dataset[kind];
    if (!hidden[kind].delete(value)) hidden[kind].add(value);
    show();
  });

  function live(svg) {
    const chart = charts[Number(svg.dataset.chart)];
    const groups = [...svg.querySelectorAll(".line")];
    const dot = svg.querySelector(".dot");
    const band = svg.querySelector(".band");
    const tip = svg.parentElement.querySelector(".tip");
    let at = null; // {line, point}

    const down = (y) =>
      chart.bottom - ((y - chart.y[0]) / (chart.y[1] - chart.y[0])) * (chart.bottom - chart.top);
    const shown = (i) => !groups[i].classList.contains("off");
    const known = (i, k) => chart.lines[i].mean[k] !== null;
    const write = (y) => y.toFixed(2).replace("-", "−");

    function leave() {
      at = null;
      svg.classList.remove("hot");
      tip.classList.remove("shown");
      band.removeAttribute("d");
      groups.forEach((group) => group.classList.remove("near"));
    }

    function go(line, point) {
      at = { line, point };
      const { name, order, mean, low, high } = chart.lines[line];
      const [x, y] = [chart.x[point], down(mean[point])];
      svg.classList.add("hot");
      groups.forEach((group, i) => group.classList.toggle("near", i === line));
      const ink = getComputedStyle(groups[line]).getPropertyValue("--ink");
      dot.style.setProperty("--ink", ink);
      band.style.setProperty("--ink", ink);
      dot.setAttribute("cx", x);
      dot.setAttribute("cy", y);
      const bounded = chart.x.map((_, k) => k).filter((k) => low[k] !== null && high[k] !== null);
      const edge = [
        ...bounded.map((k) => `${chart.x[k]} ${down(high[k])}`),
        ...bounded.reverse().map((k) => `${chart.x[k]} ${down(low[k])}`),
      ];
      band.setAttribute("d", edge.length ? `M${edge.join("L")}Z` : "");
      const which = { morf: ", most relevant first", lerf: ", least relevant first" }[order] ?? "";
      const interval =
        low[point] === null ? "" : ` [${write(low[point])}, ${write(high[point])}]`;
      tip.textContent = `${name}${which}\n${chart.at[point]}: ${write(mean[point])}${interval}`;
      tip.classList.add("shown");
      const scale = svg.clientWidth / svg.viewBox.baseVal.width;
      const left = Math.min(x * scale + 12, svg.clientWidth - tip.offsetWidth);
      tip.style.left = `${Math.max(0, left)}px`;
      const top = svg.getBoundingClientRect().top - svg.parentElement.getBoundingClientRect().top;
      const over = y * scale - tip.offsetHeight - 12;
      tip.style.top = `${top + (over < 0 ? y * scale + 14 : over)}px`;
    }

    function nearest(event) {
      const frame = svg.getBoundingClientRect();
      const scale = svg.viewBox.baseVal.width / frame.width;
      const [px, py] = [(event.clientX - frame.left) * scale, (event.clientY - frame.top) * scale];
      let point = 0;
      chart.x.forEach((x, k) => {
        if (Math.abs(x - px) < Math.abs(chart.x[point] - px)) point = k;
      });
      let best = null;
      groups.forEach((_, i) => {
        if (!shown(i) || !known(i, point)) return;
        const far = Math.abs(down(chart.lines[i].mean[point]) - py);
        if (best === null || far < best.far) best = { line: i, far };
      });
      if (best === null) leave();
      else go(best.line, point);
    }

    function step(event) {
      if (event.key === "Escape") return leave();
      const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
      if (!(event.key in move)) return;
      event.preventDefault();
      const lines = groups.map((_, i) => i).filter(shown);
      if (!lines.length) return;
      const [across, along] = move[event.key];
      const place = at === null ? 0 : Math.max(0, lines.indexOf(at.line));
      const line = lines[at === null ? 0 : (place + across + lines.length) % lines.length];
      let point = at === null ? 0 : Math.min(Math.max(at.point + along, 0), chart.x.length - 1);
      while (point > 0 && !known(line, point)) point -= 1;
      if (known(line, point)) go(line, point);
    }

    svg.addEventListener("pointermove", nearest);
    svg.addEventListener("pointerdown", nearest);
    svg.addEventListener("pointerleave", leave);
    svg.addEventListener("keydown", step);
    svg.addEventListener("blur", leave);
  }

  document.querySelectorAll(".chart").forEach(live);

  // Many lines: those of the least relevant patches wait until they are asked for.
  const orders = (chart) => chart.lines.filter(({ order }) => order === "lerf").length;
  if (charts.some((chart) => orders(chart) > 6)) {
    hidden.order.add("lerf");
    show();
  }

  // On paper everything is open.
  let closed = [];
  window.addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    closed.forEach((each) => (each.open = true));
  });
  window.addEventListener("afterprint", () => closed.forEach((each) => (each.open = false)));
})();
