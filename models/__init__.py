"""Model files: references, the hub, the local library, a bounded GGUF header reader, estimates. No llama.cpp."""
