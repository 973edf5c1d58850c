"""Problems of collections such as KernelBench, made into workspaces; see `docs/import.md`."""
