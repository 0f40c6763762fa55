"""Facts about this machine: cores, memory, CPU features, devices. Knows nothing of models or llama.cpp."""
