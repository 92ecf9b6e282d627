"""Loss of a checkpoint on one of several shards of the text, a shard a task of a job array; standard library only.

    python3 evaluate.py --checkpoint /ckpt/step-200 --shard 2 --shards 8
    python3 evaluate.py --shard 0 --shards 4                # without a checkpoint: the untrained model

The checkpoint is a step folder or the folder above; of that the newest whole step is taken. Prints one line of JSON:
{"shard", "shards", "step", "characters", "loss", "bits_per_character"}. Exit codes: 0 done, 2
bad argument or checkpoint.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path

import checkpoint
import model
from checkpoint import BadCheckpointError

HERE = Path(__file__).resolve().parent
#: Places of the text that are looked at together.
CHUNK = 256


def arguments() -> argparse.Namespace:
    """The command line; ends with 2 where it makes no sense."""
    parser = argparse.ArgumentParser(description="Loss of a checkpoint on one shard of the text.")
    parser.add_argument("--checkpoint", default="", help="a step folder or the folder above; empty: untrained")
    parser.add_argument("--shard", type=int, default=0)
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--every", type=int, default=1, help="look at every n-th character only")
    parser.add_argument("--corpus", type=Path, default=HERE / "corpus.txt")
    parser.add_argument("--seed", type=int, default=7)
    chosen = parser.parse_args()
    if chosen.shards < 1 or not 0 <= chosen.shard < chosen.shards or chosen.every < 1:
        parser.error(f"shard {chosen.shard} of {chosen.shards}, every {chosen.every}: shards count from 0")
    return chosen


def step_folder(text: str) -> Path | None:
    """The step to read; None for the untrained model. Raises BadCheckpointError."""
    if not text:
        return None
    folder = Path(text)
    if (folder / ".metadata").is_file():
        return folder
    found = checkpoint.newest_whole(folder)
    if found is None:
        raise BadCheckpointError(f"{folder} holds no whole checkpoint")
    return found


def main() -> int:
    """Evaluate one shard."""
    chosen = arguments()
    try:
        raw = chosen.corpus.read_text()
        characters = sorted(set(raw))
        number = {character: i for i, character in enumerate(characters)}
        text = [number[character] for character in raw]
        shape = model.Shape(len(characters))
        parameters = model.initial_parameters(shape, chosen.seed)
        step = 0
        folder = step_folder(chosen.checkpoint)
        if folder is not None:
            about, parameters, _momentum = checkpoint.load(folder, len(parameters))
            step = int(about["step"])
    except (BadCheckpointError, OSError, ValueError) as error:
        print(f"evaluate.py: {error}", file=sys.stderr)
        return 2
    positions = range(model.CONTEXT, len(text), chosen.every)[chosen.shard :: chosen.shards]
    loss = 0.0
    for start in range(0, len(positions), CHUNK):
        loss += model.loss_and_gradient(shape, parameters, text, list(positions[start : start + CHUNK]))[0]
    mean = loss / max(1, len(positions))
    told = {"shard": chosen.shard, "shards": chosen.shards, "step": step, "characters": len(positions)}
    print(json.dumps({**told, "loss": round(mean, 6), "bits_per_character": round(mean / math.log(2), 6)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
