"""CIFAR by download, against a server of our own: what arrives, and every way in which nothing usable arrives."""

import hashlib
import http.server
import io
import pickle
import tarfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from torchvision.datasets import CIFAR10

from fedinit.data import cifar, images, load_images
from fedinit.errors import InputError


def md5(content):
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


@pytest.fixture
def archive(monkeypatch):
    """A CIFAR-10 of four training and two test images, in the official layout, its checksums made known to torchvision."""
    rng = np.random.default_rng(0)
    files = {
        "data_batch_1": {"data": rng.integers(0, 256, (4, 3072), dtype=np.uint8), "labels": [1, 0, 1, 0]},
        "test_batch": {"data": rng.integers(0, 256, (2, 3072), dtype=np.uint8), "labels": [0, 1]},
        "batches.meta": {"label_names": ["airplane", "automobile"]},
    }
    content = {name: pickle.dumps(value) for name, value in files.items()}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, value in content.items():
            entry = tarfile.TarInfo(f"{CIFAR10.base_folder}/{name}")
            entry.size = len(value)
            tar.addfile(entry, io.BytesIO(value))
    monkeypatch.setattr(CIFAR10, "train_list", [["data_batch_1", md5(content["data_batch_1"])]])
    monkeypatch.setattr(CIFAR10, "test_list", [["test_batch", md5(content["test_batch"])]])
    monkeypatch.setattr(CIFAR10, "meta", {**CIFAR10.meta, "md5": md5(content["batches.meta"])})
    monkeypatch.setattr(CIFAR10, "tgz_md5", md5(packed.getvalue()))
    monkeypatch.setattr(CIFAR10, "first_image", files["data_batch_1"]["data"][0], raising=False)
    return packed.getvalue()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDINIT_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("FEDINIT_OFFLINE", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    images._load.cache_clear()
    yield tmp_path / "data"
    images._load.cache_clear()  # a forged set must not outlive its test


@pytest.fixture
def serve(monkeypatch):
    """serve(respond): a local server whose GET handler is `respond(handler)`; returns the list of requested paths."""
    running = []

    def start(respond):
        asked = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                asked.append(self.path)
                respond(self)

            def log_message(self, *args):
                """Silence: the requests are in `asked`."""

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        running.append(server)
        monkeypatch.setattr(CIFAR10, "url", f"http://127.0.0.1:{server.server_port}/{CIFAR10.filename}")
        return asked

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


def sends(content, length=None, code=200):
    def respond(handler):
        handler.send_response(code)
        handler.send_header("Content-Length", str(len(content) if length is None else length))
        handler.end_headers()
        handler.wfile.write(content)

    return respond


def refused():
    with pytest.raises(InputError) as caught:
        cifar.read("cifar10")
    message = str(caught.value)
    assert "\n" not in message
    for way_out in (CIFAR10.filename, cifar.PAGE, str(cifar.folder()), ".npz", "'synthetic'"):
        assert way_out in message
    return message


def left_over(folder):
    return [path.name for path in folder.glob("*") if not path.name.endswith(".lock")]


def test_download_unpack_read(archive, folder, serve, capsys):
    asked = serve(sends(archive))
    made = load_images("cifar10")
    assert made.name == "CIFAR-10" and made.identity == "cifar10" and made.classes == ("airplane", "automobile")
    assert made.x_train.shape == (4, 32, 32, 3) and made.x_train.dtype == np.uint8 and made.x_train.flags.c_contiguous
    assert made.y_train.tolist() == [1, 0, 1, 0] and made.y_test.tolist() == [0, 1]
    # the file holds 1024 red, then 1024 green, then 1024 blue values, row by row
    assert (made.x_train[0, 2, 5] == CIFAR10.first_image[[69, 1024 + 69, 2048 + 69]]).all()
    assert CIFAR10.filename in capsys.readouterr().err  # the progress bar
    cifar.read("cifar10")
    assert len(asked) == 1 and not list(folder.glob("*.part"))


def test_downloaded_by_hand_is_used_offline(archive, folder, serve, monkeypatch):
    asked = serve(sends(b""))
    monkeypatch.setenv("FEDINIT_OFFLINE", "1")
    folder.mkdir()
    (folder / CIFAR10.filename).write_bytes(archive)
    arrays, _, _ = cifar.read("cifar10")
    assert len(arrays["x_train"]) == 4 and asked == []


def test_offline_switch(archive, folder, serve, monkeypatch):
    asked = serve(sends(archive))
    monkeypatch.setenv("FEDINIT_OFFLINE", "1")
    assert "FEDINIT_OFFLINE forbids" in refused()
    assert asked == []


def test_a_damaged_folder_is_mended_from_the_archive(archive, folder, serve):
    asked = serve(sends(archive))
    cifar.read("cifar10")
    batch = folder / CIFAR10.base_folder / "data_batch_1"
    batch.write_bytes(batch.read_bytes()[:100])
    arrays, _, _ = cifar.read("cifar10")
    assert len(arrays["x_train"]) == 4 and len(asked) == 1


def test_half_an_archive_under_the_final_name_is_replaced(archive, folder, serve):
    asked = serve(sends(archive))
    folder.mkdir()
    (folder / CIFAR10.filename).write_bytes(archive[:500])
    arrays, _, _ = cifar.read("cifar10")
    assert len(arrays["x_train"]) == 4 and len(asked) == 1


def test_two_at_once_download_once(archive, folder, serve):
    def slowly(handler):
        time.sleep(0.2)
        sends(archive)(handler)

    asked = serve(slowly)
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(cifar.read, ["cifar10", "cifar10"]))
    assert len(asked) == 1 and (both[0][0]["x_train"] == both[1][0]["x_train"]).all()


def test_interrupted(archive, folder, serve):
    serve(sends(archive[:3000], length=len(archive)))
    assert f"interrupted after 3000 of {len(archive)} bytes" in refused()
    assert left_over(folder) == []


def test_a_web_page(archive, folder, serve):
    serve(sends(b"\n<!DOCTYPE html><title>Please log in</title>"))
    assert "sent a web page instead of the archive" in refused()
    assert left_over(folder) == []


def test_a_wrong_checksum(archive, folder, serve):
    serve(sends(archive[:-1] + b"!"))
    assert "wrong checksum" in refused()
    assert left_over(folder) == []


def test_an_error_code(archive, folder, serve):
    serve(sends(b"gone", code=404))
    assert "answered 404" in refused()


def test_a_stalled_server(archive, folder, serve, monkeypatch):
    monkeypatch.setattr(cifar, "STALLED", 0.3)

    def stall(handler):
        sends(archive[:3000], length=len(archive))(handler)
        handler.wfile.flush()
        time.sleep(1.0)

    serve(stall)
    assert "nothing came for 0.3 s" in refused()
    assert left_over(folder) == []


def test_no_network(archive, folder, serve, monkeypatch):
    monkeypatch.setattr(CIFAR10, "url", "http://127.0.0.1:9/none.tar.gz")
    assert "no connection to http://127.0.0.1:9" in refused()


def test_a_folder_that_cannot_be_made(archive, folder, serve, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("FEDINIT_DATA", str(tmp_path / "file" / "data"))
    assert "cannot be kept in" in refused()


def test_where_downloads_go(monkeypatch, tmp_path):
    monkeypatch.delenv("FEDINIT_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cifar.folder() == tmp_path / "fedinit" / "data"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cifar.folder() == tmp_path / ".cache" / "fedinit" / "data"
    monkeypatch.setenv("FEDINIT_DATA", "~/here")
    assert cifar.folder() == tmp_path / "here"
