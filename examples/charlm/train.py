"""Train a character-level language model on several ranks, with real checkpoints; standard library only.

    srun python3 train.py --steps 200 --save-every 20      # one rank a task, over any number of nodes
    python3 train.py --steps 200 --save-every 20           # on Kubernetes: one rank a pod
    python3 train.py --steps 50                            # one rank, no scheduler

Rank 0 prints a line of JSON a step: {"step", "total_steps", "loss", "tokens_per_s", ...}. SIGTERM saves a checkpoint
and ends with 143. Resumes from $QD_RESUME_FROM (one step folder), else from the newest whole checkpoint. The run is
deterministic: the same seed and number of ranks give the same losses, with or without a stop between.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
import zlib
from array import array
from pathlib import Path
from types import FrameType
from typing import Any

import checkpoint
import model
from checkpoint import BadCheckpointError
from ranks import Group, PeerLostError

HERE = Path(__file__).resolve().parent


def positive(text: str) -> int:
    """A whole number above zero, for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above zero")
    return value


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=positive, default=200)
    parser.add_argument("--batch", type=positive, default=32, help="characters a step, over all ranks")
    parser.add_argument("--learning-rate", type=float, default=0.08)
    parser.add_argument("--step-seconds", type=float, default=0.0, help="a step takes at least this long")
    parser.add_argument("--save-every", type=positive, default=20, help="steps between checkpoints")
    parser.add_argument("--checkpoint-dir", type=Path, help="default: first of $QD_CHECKPOINT_DIR, else ./checkpoints")
    parser.add_argument("--resume", default="auto", help="auto, none, or a step folder")
    parser.add_argument("--corpus", type=Path, default=HERE / "corpus.txt")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--peer-timeout", type=float, default=60.0, help="seconds until a silent rank counts as lost")
    chosen = parser.parse_args()
    if chosen.checkpoint_dir is None:
        chosen.checkpoint_dir = Path((os.environ.get("QD_CHECKPOINT_DIR") or "checkpoints").split(":")[0])
    return chosen


def rank_and_size() -> tuple[int, int]:
    """Which of how many ranks this is, as srun or the pod says; alone without either."""
    if "SLURM_PROCID" in os.environ:
        return int(os.environ["SLURM_PROCID"]), int(os.environ.get("SLURM_NTASKS", "1"))
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def meeting_file() -> Path:
    """A file in the shared working folder that only the ranks of this very start look for."""
    if "SLURM_JOB_ID" not in os.environ and "QD_ATTEMPT" in os.environ:
        return Path(os.environ.get("QD_WORKING_DIRECTORY", ".")) / f".charlm-{os.environ['QD_ATTEMPT']}"
    parts = [os.environ.get(name, "0") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")]
    return Path(f".charlm-{'-'.join(parts)}")


def resume_folder(chosen: argparse.Namespace) -> Path | None:
    """The checkpoint to start from, or None for a fresh start. A folder that is named must be whole."""
    if chosen.resume == "none":
        return None
    named = chosen.resume if chosen.resume != "auto" else os.environ.get("QD_RESUME_FROM", "")
    if named:
        checkpoint.read_about(Path(named))
        return Path(named)
    return checkpoint.newest_whole(chosen.checkpoint_dir)


class Training:
    """One rank's part of the run."""

    def __init__(self, chosen: argparse.Namespace, group: Group) -> None:
        self.chosen = chosen
        self.group = group
        raw = chosen.corpus.read_text()
        characters = sorted(set(raw))
        number = {character: i for i, character in enumerate(characters)}
        self.text = [number[character] for character in raw]
        self.corpus_crc32 = zlib.crc32(raw.encode())
        self.shape = model.Shape(len(characters))
        self.parameters = model.initial_parameters(self.shape, chosen.seed)
        self.momentum = array("d", bytes(8 * len(self.parameters)))
        self.step = 0
        self.stop_requested = False

    def resume(self) -> None:
        """Rank 0 chooses, every rank loads. Raises BadCheckpointError."""
        choice: dict[str, Any] = {"folder": None, "refusal": ""}
        if self.group.rank == 0:
            try:
                folder = resume_folder(self.chosen)
                choice["folder"] = str(folder) if folder else None
            except BadCheckpointError as error:
                choice["refusal"] = str(error)
        choice = self.group.tell(choice)
        if choice["refusal"]:
            raise BadCheckpointError(choice["refusal"])
        if choice["folder"]:
            folder = Path(choice["folder"])
            about, self.parameters, self.momentum = checkpoint.load(folder, len(self.parameters))
            if about["corpus_crc32"] != self.corpus_crc32 or about["seed"] != self.chosen.seed:
                raise BadCheckpointError(f"{folder} was made from another text or seed")
            self.step = int(about["step"])
            self.say(f"resumed from {folder} at step {self.step}")

    def say(self, message: str) -> None:
        """A line for people, marked with the rank."""
        print(f"rank {self.group.rank} of {self.group.size} on {node_name()}: {message}", flush=True)

    def positions(self) -> list[int]:
        """This rank's share of the step's places in the text: a draw by (seed, step), dealt out to the ranks."""
        source = random.Random(self.chosen.seed * 1_000_003 + self.step)  # noqa: S311
        drawn = [source.randrange(model.CONTEXT, len(self.text)) for _ in range(self.chosen.batch)]
        return drawn[self.group.rank :: self.group.size]

    def train_step(self) -> tuple[float, float, bool]:
        """One step on all ranks: mean loss before it (nats a character), gradient norm, whether any rank must stop."""
        loss, gradient = model.loss_and_gradient(self.shape, self.parameters, self.text, self.positions())
        total = self.group.add_up([loss, float(self.stop_requested), *gradient])
        mean = [value / self.chosen.batch for value in total[2:]]
        norm = model.update(self.parameters, self.momentum, mean, self.chosen.learning_rate)
        self.step += 1
        return total[0] / self.chosen.batch, norm, total[1] > 0

    def save(self) -> None:
        """Write a checkpoint together. Raises BadCheckpointError on every rank when one rank cannot write."""
        folder = self.chosen.checkpoint_dir / f"step-{self.step}"
        trouble = ""
        if self.group.rank == 0:
            trouble = self.attempt(lambda: checkpoint.prepare(folder))
        self.agree(trouble, folder)
        group = self.group
        write = lambda: checkpoint.write_shard(folder, group.rank, group.size, self.parameters, self.momentum)  # noqa: E731
        self.agree(self.attempt(write), folder)
        about = {"step": self.step, "seed": self.chosen.seed, "parameters": len(self.parameters)}
        about["corpus_crc32"] = self.corpus_crc32
        if group.rank == 0:
            trouble = self.attempt(lambda: checkpoint.write_metadata(folder, group.size, about))
        self.agree(trouble, folder)
        if group.rank == 0:
            self.say(f"saved {folder}")

    @staticmethod
    def attempt(action: Any) -> str:
        try:
            action()
        except OSError as error:
            return str(error)
        return ""

    def agree(self, trouble: str, folder: Path) -> None:
        """Go on only if no rank is in trouble."""
        troubled = self.group.add_up([1.0 if trouble else 0.0])[0]
        if trouble:
            raise BadCheckpointError(f"cannot save {folder}: {trouble}")
        if troubled:
            raise BadCheckpointError(f"{troubled:.0f} other rank(s) could not save {folder}")

    def run(self) -> int:
        """Train to the last step; the exit code."""
        chosen = self.chosen
        while self.step < chosen.steps:
            began = time.monotonic()
            loss, norm, stop = self.train_step()
            time.sleep(max(0.0, chosen.step_seconds - (time.monotonic() - began)))
            spent_s = time.monotonic() - began
            if self.group.rank == 0:
                progress = {"step": self.step, "total_steps": chosen.steps, "loss": round(loss, 6)}
                progress |= {"tokens_per_s": round(chosen.batch / spent_s, 1), "learning_rate": chosen.learning_rate}
                progress |= {"grad_norm": round(norm, 4), "eta_s": round((chosen.steps - self.step) * spent_s, 1)}
                print(json.dumps(progress), flush=True)
            elif self.step % 10 == 0:
                self.say(f"step {self.step}, {len(self.positions())} characters in {spent_s * 1000:.0f} ms")
            if stop or self.step % chosen.save_every == 0 or self.step == chosen.steps:
                self.save()
            if stop and self.step < chosen.steps:
                self.say("asked to stop; saved")
                return 128 + signal.SIGTERM
        return 0


def node_name() -> str:
    """The node as Slurm calls it, else the machine's own name."""
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename


def main() -> int:
    """Exit codes: 0 done, 1 lost another rank, 2 bad arguments or checkpoint, 143 stopped by SIGTERM after saving."""
    chosen = arguments()
    rank, size = rank_and_size()
    if chosen.batch < size:
        print(f"train.py: --batch {chosen.batch} is less than the number of ranks, {size}", file=sys.stderr)
        return 2
    try:
        group = Group(rank, size, meeting_file(), chosen.peer_timeout)
        training = Training(chosen, group)

        def ask_to_stop(signum: int, frame: FrameType | None) -> None:
            training.stop_requested = True

        signal.signal(signal.SIGTERM, ask_to_stop)
        training.resume()
        return training.run()
    except PeerLostError as error:
        print(f"train.py: rank {rank} of {size} on {node_name()} ends: {error}", file=sys.stderr, flush=True)
        return 1
    except (BadCheckpointError, OSError) as error:
        print(f"train.py: rank {rank}: {error}", file=sys.stderr, flush=True)
        return 2


if __name__ == "__main__":
    sys.exit(main())
