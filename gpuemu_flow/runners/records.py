"""The letters at the beginning of records, one for each kind of record; see `sightings`."""

from __future__ import annotations

READ, LOOKED, FOLDER, MISSED, LISTED, MODULES, SIZED = b"refmlnz"
"""First bytes of records of the program's inputs.

READ is a file, LOOKED is a file that was found but not opened, FOLDER is a folder that was found,
and MISSED is a path that did not exist. The others are folders that were listed. LISTED revealed
the names and types of all entries, MODULES only the modules among the entries. SIZED also revealed
the sizes and modes of all entries.
"""
WRITTEN, CREATED, TOUCHED, REMOVED, MADE, MOVED, LINKED = b"wctxdak"
"""First bytes of records of the program's own changes.

WRITTEN is a file whose content comes from the program from now on. CREATED is a file that did not
exist, and was opened in a mode that would have kept existing content. TOUCHED is an existing file
that may be written to. REMOVED is a removed file, and MADE is a new folder. MOVED and LINKED have
two paths, ``SOURCE//TARGET``: from now on, TARGET leads to the file of SOURCE.
"""
VARIABLE, UNSET, UNTRACKED, BASE = b"vqub"
"""VARIABLE is the name of an environment variable. UNTRACKED is a sentence on what went unseen.

UNSET is the name of a variable that the program's own code looked for in vain. BASE contains the
initial records of every worker, with line ends in place of the zero bytes.
"""
PAIRS = (MOVED, LINKED)
CHANGES = (WRITTEN, CREATED, TOUCHED, REMOVED, MADE, *PAIRS)
LISTINGS = (LISTED, MODULES, SIZED)
SEEN = (READ, LOOKED, FOLDER, MISSED, *LISTINGS)
PATHS = (*SEEN, *CHANGES)
