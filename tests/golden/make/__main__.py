"""Write the golden files, or check that they can be written again.

    python -m tests.golden.make [FAMILY ...]           write, and update the manifest
    python -m tests.golden.make --check [FAMILY ...]   write elsewhere and compare

The GGUF files come out identical everywhere, byte for byte. Logits come out identical on one
machine with one torch; elsewhere the check allows LOGIT_TOLERANCE.
"""

import argparse
import importlib.metadata
import json
import lzma
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
warnings.filterwarnings("ignore")  # transformers' own, of slow fallbacks

import torch  # noqa: E402

from tests.golden import files  # noqa: E402
from tests.golden.make.families import FAMILIES, Family  # noqa: E402
from tests.golden.make.measure import measure  # noqa: E402

LOGIT_TOLERANCE = 2e-5
PACKAGES = ("torch", "transformers", "gguf", "numpy")


def write_family(family: Family, folder: Path) -> dict[str, Any]:
    """Write the family's files to `folder`; the row of the manifest."""
    model = family.model()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    text, projector = folder / f"{family.name}.gguf", folder / f"{family.name}.mmproj.gguf"
    family.write_files(model, text, projector)
    arrays, felt = measure(family, model)
    np.savez_compressed(folder / f"{family.name}.npz", **arrays)
    hashes = {f"{family.name}.npz": files.sha256((folder / f"{family.name}.npz").read_bytes())}
    for path in (text, projector):
        if path.exists():
            hashes[path.name] = files.sha256(path.read_bytes())
            pack(path)
    right_at = family.is_right_at
    return {
        "architecture": family.architecture,
        "seed": family.seed,
        "parameters": parameters,
        "tokens": len(arrays["ids"]),
        "tolerance": family.tolerance,
        "sensitivity": round(felt, 6),
        "mimic": family.mimic.__name__ if family.mimic else None,
        "vision": family.ask is not None,
        "llamacpp_lengths": [n for n in range(1, family.length + 1) if right_at(n)]
        if right_at
        else None,
        "sha256": hashes,
    }


def pack(path: Path) -> None:
    """Replace a GGUF by its .xz, which is half as long (see recipe.MANTISSA_BITS)."""
    packed = lzma.compress(path.read_bytes(), lzma.FORMAT_XZ, filters=files.FLOAT32_FILTERS)
    path.with_name(path.name + ".xz").write_bytes(packed)
    path.unlink()


def write(names: list[str]) -> int:
    manifest = json.loads(files.MANIFEST.read_text()) if files.MANIFEST.exists() else {}
    rows = manifest.get("families", {})
    for name in names:
        rows[name] = write_family(FAMILIES[name], files.FOLDER)
        print(f"{name}: sensitivity {rows[name]['sensitivity']:.3g}", flush=True)
    versions = {package: importlib.metadata.version(package) for package in PACKAGES}
    ordered = {name: rows[name] for name in FAMILIES if name in rows}
    text = json.dumps({"versions": versions, "families": ordered}, indent=1)
    files.MANIFEST.write_text(text + "\n")
    return 0


def check(names: list[str]) -> int:
    """How many families differ from the committed files."""
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            problem = compare(name, Path(folder))
            bad += bool(problem)
            print(f"{name}: {problem or 'same'}", flush=True)
    return bad


def compare(name: str, folder: Path) -> str:
    """What differs, or nothing."""
    row, old = write_family(FAMILIES[name], folder), files.row(name)
    changed = [
        file
        for file, digest in row["sha256"].items()
        if file.endswith(".gguf") and digest != old["sha256"].get(file)
    ]
    if changed:
        return f"other bytes in {', '.join(changed)}"
    with np.load(folder / f"{name}.npz") as new:
        gap = float(np.abs(new["logits"] - files.golden(name)["logits"]).max())
    return "" if gap <= LOGIT_TOLERANCE else f"logits differ by {gap:.2g}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("families", nargs="*", metavar="FAMILY")
    arguments = parser.parse_args()
    if unknown := set(arguments.families) - set(FAMILIES):
        parser.error(
            f"no such family: {', '.join(sorted(unknown))}; there are {', '.join(FAMILIES)}"
        )
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)  # tiny models; and the order of sums stays the same
    names = arguments.families or list(FAMILIES)
    return check(names) if arguments.check else write(names)


if __name__ == "__main__":
    sys.exit(main())
