"""The command line: parses, calls one function, prints. The only importer of click and rich."""
