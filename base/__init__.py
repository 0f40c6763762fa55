"""Errors, settings, units, files and safe text: standard library only; every other package may import it."""
