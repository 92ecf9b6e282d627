"""Turn a sharded checkpoint into one safetensors file of the weights alone; standard library only.

    python3 convert.py --checkpoint /ckpt/step-200 --output model.safetensors --dtype bf16

The checkpoint is a step folder or the folder above; of that the newest whole step is taken. The file is written beside
its name and renamed, so a file of this name is always whole. Exit codes: 0 done, 2 bad argument, checkpoint or folder.
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
from array import array
from pathlib import Path

import checkpoint
import model
from checkpoint import BadCheckpointError
from evaluate import step_folder

NAMES = {"f64": "F64", "f32": "F32", "bf16": "BF16"}


def packed(values: array[float], dtype: str) -> bytes:
    """Numbers as little-endian bytes; bfloat16 is rounded to the nearest, ties to even."""
    if dtype == "f64":
        return struct.pack(f"<{len(values)}d", *values)
    single = struct.pack(f"<{len(values)}f", *values)
    if dtype == "f32":
        return single
    words = struct.unpack(f"<{len(values)}I", single)
    return struct.pack(f"<{len(values)}H", *(((w + 0x7FFF + ((w >> 16) & 1)) >> 16) & 0xFFFF for w in words))


def tensors(shape: model.Shape) -> list[tuple[str, list[int], int, int]]:
    """(name, shape, start, end) of each matrix in the flat vector of parameters."""
    hidden_weights, hidden_bias, output_weights, output_bias, total = shape.offsets
    return [
        ("embedding.weight", [shape.vocabulary, model.EMBEDDING], 0, hidden_weights),
        ("hidden.weight", [model.HIDDEN, shape.inputs], hidden_weights, hidden_bias),
        ("hidden.bias", [model.HIDDEN], hidden_bias, output_weights),
        ("output.weight", [shape.vocabulary, model.HIDDEN], output_weights, output_bias),
        ("output.bias", [shape.vocabulary], output_bias, total),
    ]


def vocabulary_of(total: int) -> int:
    """How many characters a model of so many parameters knows. Raises BadCheckpointError where it is none of ours."""
    fixed = model.Shape(0).offsets[-1]
    each = model.Shape(1).offsets[-1] - fixed
    if total <= fixed or (total - fixed) % each:
        raise BadCheckpointError(f"{total} parameters are no model of this kind")
    return (total - fixed) // each


def main() -> int:
    """Convert one checkpoint."""
    parser = argparse.ArgumentParser(description="Turn a sharded checkpoint into one safetensors file.")
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--dtype", choices=sorted(NAMES), default="bf16")
    chosen = parser.parse_args()
    try:
        folder = step_folder(chosen.checkpoint)
        if folder is None:
            raise BadCheckpointError("--checkpoint is empty")
        total = int(checkpoint.read_about(folder).get("parameters", 0))
        about, parameters, _momentum = checkpoint.load(folder, total)
        shape = model.Shape(vocabulary_of(total))
        header: dict[str, object] = {"__metadata__": {"format": "pt", "step": str(about["step"])}}
        body = b""
        for name, sides, start, end in tensors(shape):
            data = packed(parameters[start:end], chosen.dtype)
            header[name] = {
                "dtype": NAMES[chosen.dtype],
                "shape": sides,
                "data_offsets": [len(body), len(body) + len(data)],
            }
            body += data
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        chosen.output.parent.mkdir(parents=True, exist_ok=True)
        temporary = chosen.output.with_name(f".{chosen.output.name}.partial")
        checkpoint.write_durably(temporary, struct.pack("<Q", len(text)) + text + body)
        temporary.replace(chosen.output)
    except (BadCheckpointError, OSError) as error:
        print(f"convert.py: {error}", file=sys.stderr)
        return 2
    size = chosen.output.stat().st_size
    print(f"{folder} at step {about['step']}: {total} parameters as {chosen.dtype}, {size} bytes in {chosen.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
