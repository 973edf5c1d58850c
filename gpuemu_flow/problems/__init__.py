"""Problems from other collections, made into workspaces: see `docs/import.md`."""
