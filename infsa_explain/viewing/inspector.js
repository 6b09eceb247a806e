// The inspector's controls and pictures. Python computes the pictures: a control sets a trait of
// the model, and `revision` changes when the new pictures have arrived.

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function control(label, input, ...more) {
  const row = element("label", { className: "infsa-control" }, element("span", {}, label), input);
  row.append(...more);
  return row;
}

function menu(name, entries, send) {
  const input = element("select", { name });
  for (const [value, text, title] of entries) {
    input.append(element("option", { value: JSON.stringify(value), title: title ?? "" }, text));
  }
  input.addEventListener("change", () => send(name, JSON.parse(input.value)));
  return input;
}

function slider(name, min, max, send) {
  const input = element("input", { name, type: "range", min, max, step: 0.01 });
  input.addEventListener("input", () => send(name, Number(input.value)));
  return input;
}

function written(value, unit) {
  if (Number.isNaN(value)) return "no score";
  return unit === "share" ? `${(100 * value).toPrecision(3)}%` : value.toPrecision(3);
}

// A picture with its colour bar. Calls back with the patch under the pointer, or null.
function panel([rows, columns], boxes, onHover, onClick) {
  const title = element("div", { className: "infsa-title" });
  const image = element("img", { alt: "", draggable: false });
  const frame = element("div", { className: "infsa-frame" }, image);
  const bar = element("div", { className: "infsa-bar" });
  const ends = [element("span"), element("span", { className: "infsa-over" }), element("span")];
  const caption = element("div", { className: "infsa-caption" });
  for (const [x0, y0, x1, y1] of boxes) {
    const box = element("div", { className: "infsa-box" });
    const edges = { left: x0, top: y0, width: x1 - x0, height: y1 - y0 };
    for (const [edge, share] of Object.entries(edges)) box.style[edge] = `${100 * share}%`;
    frame.append(box);
  }
  const marks = {};
  for (const name of ["selected", "hovered"]) {
    marks[name] = element("div", { className: `infsa-${name}`, hidden: true });
    marks[name].style.width = `${100 / columns}%`;
    marks[name].style.height = `${100 / rows}%`;
    frame.append(marks[name]);
  }

  const below = (event) => {
    const { left, top, width, height } = frame.getBoundingClientRect();
    const column = Math.floor((columns * (event.clientX - left)) / width);
    const row = Math.floor((rows * (event.clientY - top)) / height);
    const inside = row >= 0 && row < rows && column >= 0 && column < columns;
    return inside ? row * columns + column : null;
  };
  frame.addEventListener("pointermove", (event) => onHover(below(event)));
  frame.addEventListener("pointerleave", () => onHover(null));
  frame.addEventListener("click", (event) => onClick(below(event)));

  let shown = null;
  let values = new Float32Array();
  return {
    frame,
    root: element(
      "div",
      { className: "infsa-panel" },
      title,
      frame,
      bar,
      element("div", { className: "infsa-ends" }, ...ends),
      caption,
    ),
    show(picture) {
      shown = picture;
      const bytes = picture.values;
      values = new Float32Array(
        bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength),
      );
      URL.revokeObjectURL(image.src);
      image.src = URL.createObjectURL(new Blob([picture.jpeg], { type: "image/jpeg" }));
      frame.style.aspectRatio = picture.size.join(" / ");
      title.textContent = picture.title;
      caption.textContent = picture.caption;
      bar.style.background = `linear-gradient(to right, ${picture.colours.join(", ")})`;
      ends[0].textContent = written(picture.low, picture.unit);
      ends[2].textContent = written(picture.high, picture.unit);
    },
    mark(name, patch) {
      const mark = marks[name];
      mark.hidden = patch === null;
      if (patch !== null) {
        mark.style.left = `${(100 * (patch % columns)) / columns}%`;
        mark.style.top = `${(100 * Math.floor(patch / columns)) / rows}%`;
      }
      if (name === "hovered") {
        ends[1].textContent = patch === null || !shown ? "" : written(values[patch], shown.unit);
      }
    },
    rank: (patch) => 1 + values.filter((value) => value > values[patch]).length,
    close: () => URL.revokeObjectURL(image.src),
  };
}

function render({ model, el }) {
  const { methods, layers, heads, targets, grid, scales, colormaps, boxes } = model.get("menus");
  const root = element("div", { className: "infsa-inspector" });
  // Keeps notebooks from handling the keys that move the sliders.
  root.dataset.lmSuppressShortcuts = "true";
  root.addEventListener("keydown", (event) => event.stopPropagation());

  const send = (name, value) => {
    model.set(name, value);
    model.save_changes();
    root.classList.add("infsa-busy");
  };

  const numbered = (count, name) => Array.from({ length: count }, (_, i) => [i, `${name} ${i}`]);
  const plain = (names) => names.map((name) => [name, name]);
  const inputs = {
    method: menu("method", methods.map(({ name, summary }) => [name, name, summary]), send),
    layer: menu("layer", [...numbered(layers, "layer"), ["mean", "mean of all"]], send),
    head: menu("head", [[null, "mean of all"], ...numbered(heads, "head")], send),
    gamma: slider("gamma", 0.01, 0.99, send),
    target: menu("target", targets, send),
    scale: menu("scale", plain(scales), send),
    colormap: menu("colormap", plain(colormaps), send),
    opacity: slider("opacity", 0, 1, send),
  };
  const gammaText = element("output");
  const opacityText = element("output");
  const own = element("button", { type: "button", title: "the model's own γ" }, "own");
  own.addEventListener("click", () => send("gamma", null));
  const summary = element("div", { className: "infsa-summary" });
  const message = element("div", { className: "infsa-message" });
  const readout = element("div", { className: "infsa-readout", ariaLive: "polite" });

  let pointed = null; // the patch under the pointer
  const hover = (patch) => {
    pointed = patch;
    for (const each of panels) each.mark("hovered", patch);
    readout.textContent = "Point at a patch to read it off; click it to see its visits.";
    if (patch !== null) {
      const place = `row ${Math.floor(patch / grid[1])}, column ${patch % grid[1]}`;
      readout.textContent = `${place}: rank ${panels[0].rank(patch)} of ${grid[0] * grid[1]}`;
    }
  };
  const select = (patch) => send("patch", patch === model.get("patch") ? null : patch);
  const panels = [0, 1, 2].map(() => panel(grid, boxes, hover, select));
  const [main, ...flows] = panels;
  main.frame.tabIndex = 0;
  main.frame.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -grid[1], ArrowDown: grid[1] }[event.key];
    const patch = (model.get("patch") ?? 0) + step;
    if (step === undefined || patch < 0 || patch >= grid[0] * grid[1]) return;
    event.preventDefault();
    send("patch", patch);
  });

  const controls = element(
    "div",
    { className: "infsa-controls" },
    control("method", inputs.method),
    summary,
    control("layer", inputs.layer),
    control("head", inputs.head),
    control("γ", inputs.gamma, gammaText, own),
    control("class", inputs.target),
    control("scale", inputs.scale),
    control("colours", inputs.colormap),
    control("opacity", inputs.opacity, opacityText),
    readout,
    message,
  );
  const below = element("div", { className: "infsa-flows" }, ...flows.map((flow) => flow.root));
  root.append(element("div", { className: "infsa-top" }, main.root, controls), below);
  el.append(root);

  const update = () => {
    root.classList.remove("infsa-busy");
    const chosen = methods.find(({ name }) => name === model.get("method"));
    for (const name of ["method", "layer", "head", "target", "scale", "colormap"]) {
      inputs[name].value = JSON.stringify(model.get(name));
    }
    inputs.layer.disabled = chosen?.scope === "model";
    inputs.head.disabled = chosen?.heads === false;
    inputs.target.disabled = !chosen?.of_a_class || !targets.length;
    summary.textContent = chosen?.summary ?? "";
    message.textContent = model.get("message");

    const gammas = model.get("gammas");
    const [low, high] = [Math.min(...gammas).toFixed(2), Math.max(...gammas).toFixed(2)];
    inputs.gamma.disabled = own.disabled = !gammas.length;
    gammaText.textContent = !gammas.length ? "none" : low === high ? low : `${low} to ${high}`;
    if (gammas.length) inputs.gamma.value = gammas.reduce((a, b) => a + b) / gammas.length;
    inputs.opacity.value = model.get("opacity");
    opacityText.textContent = model.get("opacity").toFixed(2);

    const pictures = model.get("pictures");
    pictures.forEach((picture, i) => panels[i].show(picture));
    below.hidden = pictures.length < 2;
    for (const each of panels) each.mark("selected", model.get("patch"));
    hover(pointed); // shows the value in the new picture
    root.dataset.revision = model.get("revision");
  };
  model.on("change:revision", update);
  update();

  return () => {
    model.off("change:revision", update);
    for (const each of panels) each.close();
  };
}

export default { render };
