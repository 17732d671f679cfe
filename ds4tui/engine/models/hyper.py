"""What reads the hyper-connections of a block (kernels/hyper_streams.py)."""

from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.layers import LayerLoader
from ds4tui.engine.models.keys import count, positive
from ds4tui.kernels.hyper_streams import HyperConnection, HyperShape, HyperWeights


def hyper_shape(gguf: GGUFFile) -> HyperShape:
    """Raises GGUFError for missing or impossible keys."""
    return HyperShape(
        streams=count(gguf, ".hyper_connection.count"),
        rounds=count(gguf, ".hyper_connection.sinkhorn_iterations"),
        sum_epsilon=positive(gguf, ".hyper_connection.epsilon"),
        norm_epsilon=positive(gguf, ".attention.layer_norm_rms_epsilon"),
    )


def hyper_connection(
    gguf: GGUFFile, shape: HyperShape, loader: LayerLoader, name: str, norm: str
) -> HyperConnection:
    """Of the tensors whose names begin with `name`; `norm` is of what the part takes."""
    width, mixes = count(gguf, ".embedding_length"), (2 + shape.streams) * shape.streams
    weights = HyperWeights(
        function=loader.exact_matrix(f"{name}_fn", mixes, shape.streams * width),
        scale=loader.vector(f"{name}_scale.weight", 3),
        base=loader.vector(f"{name}_base.weight", mixes),
        norm=loader.vector(f"{norm}.weight", width),
    )
    return HyperConnection(weights, shape)
