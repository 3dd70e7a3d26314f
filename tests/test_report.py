"""report.py: its data against the checkpoint, and its page in a real browser."""

import base64
import io
import json
import re
import runpy
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from conftest import ROOT, as_program
from PIL import Image

import evaluate
import report

SMALL = ["--env", "memory", "--num-envs", 5, "--num-steps", 32, "--bptt-length", 16, "--minibatch-size", 64]
SCRIPTS = sorted(path.name for path in ROOT.glob("ppo_lstm*.py"))
SECTIONS = ("summary", "curves", "map", "atlas", "episode", "speed", "flags")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """{script: the folder of a short run}; the runs with a bonus that can be asked again are evaluated, too."""
    folder = tmp_path_factory.mktemp("report")
    found = {}
    for script in SCRIPTS:
        with as_program(folder, script, *SMALL, "--total-timesteps", 480):
            runpy.run_path(str(ROOT / script), run_name="__main__")
        (found[script],) = (folder / "runs").glob(f"memory__{script[:-3]}__*")
    for script, *flags in (("ppo_lstm_jci.py", "--video"), ("ppo_lstm_rnd.py",)):
        with as_program(folder, "evaluate.py", found[script], "--episodes", 5, *flags):
            evaluate.main()
    return found


@pytest.fixture(scope="module")
def browser():
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        pytest.skip("needs a browser: apt-get install chromium chromium-driver")
    from selenium.webdriver import Chrome
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = shutil.which("chromium")
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options=options, service=Service(shutil.which("chromedriver")))
    driver.set_page_load_timeout(180)
    yield driver
    driver.quit()


class Page:
    def __init__(self, browser, file, width=1280):
        self.browser = browser
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get(f"file://{file}")

    def __call__(self, script):
        return self.browser.execute_script(f"return {script}")

    def click(self, selector):
        self(f"document.querySelector('{selector}').click()")

    def wait(self, script):
        deadline = time.time() + 60
        while not self(script):
            assert time.time() < deadline, f"never came true: {script}"
            time.sleep(0.1)

    def errors(self):
        return [entry for entry in self.browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]

    def words(self, section):
        return self(f"[...document.querySelectorAll('#{section} .empty')].map(node => node.textContent).join(' ')")

    def check(self):
        """Every section has drawn plots, tables, pictures, or words that say why not."""
        for section in SECTIONS:
            inside = f"document.querySelector('#{section} .content')"
            height = self(f"{inside}.getBoundingClientRect().height")
            assert height > 20, f"#{section} is empty"
            assert self(f"{inside}.textContent.trim().length") > 10, f"#{section} says nothing"
            drawn = "path.js-line, .points path, .heatmaplayer image, .fills path"
            for number in range(self(f"{inside}.querySelectorAll('.plot').length")):
                plot = f"document.querySelectorAll('#{section} .content .plot')[{number}]"
                self.wait(f"{plot}.querySelectorAll('{drawn}').length > 0")
            has_content = "'.plot, table, .tile, .empty'"
            assert self(f"{inside}.querySelectorAll({has_content}).length"), f"#{section} has no content"
        self.wait("document.documentElement.scrollWidth <= window.innerWidth")  # plotly draws a plot twice
        assert self.errors() == []


def data_of(page):
    text = page.read_text()
    return json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.DOTALL)[1])


def make_page(*folders, out):
    with as_program(out.parent, "report.py", *folders, "--out", out):
        report.main()
    assert out.stat().st_size < 10e6
    return out


@pytest.fixture(scope="module")
def jci_page(runs, tmp_path_factory):
    return make_page(runs["ppo_lstm_jci.py"], out=tmp_path_factory.mktemp("jci") / "page.html")


def test_the_data_is_the_checkpoint(runs, jci_page):
    (data,) = data_of(jci_page)
    checkpoint = torch.load(runs["ppo_lstm_jci.py"] / "checkpoint.pt", weights_only=True)
    atlas, visits = checkpoint["atlas"], checkpoint["visits"]
    counts = np.zeros(len(visits["cells"]), int)
    for period in data["map"]["periods"]:
        for cell, number in zip(period[::2], period[1::2]):
            counts[cell] += number
    assert counts.tolist() == visits["counts"].tolist()
    assert data["map"]["ends"][-1] == checkpoint["global_step"] == 480
    assert np.sum(data["atlas"]["history"], axis=1).tolist() == atlas["steps"].tolist() == data["atlas"]["steps"]
    sheet = Image.open(io.BytesIO(base64.b64decode(data["atlas"]["sprite"].split(",")[1]))).convert("RGB")
    for row, image in enumerate(atlas["images"]):
        left, top = row % 50 * 42, row // 50 * 42
        shown = np.asarray(sheet.crop((left, top, left + 42, top + 42))).mean((0, 1))
        np.testing.assert_allclose(shown, image.mean((1, 2)), atol=6)  # it is compressed
    rows = (runs["ppo_lstm_jci.py"] / "progress.csv").read_text().splitlines()
    assert data["progress"]["global_step"] == [160, 320, 480] == [int(row.split(",")[0]) for row in rows[1:]]
    assert jci_page.read_text().count("http-equiv") == 0
    assert not re.search(r'<(script|link|img|video)[^>]+(src|href)="(?!data:)', jci_page.read_text()), "it loads a file"


def test_long_csv_files_are_thinned_out_and_half_a_row_is_left_out(tmp_path):
    file = tmp_path / "progress.csv"
    lines = ["global_step,a", *(f"{i},{'nan' if i == 0 else i * i}" for i in range(5000)), "5000"]
    file.write_text("\n".join(lines))
    columns = report.read_rows(file)
    assert len(columns["global_step"]) == report.MOST_ROWS
    assert columns["global_step"][-1] == 4999
    assert columns["a"][0] is None
    assert all(a == i * i for i, a in zip(columns["global_step"][1:], columns["a"][1:]))
    file.write_text("global_step,a\n")
    assert report.read_rows(file) == report.read_rows(tmp_path / "none.csv") == {}


@pytest.mark.parametrize("width", [1280, 400])
def test_a_run_with_everything(width, jci_page, browser):
    page = Page(browser, jci_page, width)
    page.check()
    (data,) = data_of(jci_page)
    assert all(page.words(section) == "" for section in SECTIONS)
    assert page("document.querySelectorAll('#curves .plot').length") >= 8
    assert page("document.querySelectorAll('.cluster').length") == len(data["atlas"]["steps"])
    assert page("document.querySelectorAll('#all-flags tr').length") == len(data["args"])
    assert page("document.querySelector('#bonus .points').querySelectorAll('path').length") == 4

    # the slider: at its left end there are the visits of the first period, and at its right end all
    total = "document.getElementById('visits').data[1].customdata.flat().reduce((sum, n) => sum + n, 0)"
    assert page(total) == 480
    page("(() => { const time = document.getElementById('time'); time.value = 0; time.oninput(); })()")
    page.wait(f"{total} === {data['map']['ends'][0]}")
    assert str(data["map"]["ends"][0]) in page("document.getElementById('until').textContent")

    # a click on a cluster, and another order
    page.click(".cluster:nth-child(2)")
    row = data["atlas"]
    facts = page("document.querySelector('.detail table').textContent")
    assert facts.startswith("cluster1")
    assert f"steps{row['steps'][1]:,}" in facts
    chosen = page(
        "(() => { const trace = document.getElementById('cluster-map').data[5]; return [trace.x, trace.y]; })()"
    )
    assert np.transpose(chosen).tolist() == [row["birthplaces"][1], row["positions"][1]]
    assert page("document.getElementById('cluster-history').data[0].y") == row["history"][1]
    page("(() => { const sort = document.getElementById('sort'); sort.value = '-steps'; sort.onchange(); })()")
    numbers = page("[...document.querySelectorAll('.cluster b')].map(node => +node.textContent)")
    assert numbers == sorted(range(len(row["steps"])), key=lambda i: (-row["steps"][i], i))
    page("(() => { const box = document.getElementById('search'); box.value = '1-2 steps>0'; box.oninput(); })()")
    assert page("[...document.querySelectorAll('.cluster:not([hidden]) b')].map(n => +n.textContent).sort()") == [1, 2]
    assert page("document.getElementById('found').textContent") == "2 found"

    page.wait("document.getElementById('video').readyState > 0")
    assert page("document.getElementById('video').videoWidth") == 1280
    assert page.errors() == []


def test_all_scripts_side_by_side(runs, browser, tmp_path):
    page = Page(browser, make_page(*runs.values(), out=tmp_path / "page.html"))
    for i, script in enumerate(runs):
        page.click(f"#choose button:nth-child({i + 1})")
        page.check()
        assert (page.words("atlas") == "") == (script == "ppo_lstm_jci.py")
        if script != "ppo_lstm_jci.py":
            assert f"{script} keeps no clusters" in page.words("atlas")
        if script not in ("ppo_lstm_jci.py", "ppo_lstm_rnd.py"):
            assert "python evaluate.py" in page.words("episode")
    assert page("document.querySelectorAll('#summary tr').length") == 1 + len(runs)
    assert "--memory-size" in page("document.querySelector('#flags table').textContent")


def test_runs_that_were_interrupted(runs, browser, tmp_path):
    for name, kept in (("only_flags", []), ("no_iteration", ["checkpoint.pt"]), ("damaged", ["checkpoint.pt"])):
        (tmp_path / name).mkdir()
        for file in ["args.json", *kept]:
            shutil.copy(runs["ppo_lstm_jci.py"] / file, tmp_path / name)
    (tmp_path / "damaged" / "checkpoint.pt").write_bytes(b"half of it")
    page = Page(browser, make_page(tmp_path / "only_flags", out=tmp_path / "page.html"))
    page.check()
    assert "no finished iteration yet" in page.words("summary")
    assert "no checkpoint yet" in page.words("map")
    assert "no checkpoint yet" in page.words("atlas")
    folders = [tmp_path / name for name in ("no_iteration", "damaged")]
    page = Page(browser, make_page(*folders, out=tmp_path / "page.html"))
    for i in (1, 2):
        page.click(f"#choose button:nth-child({i})")
        page.check()


def test_two_thousand_clusters(runs, browser, tmp_path):
    run, number, rng = tmp_path / "large", 2000, np.random.default_rng(0)
    shutil.copytree(runs["ppo_lstm_jci.py"], run)
    checkpoint = torch.load(run / "checkpoint.pt", weights_only=True)
    history = torch.from_numpy(rng.integers(500, size=(number, 64), dtype=np.int32))
    images = rng.integers(256, size=(number, 3, 6, 6)).repeat(7, 2).repeat(7, 3)  # busier than mean images are
    checkpoint["atlas"] = {
        "steps": history.sum(1),
        "appearances": torch.from_numpy(rng.integers(1, 999, size=number)),
        "births": torch.arange(number) * 100,
        "birthplaces": torch.from_numpy(rng.normal(size=(number, 2))),
        "positions": torch.from_numpy(rng.normal(size=(number, 2))),
        "images": torch.from_numpy(images).float(),
        "history": history,
    }
    checkpoint["table"]["episodes"] = torch.from_numpy(rng.integers(1, 999, size=number))
    torch.save(checkpoint, run / "checkpoint.pt")
    page = Page(browser, make_page(run, out=tmp_path / "page.html"))
    page.check()
    assert page("document.querySelectorAll('.cluster').length") == number
    seconds = page(
        "(() => { const start = performance.now(), sort = document.getElementById('sort'); sort.value = '-episodes';"
        "sort.onchange(); document.body.offsetHeight; return (performance.now() - start) / 1000; })()"
    )
    assert seconds < 2, "to sort them must not feel slow"


@pytest.mark.parametrize("section", ["Curves", "Map", "Atlas", "Episode", "Speed", "Flags", "Summary"])
def test_an_empty_panel_is_noticed(section, jci_page, browser, tmp_path):
    text = jci_page.read_text()
    assert text.count(f"function show{section}() {{") == 1
    (tmp_path / "page.html").write_text(
        text.replace(f"function show{section}() {{", f"function show{section}() {{ return;")
    )
    with pytest.raises(AssertionError, match=f"#{section.lower()} is empty"):
        Page(browser, tmp_path / "page.html").check()


def test_the_newest_run_is_the_default_and_what_is_no_run_is_said(runs, tmp_path, capsys):
    newest = max(runs.values(), key=lambda run: (run / "args.json").stat().st_mtime)
    with as_program(newest.parents[1], "report.py"):
        report.main()
    assert f"runs/{newest.name}/report.html" in capsys.readouterr().out
    for arguments, sentence in [([], "There is no run in runs/"), ([tmp_path], "no args.json in it; give the folder")]:
        command = [sys.executable, str(ROOT / "report.py"), *map(str, arguments)]
        process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert process.returncode == 1
        assert sentence in process.stderr
        assert len(process.stderr.strip().splitlines()) == 1
