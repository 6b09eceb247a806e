"""The inspector in a real JupyterLab: a slider is moved, a patch clicked, the picture changes."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest
from browsers import InspectorPage, chromium, jupyterlab, missing

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # of selenium's own sockets
    pytest.mark.skipif(
        bool(missing("jupyterlab", "anywidget")), reason=missing("jupyterlab", "anywidget")
    ),
]

CELL = """
import infsa_explain
from infsa_explain.data import PhotoDigits
from infsa_explain.viewing.galleries import inspect

model = infsa_explain.load("infvit_linear_digits")
sample = PhotoDigits("val")[0]
inspect(model, sample.image, boxes=sample.boxes, label=sample.label)
"""
BYTES = """
const [image, done] = arguments;
fetch(image.src).then((r) => r.arrayBuffer()).then((b) => done(Array.from(new Uint8Array(b))));
"""


@pytest.fixture
def browser(tmp_path):
    with chromium(tmp_path / "profile", (1280, 1250)) as driver:
        yield driver


def test_slider_and_click_change_the_picture(browser, tmp_path):
    def picture(n):
        image = inspector.all(".infsa-frame img")[n]
        return bytes(browser.execute_async_script(BYTES, image))

    with jupyterlab(tmp_path, CELL) as address:
        inspector = InspectorPage(browser, address)
        keys = inspector.keys
        browser.save_screenshot(str(tmp_path / "opened.png"))
        captions = inspector.all(".infsa-caption")
        assert captions[0].text == "visits, layer 3, mean of 8 heads, γ 0.91 to 0.94"
        first = picture(0)
        assert first.startswith(b"\xff\xd8\xff")

        inspector.press("opacity", keys.ARROW_RIGHT * 5)
        assert inspector.find("[name=opacity]").get_attribute("value") == "0.55"
        stronger = picture(0)
        assert stronger != first
        inspector.choose("layer", "layer 1")
        assert captions[0].text.startswith("visits, layer 1, mean of 8 heads")
        assert picture(0) not in (first, stronger)

        row, column = 5, 4  # on the digit
        inspector.point_at(row, column)
        readout = inspector.find(".infsa-readout").text
        assert readout.startswith(f"row {row}, column {column}: ")
        inspector.point_at(row, column, click=True)
        assert inspector.find(".infsa-selected").is_displayed()
        assert [caption.is_displayed() for caption in captions] == [True] * 3
        title = f"where visits to row {row}, column {column} come from"
        assert inspector.all(".infsa-title")[1].text == title
        assert captions[1].text.startswith("layer 1, γ 0.93 to 0.95: itself ")
        sources = picture(1)
        assert sources != picture(2)
        browser.execute_script("arguments[0].scrollIntoView()", inspector.root)
        browser.save_screenshot(str(tmp_path / "clicked.png"))

        inspector.press("gamma", keys.HOME)
        assert captions[0].text.endswith("γ 0.01")
        assert picture(1) != sources
        assert not inspector.find("[name=target]").is_enabled()
        inspector.choose("method", "relevance")
        assert captions[0].text == "relevance, layers 0 to 3, of class 8"
        predicted = picture(0)
        entry = next(
            option.text
            for option in inspector.all("[name=target] option")
            if option.text.startswith("class ")
        )
        inspector.choose("target", entry)
        name = entry.partition(",")[0]
        assert captions[0].text == f"relevance, layers 0 to 3, of {name}"
        assert picture(0) != predicted
        browser.save_screenshot(str(tmp_path / "class.png"))
        inspector.choose("method", "centre")
        assert not inspector.find("[name=gamma]").is_enabled()
        assert not inspector.find("[name=layer]").is_enabled()
        assert not inspector.find("[name=target]").is_enabled()
        browser.save_screenshot(str(tmp_path / "centre.png"))
        severe = [
            entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"
        ]
        assert not [message for message in severe if "infsa" in message or "widget" in message]


#: What a host other than JupyterLab does with a widget: a model, a place, and VS Code's colours.
HOST = """
<style>body {{ background: white; {colours} }} </style><style>{css}</style>
<div id="place"></div>
<script type="module">
const encoded = {state};
const unpack = (text) => {{
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  return new DataView(bytes.buffer);
}};
for (const picture of encoded.pictures) {{
  picture.jpeg = unpack(picture.jpeg);
  picture.values = unpack(picture.values);
}}
const heard = {{}};
window.told = [];
const model = {{
  get: (name) => encoded[name],
  set: (name, value) => {{ encoded[name] = value; }},
  save_changes: () => {{ window.told.push(encoded.method); }},
  on: (name, call) => {{ heard[name] = call; }},
  off: (name) => {{ delete heard[name]; }},
}};
window.answer = (change) => {{  // as from Python
  Object.assign(encoded, change);
  for (const picture of encoded.pictures) {{
    picture.jpeg = unpack(picture.jpeg);
    picture.values = unpack(picture.values);
  }}
  heard["change:revision"]();
}};
const {{ default: widget }} = await import(URL.createObjectURL(
  new Blob([{esm}], {{ type: "text/javascript" }})));
window.leave = widget.render({{ model, el: document.getElementById("place") }});
</script>
"""


def opened(browser, folder, widget, colours=""):
    """The page of a host with a widget; returns the widget's root."""
    state = widget.get_state()
    for name in ("_esm", "_css"):
        state[name] = str(state[name])
    page = folder / "host.html"
    page.write_text(
        HOST.format(
            colours=colours,
            css=state.pop("_css"),
            esm=json.dumps(state.pop("_esm")),
            state=packed(state),
        ),
        encoding="utf-8",
    )
    browser.get(f"file://{page}")
    return browser.find_element("css selector", ".infsa-inspector")


def packed(state):
    return json.dumps(state, default=lambda raw: base64.b64encode(raw).decode())


@pytest.fixture
def widget():
    import infsa_explain
    from infsa_explain.data import PhotoDigits
    from infsa_explain.viewing.galleries import inspect

    sample = PhotoDigits("val")[0]
    return inspect(infsa_explain.load("infvit_linear_digits"), sample.image, boxes=sample.boxes)


def test_what_is_read_off_follows_the_picture(browser, tmp_path, widget):
    """The pointer stays on a patch; method, layer and head are changed by keys or from Python."""
    from selenium.webdriver import ActionChains

    opened(browser, tmp_path, widget)
    row, column = 5, 4
    frame = browser.find_element("css selector", ".infsa-frame")
    side = frame.size["width"] / 14
    offset = [round((place + 0.5 - 7) * side) for place in (column, row)]
    ActionChains(browser).move_to_element_with_offset(frame, *offset).perform()

    def read_off():
        text = browser.find_element("css selector", ".infsa-readout").text
        return text, browser.find_element("css selector", ".infsa-over").text

    def truth():
        values = np.frombuffer(widget.pictures[0]["values"], "<f4")
        score = values[14 * row + column]
        rank = 1 + int((values > score).sum())
        return f"row {row}, column {column}: rank {rank} of 196", float(f"{score:.3g}")

    seen = set()
    for change in ({}, {"method": "perron"}, {"layer": 1}, {"head": 2}, {"method": "gradcam"}):
        for name, value in change.items():
            setattr(widget, name, value)
        state = {name: widget.get_state()[name] for name in (*change, "pictures", "revision")}
        browser.execute_script(f"window.answer({packed(state)})")
        text, score = read_off()
        assert (text, float(score)) == truth()
        seen.add((text, score))
    assert len(seen) == 5
    assert not browser.find_element("css selector", "[name=head]").is_enabled()  # of Grad-CAM
    assert browser.find_element("css selector", "[name=layer]").is_enabled()
    away = browser.find_element("css selector", ".infsa-summary")
    ActionChains(browser).move_to_element(away).perform()
    assert read_off()[0].startswith("Point at a patch to read it off") and read_off()[1] == ""
    assert browser.get_log("browser") == []


def test_any_host_of_anywidget_will_do(browser, tmp_path, widget):
    """As in VS Code: no JupyterLab around, its colours for a dark editor, its white output cell."""
    from selenium.webdriver.support.ui import Select

    colours = "--vscode-editor-foreground: #d4d4d4; --vscode-editor-background: #1e1e1e;"
    root = opened(browser, tmp_path, widget, colours)
    style = "const s = getComputedStyle(arguments[0]); return [s.color, s.backgroundColor]"
    assert browser.execute_script(style, root) == ["rgb(212, 212, 212)", "rgb(30, 30, 30)"]
    drawn = "return document.querySelector('.infsa-frame img').decode().then(() => true)"
    assert browser.execute_script(drawn)
    Select(browser.find_element("css selector", "[name=method]")).select_by_visible_text("perron")
    assert browser.execute_script("return window.told") == ["perron"]
    browser.save_screenshot(str(tmp_path / "host.png"))
    browser.execute_script("window.leave()")
    assert browser.get_log("browser") == []
