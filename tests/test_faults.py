"""Interrupted, killed, out of memory, in odd surroundings, a hundred times over: still right."""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import subprocess
import sys
import time
import tracemalloc
import warnings
from functools import cache

import killed
import pytest
import timm
import torch
from report_runs import write_run
from torch import nn

import infsa_explain
import infsa_explain.models
from infsa_explain.data import PhotoDigits, Subset
from infsa_explain.evaluate import (
    Accuracy,
    Alignment,
    Boxes,
    Focus,
    Infidelity,
    Morf,
    RunFolder,
    Sanity,
    Sensitivity,
    describe_run,
    measure,
    read_rows,
)
from infsa_explain.interrupting import ends_when_interrupted, says_when_interrupted
from infsa_explain.memory import out_of_memory
from infsa_explain.models.checkpoints import read_checkpoint

#: A command that takes seconds, and ends with a table of other than ASCII letters.
MORF = ("morf", "--limit", "3", "--steps", "2", "--methods", "degree,random")
MAPS = {"methods": ("visits", "random")}
EVERY = (
    Morf(**MAPS, steps=3),
    Boxes(**MAPS),
    Alignment(),
    Focus(**MAPS),
    Sanity(**MAPS, draws=1),
    Infidelity(**MAPS, samples=4),
    Sensitivity(**MAPS, samples=2),
    Accuracy(),
)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return timm.create_model("infvit_linear_digits", depth=1, embed_dim=16, num_heads=2).eval()


def start(*arguments, python=(), module="infsa_explain", **environment):
    """A command in a process of its own; an environment variable that is None is not set."""
    merged = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    return subprocess.Popen(
        [sys.executable, *python, "-m", module, *map(str, arguments)],
        env={key: value for key, value in merged.items() if value is not None},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        preexec_fn=take_interrupts,
    )


def take_interrupts():
    """A shell lets what it runs in the background ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def done(process):
    stdout, stderr = process.communicate()
    return process.returncode, stdout, stderr


def wait_for_rows(process, path):
    while process.poll() is None and not path.exists():
        time.sleep(0.05)
    assert process.poll() is None, process.communicate()


def same_but_for_time(rows, others, tolerance=0.0):
    """Rows by what they are of, numbers within a tolerance; returns how many there are."""

    def sort(rows):
        fields = ("measure", "image", "method", "order", "layer", "head")
        return sorted(rows, key=lambda row: [str(row.get(field)) for field in fields])

    def check(a, b, where):
        assert type(a) is type(b), where
        if isinstance(a, dict):
            assert a.keys() == b.keys(), where
            for key in a.keys() - {"seconds"}:
                check(a[key], b[key], f"{where} {key}")
        elif isinstance(a, list):
            assert len(a) == len(b), where
            for x, y in zip(a, b, strict=True):
                check(x, y, where)
        elif isinstance(a, float):
            assert a == pytest.approx(b, rel=tolerance, abs=tolerance), where
        else:
            assert a == b, where

    for a, b in zip(sort(rows), sort(others), strict=True):
        check(a, b, f"{a['measure']} {a['image']} {a.get('method')}")
    return len(rows)


class TestInterrupted:
    def test_says_what_is_kept_and_how_to_go_on(self, cli, tmp_path, monkeypatch):
        options = ("accuracy", "--limit", 12, "--batch-size", 4, "--out")
        assert cli(*options, tmp_path / "whole")[0] == 0
        real = infsa_explain.evaluate.measure

        def interrupted(*arguments, on_image, **options):
            def twice(count, calls=[]):  # noqa: B006
                on_image(count)
                calls.append(count)
                if len(calls) == 2:
                    raise KeyboardInterrupt

            return real(*arguments, on_image=twice, **options)

        monkeypatch.setattr("infsa_explain.evaluate.measure", interrupted)
        run = tmp_path / "run"
        assert cli(*options, run) == (
            130,
            "",
            f"8 of 12 images are done and kept in {run}: the same command with --resume goes on, "
            f"`infsa-explain report {run}` shows what there is\ninterrupted\n",
        )
        code, _, stderr = cli(*options[:-1])
        assert code == 130
        kept = "nothing is kept: with --out, --resume could go on from here\n"
        assert stderr == kept + "interrupted\n"
        monkeypatch.undo()
        assert cli(*options, run, "--resume")[0] == 0
        assert read_rows(run) == read_rows(tmp_path / "whole")

    @pytest.mark.skipif(os.name != "posix", reason="signals are POSIX")
    def test_a_signal_ends_it(self, tmp_path):
        """And every row that is kept is whole."""
        process = start("morf", "--limit", 500, "--batch-size", 4, "--out", tmp_path)
        wait_for_rows(process, tmp_path / "progress.1-of-1.json")
        process.send_signal(signal.SIGINT)
        code, stdout, stderr = done(process)
        assert (code, stdout) == (130, "")
        assert re.fullmatch(
            r"\d+ of 500 images are done and kept in .*: the same command with --resume goes on, "
            r".*\ninterrupted\n",
            stderr,
        )
        whole = len(read_rows(tmp_path))
        assert (
            whole
            == 8
            * json.loads((tmp_path / "progress.1-of-1.json").read_text())["done"][
                "infvit_linear_digits"
            ]
        )


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX")
def test_a_rank_that_dies_ends_the_job_and_resuming_completes_it(tmp_path):
    launch = ("--standalone", "--nproc-per-node=2", "-m", "infsa_explain", "morf", "--limit", 60)
    launch += ("--steps", 4, "--methods", "degree,random", "--out", tmp_path)
    process = start(*launch, module="torch.distributed.run")
    rows = [tmp_path / f"progress.{i}-of-2.json" for i in (1, 2)]
    for path in rows:
        wait_for_rows(process, path)
    pids = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True)
    os.kill(int(pids.stdout.split()[-1]), signal.SIGKILL)
    code, _, stderr = done(process)
    assert code != 0 and "SIGKILL" in stderr
    assert 0 < len(read_rows(tmp_path)) < 60 * 4
    code, stdout, stderr = done(start(*launch, "--resume", module="torch.distributed.run"))
    assert code == 0, stderr
    assert "MoRF-AOC" in stdout
    images = [(row["image"], row["method"], row["order"]) for row in read_rows(tmp_path)]
    assert len(images) == len(set(images)) == 60 * 4


class TestOutOfMemory:
    def test_what_torch_and_numpy_say(self):
        for allocate in (lambda: torch.empty(2**60, dtype=torch.uint8), lambda: bytearray(2**60)):
            with pytest.raises((MemoryError, RuntimeError)) as caught:
                allocate()
            assert out_of_memory(caught.value)

    def test_a_command_is_warned_in_one_line_and_goes_on(self, cli, monkeypatch):
        """Also where warnings are errors, as here. (Pytest keeps them from being shown.)"""

        def show(message, category, filename, lineno, file=None, line=None):
            sys.stderr.write(warnings.formatwarning(message, category, filename, lineno, line))

        monkeypatch.setattr(warnings, "showwarning", show)
        room = infsa_explain.models.InfViT.forward

        def forward(self, images):
            if len(images) > 2:
                torch.empty(2**60, dtype=torch.uint8)
            return room(self, images)

        monkeypatch.setattr("infsa_explain.models.infvit.InfViT.forward", forward)
        code, stdout, stderr = cli("accuracy", "--limit", 5, "--batch-size", 4, "--json")
        assert code == 0 and json.loads(stdout)[0]["top1"]["n"] == 5
        assert stderr == ("warning: out of memory with 4 images at a time: going on with 2\n")
        monkeypatch.setattr(
            "infsa_explain.models.infvit.InfViT.forward",
            lambda self, images: forward(self, [0] * 3),
        )
        code, _, stderr = cli("accuracy", "--limit", 1)
        assert code == 1
        assert stderr.startswith("error: out of memory: take fewer or smaller images, or a smaller")
        assert stderr.count("\n") == 1


class TestSurroundings:
    @pytest.fixture(scope="class")
    def table(self):
        """What the command prints in a shell as usual."""
        code, stdout, stderr = done(start(*MORF))
        assert (code, stderr) == (0, "") and "MoRF-AOC ↑ [95%]" in stdout
        return stdout

    @pytest.mark.parametrize(
        ("python", "environment"),
        [
            (
                ("-OO",),
                {
                    **{"HOME": "/proc", "XDG_CACHE_HOME": None, "LC_ALL": "C", "LANG": None},
                    "TORCH_NUM_THREADS": "1",
                },
            ),
            (
                ("-O", "-W", "error", "-W", "ignore::DeprecationWarning"),
                {"HOME": None, "TERM": "dumb", "PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1"},
            ),
        ],
        ids=[
            "home not writable, locale C, no docstrings",
            "optimised, warnings are errors, no HOME",
        ],
    )
    def test_all_goes_as_usual(self, tmp_path, table, python, environment):
        process = start(*MORF, python=python, **environment)
        code, stdout, stderr = done(process)
        assert (code, stderr) == (0, "")
        assert stdout == table

    def test_a_terminal_without_the_letters_loses_none(self, table):
        ascii_only = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
        code, stdout, stderr = done(start(*MORF, **ascii_only))
        assert (code, stderr) == (0, "")
        assert r"MoRF-AOC \u2191 [95%]" in stdout

    @pytest.mark.skipif(os.name != "posix", reason="needs a POSIX shell")
    def test_without_output_or_with_a_reader_who_leaves(self):
        command = f"{sys.executable} -m infsa_explain methods"
        for line, expected in (
            (f"{command} >&- 2>&-", ""),
            (f"{command} | head -n 1", "map methods"),
        ):
            shell = subprocess.run(
                ["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, check=False
            )
            assert (shell.stdout.strip(), shell.stderr) == (expected, "")
            assert shell.returncode in (0, 1)


def hooks(model):
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return sum(len(getattr(module, kind)) for module in model.modules() for kind in kinds)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts open files in /proc")
@pytest.mark.parametrize("runs", [5, pytest.param(100, marks=pytest.mark.slow)])
def test_many_runs_leave_nothing_behind(model, tmp_path, runs):
    data = PhotoDigits("val", 1)

    def once(i):
        config = describe_run({"m": model}, data, EVERY)
        with RunFolder(tmp_path / str(i), config) as folder:
            measure(
                model, data, *EVERY, on_row=folder.write, on_image=lambda n: folder.commit("m", n)
            )

    def left():
        gc.collect()
        blocks = sys.getallocatedblocks()  # tracemalloc goes on counting small ones that are freed
        tensors = sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())
        files = len(os.listdir("/proc/self/fd"))
        traces = tracemalloc.take_snapshot().traces
        large = sum(trace.size for trace in traces if trace.size > 512)
        return (hooks(model), files, tensors), blocks, large

    for i in range(2):  # what is made once, such as imports
        once(i)
    tracemalloc.start()
    try:
        left()
        once(2)
        before, blocks_before, large_before = left()
        for i in range(3, 3 + runs):
            once(i)
        after, blocks, large = left()
    finally:
        tracemalloc.stop()
    assert after == before
    assert blocks - blocks_before < 1_000  # caches of torch's grow to 600 in a hundred runs
    assert large - large_before < 100_000


class TestSameInSameOut:
    @pytest.fixture(scope="class")
    def rows(self, model):
        return measure(model, PhotoDigits("val", 4), *EVERY)

    def test_twice(self, model, rows):
        torch.rand(3)  # whatever was drawn before
        assert same_but_for_time(measure(model, PhotoDigits("val", 4), *EVERY), rows) > 60

    @pytest.mark.parametrize("size", [1, 3])
    def test_batches(self, model, rows, size):
        """To 1e-5: sums are taken in another order."""
        other = measure(model, PhotoDigits("val", 4), *EVERY, batch_size=size)
        same_but_for_time(other, rows, 1e-5)

    def test_the_order_of_images(self, model, rows):
        turned = Subset(PhotoDigits("val", 4), [3, 1, 0, 2])
        same_but_for_time(measure(model, turned, *EVERY), rows, 1e-5)


class TestBrokenModels:
    def test_weights_that_are_nan(self, model, cli, tmp_path):
        """They are told of, by the first layer or by the outputs, and no number comes out."""
        data = PhotoDigits("val", 2)
        broken = timm.create_model("infvit_linear_digits", depth=1, embed_dim=16, num_heads=2)
        broken.eval().load_state_dict(model.state_dict())
        nn.init.constant_(broken.head.bias, torch.inf)
        for each in (Morf(**MAPS), Boxes(**MAPS), Sanity(**MAPS), Infidelity(**MAPS)):
            with pytest.raises(
                ValueError, match=f"outputs for {data[0].image_id!r} are NaN or inf"
            ):
                measure(broken, data, each)
        nn.init.constant_(broken.blocks[0].attn.qkv.weight, torch.nan)
        with pytest.raises(ValueError, match=r"layer blocks.0.attn .* q holds NaN or infinite"):
            measure(broken, data, Boxes(**MAPS))

    def test_accuracy(self, model):
        """NaN is above nothing and below nothing, and would rank first."""
        broken = timm.create_model("infvit_linear_digits", depth=1, embed_dim=16, num_heads=2)
        nn.init.constant_(broken.head.bias, torch.nan)
        with pytest.raises(ValueError, match="are NaN or infinite: its weights are broken"):
            measure(broken.eval(), PhotoDigits("val", 2), Accuracy())


@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX")
class TestCtrlC:
    def test_in_a_call_that_python_cannot_stop(self):
        code = (
            "import hashlib, threading\n"
            "from infsa_explain.interrupting import ends_when_interrupted, says_when_interrupted\n"
            "with ends_when_interrupted(0.2), says_when_interrupted(lambda: print('kept')):\n"
            "    threading.Timer(4, print, ['ready'], {'flush': True}).start()\n"
            "    hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)\n"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=take_interrupts,
        )
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert done(process) == (130, "kept\n", "interrupted\n")

    @pytest.fixture
    def handler(self):
        """Sets what Ctrl-C does; as found afterwards, for who runs this may ignore it."""
        found = signal.getsignal(signal.SIGINT)
        yield lambda wanted: signal.signal(signal.SIGINT, wanted)
        signal.signal(signal.SIGINT, found)

    def test_elsewhere_it_is_an_exception_and_handlers_are_as_found(self, handler):
        handler(signal.default_int_handler)
        said = []
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt), ends_when_interrupted():
                with says_when_interrupted(lambda: said.append("inner")):
                    pass
                with says_when_interrupted(lambda: said.append("outer")):
                    signal.raise_signal(signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
            assert signal.set_wakeup_fd(-1) == -1
        assert said == ["outer"] * 2

    def test_where_it_is_ignored_it_stays_so(self, handler):
        handler(signal.SIG_IGN)
        with ends_when_interrupted():
            signal.raise_signal(signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_training_interrupted(cli, tmp_path, monkeypatch):
    def stop(recipe, out, **options):
        (tmp_path / "last.pt").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr("infsa_explain.training.loop.train", stop)
    kept = f"the epochs so far are kept in {tmp_path}: the same command with --resume goes on\n"
    assert cli("train", "--out", tmp_path) == (130, "", kept + "interrupted\n")


def test_warnings_are_found_as_they_were(cli):
    """By whoever calls the command line from a program."""
    before = warnings.formatwarning, list(warnings.filters)
    assert cli("methods")[0] == 0
    assert (warnings.formatwarning, list(warnings.filters)) == before


def files_of(folder):
    """What a command wrote, whole; no leavings, no times, and no date."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.name.startswith("."):
            content = path.read_bytes()
            found[path.name] = re.sub(rb'"seconds": [\d.e-]+', b"", content)
    return found


@pytest.mark.skipif(os.name != "posix", reason="kills by a signal")
class TestKilled:
    """At a file operation, and gone on with: as if nothing had been."""

    COMMANDS = {
        "train": ("train", "--out"),
        "align": ("align", "--limit", 4, "--batch-size", 2, "--out"),
        "bench": (
            *("bench", "--sizes", "32,64", "--mechanisms", "linear", "--depth", 1),
            *("--width", 32, "--heads", 4, "--device", "cpu", "--out"),
        ),
    }

    @pytest.fixture(scope="class")
    def whole(self, tmp_path_factory):
        """The files of a command undisturbed."""

        @cache
        def files(name):
            folder = tmp_path_factory.mktemp("whole") / name
            assert killed.run([*self.COMMANDS[name], folder], folder) == 0
            return files_of(folder)

        return files

    def check(self, name, whole, folder, moment):
        """Whether the command got as far as to be killed."""
        command = [*self.COMMANDS[name], folder]
        code = killed.run(command, folder, moment)
        assert code in (-signal.SIGKILL, 0)
        for path in folder.glob("*.safetensors"):
            read_checkpoint(path)
        if (folder / "config.json").exists():
            batch = whole(name)["rows.1-of-1.jsonl"].count(b"\n") // 2
            assert len(read_rows(folder)) in (0, batch, 2 * batch)
        assert killed.run([*command, "--resume"], folder) == 0
        assert self.comparable(files_of(folder)) == self.comparable(whole(name))
        return code != 0

    @staticmethod
    def comparable(files):
        """Less what holds times, dates, or the names of folders and temporary files."""
        varies = ("alignment.", "summary.", "progress.", "config.json", "bench.svg", "last.pt")
        return {name: content for name, content in files.items() if not name.startswith(varies)}

    @pytest.mark.parametrize(("name", "moment"), [("train", 9), ("align", 7), ("bench", 2)])
    def test_once(self, whole, tmp_path, name, moment):
        assert self.check(name, whole, tmp_path / "run", moment)

    @pytest.mark.slow
    @pytest.mark.parametrize("name", COMMANDS)
    def test_anywhere(self, whole, tmp_path, name):
        moments = 0
        while self.check(name, whole, tmp_path / str(moments), moments):
            moments += 1
        assert moments >= 4

    @pytest.mark.parametrize("moments", [(3,), pytest.param(range(99), marks=pytest.mark.slow)])
    def test_a_report(self, tmp_path, moments):
        """The page is the one before or the new one."""
        folder = write_run(tmp_path / "run")
        page = folder / "report.html"
        command = ["report", folder, "--no-images"]
        assert killed.run(command, folder) == 0
        new = page.read_bytes()
        assert new.rstrip().endswith(b"</html>")
        for moment in moments:
            page.write_bytes(b"the one before")
            code = killed.run(command, folder, moment)
            assert page.read_bytes() in (new, b"the one before")
            if code == 0:
                assert page.read_bytes() == new
                break
