"""Low precision, emulated: quantization."""
