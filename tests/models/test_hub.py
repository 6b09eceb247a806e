"""Pretrained weights from a hub that answers, from its cache, and from nowhere."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import timm
import torch
from huggingface_hub import constants
from safetensors.torch import save

from infsa_explain.models.hub import hub_or_cache
from infsa_explain.models.loading import load

NOBODY = "http://127.0.0.1:9"
ARGUMENTS = {"img_size": 32, "depth": 1, "embed_dim": 16, "num_heads": 2, "num_classes": 3}


def answer_at(endpoint, monkeypatch):
    url = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url)


@pytest.fixture(autouse=True)
def surroundings(tmp_path, monkeypatch):
    """An empty cache, a hub that does not answer, and no time to wait for it."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    answer_at(NOBODY, monkeypatch)
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("waits to try again"))


@pytest.fixture
def hub(monkeypatch):
    """A hub with one model, me/vit, and its weights."""
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", **ARGUMENTS)
    config = {"architecture": "vit_tiny_patch16_224", "model_args": ARGUMENTS}
    files = {
        "config.json": json.dumps(config | {"num_classes": 3, "pretrained_cfg": {}}).encode(),
        "model.safetensors": save(model.state_dict()),
    }

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self):
            folder, _, name = self.path.rpartition("/")
            content = files.get(name) if folder == "/me/vit/resolve/main" else None
            self.send_response(404 if content is None else 200)
            if content is not None:
                self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
                self.send_header("X-Repo-Commit", "0" * 40)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            return content or b""

        def do_GET(self):
            self.wfile.write(self.do_HEAD())

        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        answer_at(f"http://127.0.0.1:{server.server_port}", monkeypatch)
        yield model
        server.shutdown()


def test_a_model_is_fetched_once(hub, monkeypatch):
    fetched = load("hf-hub:me/vit")
    assert not constants.HF_HUB_OFFLINE
    answer_at(NOBODY, monkeypatch)
    for model in (fetched, load("hf-hub:me/vit")):
        for key, value in hub.state_dict().items():
            assert torch.equal(model.state_dict()[key], value)


@pytest.mark.parametrize("name", ["hf-hub:me/other", "vit_tiny_patch16_224"])
def test_without_network_it_says_so_at_once(cli, name):
    code, stdout, stderr = cli("accuracy", "--model", name)
    assert (code, stdout) == (2, "")
    assert stderr == (
        f"error: cannot load {name!r} with pretrained weights: Hugging Face's hub cannot be "
        "reached, and its cache lacks them\n"
    )
    assert not constants.HF_HUB_OFFLINE


def test_a_hub_that_lacks_it(hub):
    with pytest.raises(ValueError, match="cannot load 'hf-hub:me/other' with pretrained weights: "):
        load("hf-hub:me/other")


def test_offline_by_choice_stays_so(hub, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with hub_or_cache() as reachable:
        assert not reachable
    assert constants.HF_HUB_OFFLINE
