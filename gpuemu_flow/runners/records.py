"""The letters by which records of used files and variables begin; see `sightings`."""

from __future__ import annotations

READ, LOOKED, FOLDER, MISSED, LISTED, MODULES, SIZED = b"refmlnz"
"""A record's first byte, for what is outside of the program.

READ is a file, LOOKED one that was found but not opened, FOLDER a folder that was found, MISSED a
path that was not there; the others are folders that were listed: LISTED for the names and kinds of
its entries, MODULES for the modules among them, SIZED also for their sizes.
"""
WRITTEN, CREATED, TOUCHED, REMOVED, MADE, MOVED, LINKED = b"wctxdak"
"""For what the program does to files itself.

WRITTEN is a file whose content is the program's own from now on. CREATED is one that was not there
and is opened in a way that would have shown what it held; TOUCHED was there and may be written to.
REMOVED is a file, MADE a folder. MOVED and LINKED hold two paths, ``SOURCE//TARGET``: what is found
at TARGET from now on is that of SOURCE.
"""
VARIABLE, ASKED, UNTRACKED, BASE = b"vqub"
"""VARIABLE is a name of the environment, UNTRACKED a sentence.

ASKED is the name of a variable that the program's own code looked for in vain.

BASE holds what every worker starts with: the same records, with line ends in place of the zero
bytes.
"""
PAIRS = (MOVED, LINKED)
CHANGES = (WRITTEN, CREATED, TOUCHED, REMOVED, MADE, *PAIRS)
LISTINGS = (LISTED, MODULES, SIZED)
SEEN = (READ, LOOKED, FOLDER, MISSED, *LISTINGS)
PATHS = (*SEEN, *CHANGES)
