"""A headless Chromium, and a JupyterLab with a notebook, for tests and for the docs' pictures."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import nbformat

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
)


def missing(*modules: str) -> str:
    """What a browser test lacks, in words; empty where all is there."""
    lacking = [name for name in ("selenium", *modules) if find_spec(name) is None]
    lacking += [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"no {', '.join(lacking)}" if lacking else ""


@contextmanager
def chromium(profile: Path, size: tuple[int, int] = (1280, 900)) -> Iterator:
    """A browser that logs what pages say."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    size_flag = f"--window-size={size[0]},{size[1]}"
    for flag in [*FLAGS.split(), size_flag, f"--user-data-dir={profile}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    driver.set_script_timeout(60)
    try:
        yield driver
    finally:
        driver.quit()


def resize(driver, width: int, height: int = 900, scheme: str = "light", density: int = 1) -> None:
    """Let pages see a window of this size, a phone's below 600 pixels, by day or by night."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": density}
    metrics["mobile"] = width < 600
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    feature = {"name": "prefers-color-scheme", "value": scheme}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


@contextmanager
def jupyterlab(folder: Path, cell: str) -> Iterator[str]:
    """The address of a notebook of one cell in a JupyterLab that is served from a folder."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell.strip())])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    (folder / "files").mkdir()
    nbformat.write(notebook, folder / "files" / "inspect.ipynb")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = secrets.token_hex()
    places = {}
    for name in ("HOME", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        places[name] = str(folder / name.lower())
        Path(places[name]).mkdir()
    quiet = {"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}
    page_config = Path(places["JUPYTER_CONFIG_DIR"]) / "labconfig" / "page_config.json"
    page_config.parent.mkdir()
    page_config.write_text(json.dumps(quiet))
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}"]
    command += ["--ip=127.0.0.1", f"--IdentityProvider.token={token}"]
    with (folder / "lab.log").open("w") as log:
        server = subprocess.Popen(
            command, cwd=folder / "files", env={**os.environ, **places}, stdout=log, stderr=log
        )
    try:
        address = f"http://127.0.0.1:{port}"
        for _ in range(600):
            if server.poll() is not None:
                raise RuntimeError((folder / "lab.log").read_text())
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


class InspectorPage:
    """The inspector of a notebook of one cell: run it, turn its controls, wait for its answers."""

    def __init__(self, driver, address: str) -> None:
        from selenium.webdriver import ActionChains, Keys

        self.driver, self.keys = driver, Keys
        driver.get(address)
        for _ in range(30):  # a kernel that is only just there may lose what comes at once
            self.wait_for(lambda: self.shown(".jp-Notebook .cm-content"))[0].click()
            enter = ActionChains(driver).key_down(Keys.SHIFT).send_keys(Keys.ENTER)
            enter.key_up(Keys.SHIFT).pause(4).perform()
            prompt = self.shown(".jp-InputPrompt")[0].text
            if "[*]" in prompt or "[1]" in prompt:
                break
        (self.root,) = self.wait_for(lambda: self.shown(".infsa-inspector[data-revision]"))

    def all(self, css: str) -> list:
        """Elements, seen or not."""
        return self.driver.find_elements("css selector", css)

    def find(self, css: str):
        """The first of them."""
        return self.driver.find_element("css selector", css)

    def shown(self, css: str) -> list:
        """Those that are seen."""
        return [one for one in self.all(css) if one.is_displayed()]

    def wait_for(self, met, seconds: float = 300):
        """What ``met`` returns, once that is true."""
        from selenium.common.exceptions import StaleElementReferenceException
        from selenium.webdriver.support.ui import WebDriverWait

        redrawn = [StaleElementReferenceException]  # between being found and being looked at
        return WebDriverWait(self.driver, seconds, 0.2, redrawn).until(lambda _: met())

    def after(self, action) -> None:
        """Do something, and wait for the answer from Python."""
        before = int(self.root.get_attribute("data-revision"))
        action()
        self.wait_for(lambda: int(self.root.get_attribute("data-revision")) > before)
        self.wait_for(lambda: "infsa-busy" not in self.root.get_attribute("class"))

    def choose(self, name: str, text: str) -> None:
        """An entry of a menu, by how it is written."""
        from selenium.webdriver.support.ui import Select

        menu = Select(self.find(f"[name={name}]"))
        self.after(lambda: menu.select_by_visible_text(text))

    def press(self, name: str, keys: str) -> None:
        """Click a slider in its middle, and turn it by the keyboard."""
        from selenium.webdriver import ActionChains

        self.after(self.find(f"[name={name}]").click)
        self.after(lambda: ActionChains(self.driver).send_keys(keys).perform())
        self.wait_for(lambda: "infsa-busy" not in self.root.get_attribute("class"))

    def point_at(self, row: int, column: int, click: bool = False) -> None:
        """Move the pointer to a patch of the first picture, of 14 × 14, and click it or not."""
        from selenium.webdriver import ActionChains

        frame = self.find(".infsa-frame")
        side = frame.size["width"] / 14
        offset = [round((place + 0.5 - 7) * side) for place in (column, row)]
        ActionChains(self.driver).move_to_element_with_offset(frame, *offset).perform()
        if click:
            self.after(lambda: ActionChains(self.driver).click().perform())
