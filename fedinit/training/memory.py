"""Per-client vectors between rounds: allocated at first participation, in RAM or on disk.

Every client's latest local model is kept under the name "last", for the divergence Δ^t; relaxed initialization uses that same
vector. On disk a client's vectors are one safetensors file a participation, which is also what a checkpoint refers to.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from fedinit.methods.base import Vectors


class Memory:
    """client → dict of its vectors. `folder=None` keeps everything in RAM; with a folder, `keep_in_ram=False` keeps only files.

    `rounds` maps each client to the round of its latest participation, which is also in the name of its newest file.
    """

    def __init__(self, folder: Path | None = None, *, keep_in_ram: bool = True):
        self.folder, self.keep_in_ram = folder, keep_in_ram
        self.rounds: dict[int, int] = {}  # client → round of its latest participation
        self._ram: dict[int, Vectors] = {}
        self._written: dict[int, int] = {}

    def __contains__(self, client: int) -> bool:
        return client in self.rounds

    def get(self, client: int, device: torch.device) -> Vectors:
        """The client's vectors. Raises KeyError before its first participation."""
        if client in self._ram:
            return self._ram[client]
        return _load(self._path(client, self.rounds[client]), device)

    def put(self, client: int, round: int, vectors: Vectors) -> None:
        """Replace the client's vectors after its participation in `round`."""
        self.rounds[client] = round
        if self.keep_in_ram:
            self._ram[client] = vectors
        else:
            self._write(client, vectors)

    def flush(self) -> dict[int, int]:
        """Write the vectors that changed since the last flush; returns client → round, to be named by a checkpoint."""
        for client, vectors in self._ram.items():
            if self._written.get(client) != self.rounds[client]:
                self._write(client, vectors)
        return dict(self.rounds)

    def forget_files(self, but: dict[int, int]) -> None:
        """Delete the files that the checkpoint's client → round does not name."""
        named = {self._path(client, round).name for client, round in but.items()}
        for path in self.folder.glob("client-*.safetensors"):
            if path.name not in named:
                path.unlink(missing_ok=True)

    def restore(self, rounds: dict[int, int], device: torch.device) -> None:
        """Take up the vectors that a checkpoint names. Raises FileNotFoundError if a file of them is gone, SafetensorError if
        it is damaged."""
        for client, round in rounds.items():
            if not self._path(client, round).exists():
                raise FileNotFoundError(f"no {self._path(client, round).name}")
            with safe_open(self._path(client, round), framework="pt") as file:  # refuses a file cut short
                file.get_slice("last")
        self.rounds, self._written = dict(rounds), dict(rounds)
        if self.keep_in_ram:
            self._ram = {client: _load(self._path(client, round), device) for client, round in rounds.items()}

    def _write(self, client: int, vectors: Vectors) -> None:
        round = self.rounds[client]
        path = self._path(client, round)
        part = path.with_suffix(".part")
        apart = {}  # a file of tensors shares no memory: one vector under two names is written twice
        for name, vector in vectors.items():
            known = {other.data_ptr() for other in apart.values()}
            apart[name] = vector.clone() if vector.data_ptr() in known else vector.contiguous()
        save_file(apart, part)
        part.replace(path)
        self._written[client] = round

    def _path(self, client: int, round: int) -> Path:
        return self.folder / f"client-{client:06d}-round-{round:06d}.safetensors"


def _load(path: Path, device: torch.device) -> Vectors:
    """The vectors of a file, copied: where a vector begins in memory decides in which order BLAS adds, and a file's begin anywhere."""
    return {name: vector.clone() for name, vector in load_file(path, device=str(device)).items()}
