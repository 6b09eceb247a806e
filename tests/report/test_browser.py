"""The report page in headless Chromium: quiet, legible, and its curves answer."""

from __future__ import annotations

import numpy as np
import pytest
from browsers import chromium, missing, resize
from report_runs import digits_run, rows_of, write_run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # of selenium's own sockets
    pytest.mark.skipif(bool(missing()), reason=missing()),
]

MODEL = "infvit_linear_digits"
IMAGES = 6
#: Of every text on the page: its size in pixels as it is on the screen.
SMALLEST = """
return Math.min(...[...document.querySelectorAll('body *')].filter((e) => e.checkVisibility() &&
  [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) &&
  !e.closest('.unseen, script, style')).map((e) => {
    const svg = e.closest('svg');
    const zoom = svg ? svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : 1;
    return zoom * parseFloat(getComputedStyle(e).fontSize);
}));
"""
#: Contrast of a colour variable with the paper, as WCAG 2 has it.
CONTRAST = """
const light = (name) => {
  const probe = document.body.appendChild(document.createElement('i'));
  probe.style.color = `var(${name})`;
  const rgb = getComputedStyle(probe).color.match(/[0-9.]+/g).slice(0, 3).map(Number);
  probe.remove();
  const [r, g, b] = rgb.map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
};
const [a, b] = [light(arguments[0]), light('--paper')];
return Math.max(a, b) / Math.min(a, b);
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page of a run of a real model with invented numbers."""
    import infsa_explain
    from infsa_explain.data import PhotoDigits
    from infsa_explain.report.html import write_page
    from infsa_explain.report.pictures import draw_gallery
    from infsa_explain.report.reading import read_run

    models = {MODEL: infsa_explain.load(MODEL)}
    methods = ("visits", "perron", "random", "centre")
    folder = digits_run(tmp_path_factory.mktemp("page") / "run", models, methods, IMAGES)
    run = read_run(folder)
    gallery = draw_gallery(run.report, run.config, models, PhotoDigits("val", IMAGES))
    return write_page(run, gallery)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture
def shown(browser, page):
    """The browser with the page, 1280 pixels wide and light; nothing may be logged."""

    def show(path=page, width=1280, scheme="light"):
        resize(browser, width, scheme=scheme)
        browser.get(f"file://{path}")
        return browser

    browser.get_log("browser")
    yield show
    assert browser.get_log("browser") == []


def means(method, order):
    """Mean curve of the invented numbers."""
    images = [f"photo-digits/val/0/{i}" for i in range(IMAGES)]
    rows = rows_of(MODEL, ("visits", "perron", "random", "centre"), images)
    return np.mean(
        [
            row["probabilities"]
            for row in rows
            if row.get("order") == order and row["method"] == method
        ],
        axis=0,
    )


def displayed(driver, css):
    from selenium.webdriver.common.by import By

    found = driver.find_elements(By.CSS_SELECTOR, css)
    assert found
    return [each.is_displayed() for each in found]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_legible_at_every_width_by_day_and_night(shown, width, scheme):
    driver = shown(width=width, scheme=scheme)
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    assert driver.execute_script(SMALLEST) > 9.9
    assert driver.execute_script(CONTRAST, "--text") > 12
    assert driver.execute_script(CONTRAST, "--soft") > 5
    lines = [f"--c{i}" for i in range(7)] + [f"--grey{i}" for i in range(3)]
    assert min(driver.execute_script(CONTRAST, name) for name in lines) > 2.2
    paper = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 24, 28)"}[scheme]


def test_wide_tables_scroll_in_their_box(shown):
    driver = shown(width=390)
    box = "document.querySelector('#boxes .scroll')"
    inside, outside = driver.execute_script(f"return [{box}.scrollWidth, {box}.clientWidth]")
    assert inside > outside + 200 and outside <= 358


def test_the_legend_shows_and_hides_lines(shown):
    from selenium.webdriver.common.by import By

    driver = shown()
    (button, _) = driver.find_elements(By.CSS_SELECTOR, "button[data-name=perron]")
    lines = ".line[data-name=perron]"
    assert all(displayed(driver, lines)) and len(displayed(driver, lines)) == 3  # deletion, sanity
    button.click()
    assert not any(displayed(driver, lines)) and all(displayed(driver, ".line[data-name=visits]"))
    pressed = [
        each.get_attribute("aria-pressed")
        for each in driver.find_elements(By.CSS_SELECTOR, "button[data-name=perron]")
    ]
    assert pressed == ["false", "false"]
    button.send_keys(" ")  # by keyboard, too
    assert all(displayed(driver, lines))
    driver.find_element(By.CSS_SELECTOR, "button[data-order=lerf]").click()
    assert not any(displayed(driver, ".line.lerf")) and all(displayed(driver, ".line.morf"))


def test_many_lines_begin_with_the_most_relevant_first(shown, tmp_path):
    from infsa_explain.report.html import write_page
    from infsa_explain.report.reading import read_run

    methods = ("visits", "katz", "perron", "linear", "degree", "random", "centre")
    driver = shown(write_page(read_run(write_run(tmp_path / "run", methods=methods)), "none"))
    assert all(displayed(driver, ".line.morf")) and not any(displayed(driver, ".line.lerf"))
    button = driver.find_element("css selector", "button[data-order=lerf]")
    assert button.get_attribute("aria-pressed") == "false"
    button.click()
    assert all(displayed(driver, ".line.lerf")) and all(displayed(driver, ".line.morf"))


def test_what_there_is_to_scroll_to_is_shaded(shown):
    """At its right edge a table is shaded as long as more of it lies there."""
    driver = shown(width=390)
    box = driver.find_element("css selector", "#boxes .scroll")
    driver.execute_script("arguments[0].scrollIntoView()", box)
    cut = column(driver, box)
    driver.execute_script("arguments[0].scrollLeft = 1e6", box)
    assert column(driver, box).max() == 255 > cut.max()


def column(driver, box):
    """Grey levels of the last column of pixels that a box has on the screen, in empty rows."""
    import io

    from PIL import Image

    pixels = np.asarray(Image.open(io.BytesIO(box.screenshot_as_png)).convert("L"))
    return pixels[:4, -1]  # above the table's text


def test_pointing_at_a_line_tells_its_values(shown):
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.by import By

    driver = shown()
    svg = driver.find_element(By.CSS_SELECTOR, "svg.chart")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", svg)
    expected = means("visits", "lerf")[3]  # the uppermost line there
    zoom = svg.size["width"] / 460
    x, y = 46 + 0.6 * (448 - 46) + 4, 256 - expected * (256 - 12) - 4
    place = [round(zoom * (x - 460 / 2)), round(zoom * (y - 300 / 2))]
    ActionChains(driver).move_to_element_with_offset(svg, *place).perform()
    name, value = driver.find_element(By.CSS_SELECTOR, ".tip.shown").text.split("\n")
    told = driver.find_element(By.CSS_SELECTOR, ".line.near").get_attribute("data-name")
    assert name == f"{told}, least relevant first"
    assert value.startswith(f"60.0% removed: {means(told, 'lerf')[3]:.2f} [")
    assert driver.find_element(By.CSS_SELECTOR, ".band").get_attribute("d").count("L") == 9
    ActionChains(driver).move_to_element(driver.find_element(By.TAG_NAME, "h1")).perform()
    assert driver.find_elements(By.CSS_SELECTOR, ".tip.shown, .line.near") == []


def test_arrow_keys_walk_along_the_lines(shown):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    driver = shown()
    svg = driver.find_element(By.CSS_SELECTOR, "svg.chart")
    svg.send_keys(Keys.ARROW_RIGHT)
    driver.find_element(By.CSS_SELECTOR, ".tip.shown")
    svg.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    tip = driver.find_element(By.CSS_SELECTOR, ".tip.shown").text
    assert tip.startswith(
        f"visits, most relevant first\n30.0% removed: {means('visits', 'morf')[2]:.2f} ["
    )
    svg.send_keys(Keys.ARROW_DOWN)
    tip = driver.find_element(By.CSS_SELECTOR, ".tip.shown").text
    assert tip.startswith(
        f"visits, least relevant first\n30.0% removed: {means('visits', 'lerf')[2]:.2f} ["
    )
    svg.send_keys(Keys.ESCAPE)
    assert driver.find_elements(By.CSS_SELECTOR, ".tip.shown") == []


def test_maps_and_boxes_can_be_taken_off_the_pictures(shown):
    from selenium.webdriver.common.by import By

    driver = shown()
    loaded = "return [...document.images].every((i) => i.complete && i.naturalWidth === 224)"
    assert driver.execute_script(loaded)
    assert all(displayed(driver, ".picture img")) and len(displayed(driver, ".picture img")) == 12
    driver.find_element(By.CSS_SELECTOR, ".show-maps").click()
    assert not any(displayed(driver, ".picture img")) and all(displayed(driver, ".picture svg"))
    driver.find_element(By.CSS_SELECTOR, ".show-boxes").click()
    assert not any(displayed(driver, ".picture svg"))


def test_on_paper_everything_is_open(shown):
    driver = shown()
    driver.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    assert (
        driver.execute_script("return document.querySelectorAll('details:not([open])').length") == 0
    )
    driver.execute_script("window.dispatchEvent(new Event('afterprint'))")
    assert driver.execute_script("return document.querySelectorAll('details[open]').length") == 0


def test_markup_in_names_does_nothing(shown, tmp_path):
    from selenium.webdriver.common.by import By

    from infsa_explain.report.html import write_page
    from infsa_explain.report.reading import read_run

    script = "<script>document.title = 'run'</script>"
    image = '"><img src=x onerror="document.title = \'run\'">'
    folder = write_run(
        tmp_path / "run", (script,), ("visits", image, "random"), [script, image], skipped=[image]
    )
    driver = shown(write_page(read_run(folder), script))
    assert driver.title == f"{script} on photo-digits: attention report"
    assert driver.find_element(By.TAG_NAME, "h1").text == script
    assert driver.execute_script("return document.images.length") == 0
    assert driver.execute_script("return document.scripts.length") == 2


def test_a_page_that_was_tampered_with_still_runs_nothing_else(browser, page, tmp_path):
    """Were something left unescaped, the page's policy would stop it."""
    evil = tmp_path / "evil.html"
    bad = "<script>document.title = 'run'</script><img src=x onerror=\"document.title = 'run'\">"
    evil.write_text(page.read_text().replace("<main>", f"<main>{bad}"))
    browser.get(f"file://{evil}")
    assert browser.title.endswith("attention report")
    log = " ".join(entry["message"] for entry in browser.get_log("browser"))
    assert "Content Security Policy" in log


def test_five_hundred_images_stay_below_five_megabytes(tmp_path):
    import infsa_explain
    from infsa_explain.data import PhotoDigits
    from infsa_explain.report.html import write_page
    from infsa_explain.report.pictures import draw_gallery
    from infsa_explain.report.reading import read_run

    models = {MODEL: infsa_explain.load(MODEL)}
    methods = ("visits", "katz", "perron", "linear", "degree", "rollout", "random", "centre")
    run = read_run(digits_run(tmp_path / "run", models, methods, 500))
    gallery = draw_gallery(run.report, run.config, models, PhotoDigits("val", 500))
    assert 1e5 < write_page(run, gallery).stat().st_size < 1e6
