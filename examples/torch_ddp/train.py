"""Train a small character-level transformer with PyTorch DDP, torchrun and distributed checkpoints (DCP).

    torchrun --nnodes=2 --nproc-per-node=2 --rdzv-backend=c10d --rdzv-endpoint=HOST:29500 train.py --steps 200

NCCL where there are GPUs, gloo on CPUs. Rank 0 prints a line of JSON a step. Checkpoints go to step-N folders, whose
`.metadata` DCP writes last. Resumes from $QD_RESUME_FROM (one step folder), else from the newest whole checkpoint.
SIGTERM saves and ends with 143.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

CORPUS = Path(__file__).resolve().parents[1] / "charlm" / "corpus.txt"


class CharTransformer(nn.Module):
    """Two causal layers over `context` characters; logits of shape (batch, context, vocabulary)."""

    def __init__(self, vocabulary: int, context: int, width: int = 64) -> None:
        super().__init__()
        self.characters = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.zeros(context, width))
        layer = nn.TransformerEncoderLayer(width, nhead=4, dim_feedforward=4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(context), persistent=False)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Predict at each place the character that follows it."""
        return self.head(self.layers(self.characters(batch) + self.places, mask=self.mask, is_causal=True))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=8, help="sequences a step and rank")
    parser.add_argument("--context", type=int, default=48, help="characters in a sequence")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--step-seconds", type=float, default=0.0, help="a step takes at least this long")
    parser.add_argument("--save-every", type=int, default=20, help="steps between checkpoints")
    parser.add_argument("--checkpoint-dir", type=Path, help="default: first of $QD_CHECKPOINT_DIR, else ./checkpoints")
    parser.add_argument("--resume", default="auto", help="auto, none, or a step folder")
    parser.add_argument("--seed", type=int, default=7)
    chosen = parser.parse_args()
    for name in ("steps", "batch", "context", "save_every"):
        if getattr(chosen, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be above zero")
    if chosen.checkpoint_dir is None:
        chosen.checkpoint_dir = Path((os.environ.get("QD_CHECKPOINT_DIR") or "checkpoints").split(":")[0])
    return chosen


def whole(folder: Path) -> bool:
    """DCP writes .metadata last and by rename: a folder without it, or with an empty one, is torn."""
    metadata = folder / ".metadata"
    return metadata.is_file() and metadata.stat().st_size > 0 and not (folder / ".metadata.tmp").exists()


def resume_folder(chosen: argparse.Namespace) -> str:
    """The checkpoint to start from, or "" for a fresh start. Raises ValueError for a named folder that is torn."""
    if chosen.resume == "none":
        return ""
    named = chosen.resume if chosen.resume != "auto" else os.environ.get("QD_RESUME_FROM", "")
    if named:
        if not whole(Path(named)):
            raise ValueError(f"{named} is torn or no checkpoint: .metadata is missing or empty")
        return str(named)
    found = [(int(match[1]), path) for path in chosen.checkpoint_dir.glob("step-*") if (match := _numbered(path))]
    return next((str(path) for _, path in sorted(found, reverse=True) if whole(path)), "")


def _numbered(path: Path) -> re.Match[str] | None:
    return re.fullmatch(r"step-(\d+)", path.name)


class Training:
    """One rank's part of the run."""

    def __init__(self, chosen: argparse.Namespace, device: torch.device) -> None:
        self.chosen = chosen
        self.device = device
        raw = CORPUS.read_text()
        characters = sorted(set(raw))
        number = {character: i for i, character in enumerate(characters)}
        self.text = torch.tensor([number[character] for character in raw])
        torch.manual_seed(chosen.seed)
        model = CharTransformer(len(characters), chosen.context).to(device)
        ids = [device.index] if device.type == "cuda" else None
        self.model = DistributedDataParallel(model, device_ids=ids)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=chosen.learning_rate)
        self.step = 0
        self.stop_requested = False

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds; the tensors are the live ones."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": torch.tensor(self.step)}

    def resume(self) -> None:
        """Rank 0 chooses, all load. Raises ValueError on every rank when the named folder must not be used."""
        choice: list[str] = ["", ""]
        if dist.get_rank() == 0:
            try:
                choice[0] = resume_folder(self.chosen)
            except ValueError as error:
                choice[1] = str(error)
        dist.broadcast_object_list(choice, src=0, device=self.device)
        folder, refusal = choice
        if refusal:
            raise ValueError(refusal)
        if folder:
            state = self.state()
            dcp.load(state, checkpoint_id=folder)
            set_state_dict(
                self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
            )
            self.step = int(state["step"])
            print(f"rank {dist.get_rank()}: resumed from {folder} at step {self.step}", flush=True)

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """This rank's sequences of the step, drawn by (seed, step, rank), and the characters that follow."""
        source = torch.Generator().manual_seed((self.chosen.seed * 1_000_003 + self.step) * 65_537 + dist.get_rank())
        context = self.chosen.context
        starts = torch.randint(0, len(self.text) - context - 1, (self.chosen.batch,), generator=source)
        places = starts[:, None] + torch.arange(context)
        return self.text[places].to(self.device), self.text[places + 1].to(self.device)

    def train_step(self) -> tuple[float, float, bool]:
        """One step: mean loss over all ranks, gradient norm, whether any rank must stop."""
        inputs, targets = self.batch()
        logits = self.model(inputs)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.step += 1
        shared = torch.stack([loss.detach(), torch.tensor(float(self.stop_requested), device=self.device)])
        dist.all_reduce(shared)
        return float(shared[0]) / dist.get_world_size(), float(norm), float(shared[1]) > 0

    def save(self) -> None:
        """Write step-N together."""
        folder = self.chosen.checkpoint_dir / f"step-{self.step}"
        if dist.get_rank() == 0:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / ".metadata").unlink(missing_ok=True)  # a save over an older one is torn until it is whole again
        dist.barrier()
        dcp.save(self.state(), checkpoint_id=str(folder))

    def run(self) -> int:
        """Train to the last step; the exit code."""
        chosen = self.chosen
        tokens = chosen.batch * chosen.context * dist.get_world_size()
        while self.step < chosen.steps:
            began = time.monotonic()
            loss, norm, stop = self.train_step()
            time.sleep(max(0.0, chosen.step_seconds - (time.monotonic() - began)))
            spent_s = time.monotonic() - began
            if dist.get_rank() == 0:
                progress = {"step": self.step, "total_steps": chosen.steps, "loss": round(loss, 6)}
                progress |= {"tokens_per_s": round(tokens / spent_s, 1), "learning_rate": chosen.learning_rate}
                progress |= {"grad_norm": round(norm, 4), "eta_s": round((chosen.steps - self.step) * spent_s, 1)}
                print(json.dumps(progress), flush=True)
            if stop or self.step % chosen.save_every == 0 or self.step == chosen.steps:
                self.save()
            if stop and self.step < chosen.steps:
                print(f"rank {dist.get_rank()}: asked to stop; saved", flush=True)
                return 128 + signal.SIGTERM
        return 0


def main() -> int:
    """Exit codes: 0 done, 2 bad arguments or checkpoint, 143 stopped by SIGTERM after saving."""
    chosen = arguments()
    if "LOCAL_RANK" not in os.environ:
        print("train.py: start it with torchrun, which tells each rank its place", file=sys.stderr)
        return 2
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timedelta(minutes=5))
    try:
        training = Training(chosen, device)

        def ask_to_stop(signum: int, frame: FrameType | None) -> None:
            training.stop_requested = True

        signal.signal(signal.SIGTERM, ask_to_stop)
        training.resume()
        return training.run()
    except (ValueError, OSError) as error:
        print(f"train.py: rank {dist.get_rank()}: {error}", file=sys.stderr, flush=True)
        return 2
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # PyTorch's CPU build now and then aborts while the interpreter is taken apart; all is saved, so leave at once.
    os._exit(code)
