"""A process with llama.cpp's server: MODEL CONTEXT THREADS. It ends when its input is closed."""

import importlib
import sys

READY = "ds4tui-bench-listening "


def main(model: str, context_tokens: int, threads: int) -> None:
    xllamacpp = importlib.import_module("xllamacpp")  # no types; an optional dependency
    params = xllamacpp.CommonParams()
    params.model.path, params.port = model, 0
    params.n_ctx, params.n_parallel = context_tokens, 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    # Neither a second cache of prompts nor a context of its own choosing.
    params.cache_ram_mib, params.fit_params = 0, False
    params.verbosity = 4  # says how large its buffers are; 5 would write a line a token
    server = xllamacpp.Server(params)
    print(READY + server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
