"""How the state of a run is spread over the processes of an attempt."""

from __future__ import annotations

from pathlib import Path

from trainwright.frameworks.torch.snapshot import Files, Owned


class Strategy:
    """The strategy of a single process, which holds and saves all of the state; the base of all others.

    Args:
        index: The number of this process among those that save; None: it saves nothing.
        count: How many processes save.
    """

    def __init__(self, index: int | None = 0, count: int = 1) -> None:
        self.index, self.count = index, count

    def held(self, files: Files) -> Owned:
        """Return what this process holds of the state.

        A tensor is either whole in each process that holds it, with the same bytes, or divided into blocks:
        then each element is in the block of one process.

        Args:
            files: The live tensors, by file and by name, as far as this process has them.
        """
        return Owned(files)

    def owned(self, files: Files) -> Owned:
        """Return what this process saves of what it holds, under the names of its own files.

        Each element of the state is saved by one process, and a file has at most one block of a tensor.
        """
        tensors, blocks = self.held(files)
        return Owned(
            {self.own_file(file): some for file, some in tensors.items()},
            {self.own_file(file): some for file, some in blocks.items()},
        )

    def own_file(self, file: str) -> str:
        """Return the name of this process's file: `weights.safetensors` or `weights.1.safetensors`."""
        path = Path(file)
        return file if self.index == 0 else f"{path.stem}.{self.index}{path.suffix}"
