"""llmcli's version, kept here too because reading it from the installed metadata costs 20 ms at every start.

A test holds it against pyproject.toml.
"""

VERSION = "0.1.0"
