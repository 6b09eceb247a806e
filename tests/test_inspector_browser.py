"""The inspector in a real JupyterLab: a slider is moved, a patch clicked, the picture changes."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from importlib.util import find_spec
from pathlib import Path

import nbformat
import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # of selenium's own sockets
    *(
        pytest.mark.skipif(find_spec(name) is None, reason=f"{name} is not installed")
        for name in ("selenium", "jupyterlab", "anywidget")
    ),
    pytest.mark.skipif(
        not (shutil.which("chromium") and shutil.which("chromedriver")),
        reason="no chromium and chromedriver",
    ),
]

CELL = """
import infsa_explain
from infsa_explain.data import PhotoDigits
from infsa_explain.inspector import inspect

model = infsa_explain.load("infvit_linear_digits")
sample = PhotoDigits("val")[0]
inspect(model, sample.image, boxes=sample.boxes)
"""
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync "
    "--window-size=1280,1250"
)
BYTES = """
const [image, done] = arguments;
fetch(image.src).then((r) => r.arrayBuffer()).then((b) => done(Array.from(new Uint8Array(b))));
"""


@pytest.fixture
def lab(tmp_path):
    """The address of a notebook in a JupyterLab."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL.strip())])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    (tmp_path / "files").mkdir()
    nbformat.write(notebook, tmp_path / "files" / "inspect.ipynb")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = secrets.token_hex()
    places = {}
    for name in ("HOME", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        places[name] = str(tmp_path / name.lower())
        Path(places[name]).mkdir()
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}"]
    command += ["--ip=127.0.0.1", f"--IdentityProvider.token={token}"]
    with (tmp_path / "lab.log").open("w") as log:
        server = subprocess.Popen(
            command,
            cwd=tmp_path / "files",
            env={**os.environ, **places},
            stdout=log,
            stderr=log,
        )
    try:
        address = f"http://127.0.0.1:{port}"
        for _ in range(600):
            assert server.poll() is None, (tmp_path / "lab.log").read_text()
            try:
                urllib.request.urlopen(f"{address}/api/status?token={token}", timeout=5).close()
                break
            except urllib.error.URLError:
                time.sleep(0.5)
        yield f"{address}/lab/tree/inspect.ipynb?token={token}"
    finally:
        server.terminate()
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


@pytest.fixture
def browser(tmp_path):
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in [*FLAGS.split(), f"--user-data-dir={tmp_path / 'profile'}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    driver = webdriver.Chrome(options, service)
    driver.set_script_timeout(60)
    yield driver
    driver.quit()


def test_slider_and_click_change_the_picture(lab, browser, tmp_path):
    from selenium.webdriver import ActionChains, Keys
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import Select, WebDriverWait

    def find(css):
        return browser.find_element(By.CSS_SELECTOR, css)

    def shown(css):
        return [one for one in browser.find_elements(By.CSS_SELECTOR, css) if one.is_displayed()]

    def wait_for(met, seconds=300):
        return WebDriverWait(browser, seconds, 0.2).until(lambda _: met())

    def picture(n):
        image = browser.find_elements(By.CSS_SELECTOR, ".infsa-frame img")[n]
        return bytes(browser.execute_async_script(BYTES, image))

    def after(action):
        """Do something, and wait for the answer from Python."""
        before = int(inspector.get_attribute("data-revision"))
        action()
        wait_for(lambda: int(inspector.get_attribute("data-revision")) > before)
        wait_for(lambda: "infsa-busy" not in inspector.get_attribute("class"))

    def press(css, keys):
        """Click a slider in its middle, and turn it by the keyboard."""
        after(find(css).click)
        after(lambda: ActionChains(browser).send_keys(keys).perform())
        wait_for(lambda: "infsa-busy" not in inspector.get_attribute("class"))

    browser.get(lab)
    for _ in range(30):  # a kernel that is only just there may lose what comes at once
        wait_for(lambda: shown(".jp-Notebook .cm-content"))[0].click()
        enter = ActionChains(browser).key_down(Keys.SHIFT).send_keys(Keys.ENTER)
        enter.key_up(Keys.SHIFT).pause(4).perform()
        if "[*]" in (prompt := shown(".jp-InputPrompt")[0].text) or "[1]" in prompt:
            break
    (inspector,) = wait_for(lambda: shown(".infsa-inspector[data-revision]"))
    browser.save_screenshot(str(tmp_path / "opened.png"))
    captions = browser.find_elements(By.CSS_SELECTOR, ".infsa-caption")
    assert captions[0].text == "visits, layer 3, mean of 8 heads, γ 0.91 to 0.94"
    first = picture(0)
    assert first.startswith(b"\xff\xd8\xff")

    press("[name=opacity]", Keys.ARROW_RIGHT * 5)
    assert find("[name=opacity]").get_attribute("value") == "0.55"
    stronger = picture(0)
    assert stronger != first
    after(lambda: Select(find("[name=layer]")).select_by_visible_text("layer 1"))
    assert captions[0].text.startswith("visits, layer 1, mean of 8 heads")
    assert picture(0) not in (first, stronger)

    frame = find(".infsa-frame")
    row, column = 5, 4  # on the digit, of 14 rows and columns
    side = frame.size["width"] / 14
    offset = [round((place + 0.5 - 7) * side) for place in (column, row)]
    ActionChains(browser).move_to_element_with_offset(frame, *offset).perform()
    assert find(".infsa-readout").text.startswith(f"row {row}, column {column}: ")
    after(lambda: ActionChains(browser).click().perform())
    assert find(".infsa-selected").is_displayed()
    assert [caption.is_displayed() for caption in captions] == [True] * 3
    title = f"where visits to row {row}, column {column} come from"
    assert browser.find_elements(By.CSS_SELECTOR, ".infsa-title")[1].text == title
    assert captions[1].text.startswith("layer 1, γ 0.93 to 0.95: itself ")
    sources = picture(1)
    assert sources != picture(2)
    inspector = find(".infsa-inspector")
    browser.execute_script("arguments[0].scrollIntoView()", inspector)
    browser.save_screenshot(str(tmp_path / "clicked.png"))

    press("[name=gamma]", Keys.HOME)
    assert captions[0].text.endswith("γ 0.01")
    assert picture(1) != sources
    after(lambda: Select(find("[name=method]")).select_by_visible_text("centre"))
    assert not find("[name=gamma]").is_enabled()
    assert not find("[name=layer]").is_enabled()
    browser.save_screenshot(str(tmp_path / "centre.png"))
    severe = [
        entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"
    ]
    assert not [message for message in severe if "infsa" in message or "widget" in message]
