"""Stamps of files that one command reads once, although several of its steps ask for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gpuemu_flow.inputs.plan import Seen, look_into


class Sights:
    """Stamps and owners of files, each read when it is first asked for and not again.

    A step that relies on them says of a file what was true after the command began. Where another
    process may have worked meanwhile, as behind a lock that was waited for, make new ones.

    Parameters
    ----------
    seen : mapping of absolute path to Seen
        What the process has read of some folders.
    """

    def __init__(self, seen: Mapping[str, Seen] | None = None) -> None:
        self._stamps: dict[str, dict[str, str]] = {}
        self._owners: dict[str, set[int]] = {}
        for folder, one in (seen or {}).items():
            self._take(folder, one)

    def _take(self, folder: str, seen: Seen) -> None:
        self._stamps.setdefault(folder, {}).update(zip(seen.names, seen.stamps, strict=True))
        self._owners.setdefault(folder, set()).update(seen.owners)

    def stamps(self, folder: str, names: Collection[str]) -> list[str]:
        """Return the stamp of each file of a folder, as `plan.look_into` does.

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
        """Return the files that were seen in folders where these users own all that was seen."""
        return {
            f"{folder}/{name}"
            for folder, owners in self._owners.items()
            if owners.issubset(users)
            for name, stamp in self._stamps[folder].items()
            if stamp
        }
