"""Make the pictures of the report page and of the inspector anew, in headless Chromium.

Run from the checkout, with chromium, chromedriver, selenium and the extra ``notebooks``:
``python experiments/make_screenshots.py``. It measures two bundled models on the embedded benchmark
first, which takes some minutes.
"""

from __future__ import annotations

import base64
import io
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

DOCS = Path(__file__).parents[1] / "docs"
sys.path.insert(0, str(DOCS.parent / "tests"))

from browsers import InspectorPage, chromium, jupyterlab, resize  # noqa: E402

RUN = (
    "evaluate --model infvit_linear_digits --model vit_softmax_digits --metrics morf,boxes,align "
    "--methods visits,linear,rollout,relevance,untrained-visits,centre,random --limit 60 --steps 16"
)
CELL = """
import infsa_explain
from infsa_explain.data import PhotoDigits

model = infsa_explain.load("infvit_linear_digits")
sample = PhotoDigits("val")[0]
infsa_explain.inspect(model, sample.image, boxes=sample.boxes, label=sample.label)
"""


def capture(driver, left: float, top: float, width: float, height: float) -> Image.Image:
    """A part of the page, seen or not."""
    clip = {"x": left, "y": top, "width": width, "height": height, "scale": 1}
    shot = driver.execute_cdp_cmd(
        "Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip}
    )
    return Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")


def report(folder: Path) -> Image.Image:
    """Three stretches of the report page, side by side."""
    run = folder / "run"
    command = [sys.executable, "-m", "infsa_explain"]
    subprocess.run([*command, *RUN.split(), "--out", str(run)], check=True)
    subprocess.run([*command, "report", str(run)], check=True)
    width, height, gap = 1000, 1240, 24
    with chromium(folder / "profile") as driver:
        resize(driver, width)
        driver.get(f"file://{run / 'report.html'}")
        tops = [0] + [
            driver.execute_script(
                "return document.querySelector(arguments[0]).getBoundingClientRect().top", css
            )
            - gap
            for css in ("#morf .legend", "#images")
        ]
        parts = [capture(driver, 0, top, width, height) for top in tops]
    picture = Image.new("RGB", (width * len(parts) + gap * (len(parts) - 1), height), "#c9ced3")
    for i, part in enumerate(parts):
        picture.paste(part, (i * (width + gap), 0))
    return picture.resize(
        (6 * picture.width // 10, 6 * picture.height // 10), Image.Resampling.LANCZOS
    )


def inspector(folder: Path) -> Image.Image:
    """The inspector in JupyterLab, with a patch clicked."""
    with (
        jupyterlab(folder, CELL) as address,
        chromium(folder / "profile", (1020, 1500)) as driver,
    ):
        notebook = InspectorPage(driver, address.replace("/lab/tree/", "/doc/tree/"))
        notebook.choose("layer", "layer 1")
        notebook.point_at(5, 4, click=True)
        notebook.wait_for(lambda: len(notebook.shown(".infsa-frame img")) == 3)
        driver.execute_script("document.querySelector('.jp-cell-toolbar').remove()")
        left, top, right, bottom = driver.execute_script(
            "const frame = (css) => document.querySelector(css).getBoundingClientRect();"
            "const [cell, shown] = [frame('.jp-InputPrompt'), frame('.infsa-inspector')];"
            "return [cell.left, cell.top, shown.right, shown.bottom]"
        )
        return capture(driver, left, top, right + 8 - left, bottom + 8 - top)


if __name__ == "__main__":
    for name, make in (("inspector.png", inspector), ("report.jpg", report)):
        with tempfile.TemporaryDirectory() as folder:
            make(Path(folder)).save(DOCS / name, optimize=True, quality=85)
