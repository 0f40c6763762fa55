"""The prefix store: keys, block files, index, match, evict, maintain. Knows tokens and bytes, not llama.cpp."""
