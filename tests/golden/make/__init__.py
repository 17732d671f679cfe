"""Writes the golden files: tiny random models as Hugging Face modules and as GGUF files.

Needs torch and transformers, which nothing else here does; `python -m tests.golden.make` is
run by hand. One module a family group: `*_model` builds the transformers module, `write_*`
turns its weights into tensors and keys, in the layout that llama.cpp's converter gives real
checkpoints, and its docstring says which conversion a loader has to undo. Everything is
float32. Shapes in comments are (rows, columns) as NumPy sees them; GGUF lists the dimensions
in the opposite order.
"""
