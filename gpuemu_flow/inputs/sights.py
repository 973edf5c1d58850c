"""Remember stamps of files, so that a command with several steps reads each stamp only once.

A stamp consists of a file's size, times and inode number.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gpuemu_flow.inputs.plan import Seen, look_into


class Sights:
    """Stamps and owners of files, each read only once, when it is first requested.

    A stamp consists of a file's size, times and inode number. It may be as old as the start of the
    command. Make a new object if another process may have changed files meanwhile, for example
    after waiting for a lock.

    Parameters
    ----------
    seen : mapping of absolute path to Seen
        Stamps and owners that this process has already read, by folder.
    none_replaced : bool
        True if it is known that no manifest was replaced since the last run in which everything
        passed.
    """

    def __init__(
        self, seen: Mapping[str, Seen] | None = None, *, none_replaced: bool = False
    ) -> None:
        self.none_replaced = none_replaced
        self._stamps: dict[str, dict[str, str]] = {}
        self._owners: dict[str, set[int]] = {}
        for folder, one in (seen or {}).items():
            self._take(folder, one)

    def _take(self, folder: str, seen: Seen) -> None:
        self._stamps.setdefault(folder, {}).update(zip(seen.names, seen.stamps, strict=True))
        self._owners.setdefault(folder, set()).update(seen.owners)

    def stamps(self, folder: str, names: Collection[str]) -> list[str]:
        """Return the stamps of some files of a folder, in the form of `Seen.stamps`.

        Parameters
        ----------
        folder : str
            Absolute path without a slash at its end; empty for the root folder.
        names : collection of str
        """
        known = self._stamps.get(folder, {})
        missing = [name for name in names if name not in known]
        if missing:
            self._take(folder, look_into(folder, missing))
            known = self._stamps[folder]
        return [known[name] for name in names]

    def owned_by(self, users: Collection[int]) -> set[str]:
        """Return the paths of the files seen so far that are known to belong to `users`.

        Owners are recorded for a folder, not for each file. Therefore, a file is returned only if
        all files seen in its folder belong to `users`.
        """
        return {
            f"{folder}/{name}"
            for folder, owners in self._owners.items()
            if owners.issubset(users)
            for name, stamp in self._stamps[folder].items()
            if stamp
        }
