"""The commands `tarn demo` and `tarn pipeline`."""
