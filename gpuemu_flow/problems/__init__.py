"""Problems of other collections, made into workspaces: see `docs/import.md`."""
