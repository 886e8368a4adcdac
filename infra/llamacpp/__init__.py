"""A real engine on any machine: llama.cpp's own server, from a wheel, over a small random model."""
