"""What a host's accelerators say of themselves, through NVML."""
