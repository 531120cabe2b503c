"""CIFAR-10 and CIFAR-100: downloaded once, verified, read by torchvision.

torchvision names the address and the checksums, unpacks and reads. The transfer is our own, since torchvision's waits
for ever on a stalled server, falls back from https to http, and leaves half a file under the final name.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import ssl
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np

from ..errors import InputError

DATASETS = {"cifar10": "CIFAR10", "cifar100": "CIFAR100"}
PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"
STALLED = 30  # seconds without a byte until a download counts as stalled


def folder() -> Path:
    """Where downloads go: $FEDINIT_DATA, else $XDG_CACHE_HOME/fedinit/data, else ~/.cache/fedinit/data."""
    if chosen := os.environ.get("FEDINIT_DATA"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fedinit" / "data"


def read(data: str) -> tuple[dict[str, np.ndarray], tuple[str, ...], str]:
    """Arrays x_train, y_train, x_test, y_test of "cifar10" or "cifar100", class names and a caption.

    Downloads at first use, unless FEDINIT_OFFLINE=1. Raises InputError when the images are neither there nor to be had.
    """
    from torchvision import datasets

    source = getattr(datasets, DATASETS[data])
    try:
        train = _opened(source) or _fetched(source, data)
        test = source(folder(), train=False)
    except OSError as error:
        raise _advice(data, source, f"cannot be kept in {folder()} ({error})") from error
    arrays = {
        "x_train": np.ascontiguousarray(train.data),
        "y_train": np.asarray(train.targets, dtype=np.int64),
        "x_test": np.ascontiguousarray(test.data),
        "y_test": np.asarray(test.targets, dtype=np.int64),
    }
    return arrays, tuple(train.classes), data.upper().replace("CIFAR", "CIFAR-")


def _opened(source):
    """torchvision's training set if it is in the folder and every file's checksum is right, else None."""
    try:
        return source(folder(), train=True)
    except RuntimeError:  # torchvision's word for "not found or corrupted"
        return None


def _fetched(source, data: str):
    from filelock import FileLock
    from torchvision.datasets.utils import check_integrity

    folder().mkdir(parents=True, exist_ok=True)
    archive = folder() / source.filename
    with FileLock(f"{archive}.lock"):  # a second process waits here and then finds the files
        if opened := _opened(source):
            return opened
        if not check_integrity(archive, source.tgz_md5):
            if os.environ.get("FEDINIT_OFFLINE", "0") not in ("", "0"):
                raise _advice(data, source, f"is not in {folder()} and FEDINIT_OFFLINE forbids the download")
            _download(source, archive, data)
        source(folder(), train=True, download=True)  # finds the verified archive and unpacks it
    opened = _opened(source)
    if opened is None:
        raise _advice(data, source, f"unpacked into {folder() / source.base_folder}, but not to the files expected")
    return opened


def _download(source, archive: Path, data: str) -> None:
    """The archive under a temporary name; the final name only once its checksum is right."""
    from tqdm import tqdm

    request = urllib.request.Request(source.url, headers={"User-Agent": "fedinit"})
    part = archive.with_name(f"{archive.name}.part")  # the caller's lock keeps others away from it
    got, first, md5 = 0, b"", hashlib.md5(usedforsecurity=False)
    try:
        with part.open("wb") as file:
            try:
                with urllib.request.urlopen(request, timeout=STALLED) as reply:
                    total = int(reply.headers.get("Content-Length") or 0)
                    with tqdm(total=total or None, unit="B", unit_scale=True, desc=archive.name) as bar:
                        while chunk := reply.read(1 << 16):
                            first = first or chunk[:512]
                            file.write(chunk)
                            md5.update(chunk)
                            got += len(chunk)
                            bar.update(len(chunk))
            except urllib.error.HTTPError as error:
                raise _advice(data, source, f"could not be downloaded: {source.url} answered {error.code} {error.reason}") from error
            except TimeoutError as error:
                raise _advice(data, source, f"could not be downloaded: nothing came for {STALLED} s after {got} bytes") from error
            except urllib.error.URLError as error:
                raise _advice(data, source, f"could not be downloaded: no connection to {source.url} ({error.reason})") from error
            except (http.client.HTTPException, ConnectionError, ssl.SSLError) as error:
                raise _advice(data, source, f"could not be downloaded: interrupted after {got} bytes ({type(error).__name__})") from error
        if total and got < total:
            raise _advice(data, source, f"could not be downloaded: interrupted after {got} of {total} bytes")
        if first.lstrip().startswith(b"<"):
            raise _advice(data, source, f"could not be downloaded: {source.url} sent a web page instead of the archive")
        if md5.hexdigest() != source.tgz_md5:
            raise _advice(data, source, f"could not be downloaded: the {got} bytes from {source.url} have the wrong checksum")
        os.replace(part, archive)
    finally:
        part.unlink(missing_ok=True)


def _advice(data: str, source, problem: str) -> InputError:
    return InputError(
        f"data = {data!r} {problem}. Try again, or download {source.filename} by hand from {PAGE} into {folder()}, "
        f"or set data to a .npz file or an image folder, or to 'synthetic'."
    )
