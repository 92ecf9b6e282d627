"""Sum a vector over all ranks by TCP and time it: what nccl-tests do, where there is no NCCL; standard library only.

    srun python3 allreduce.py --from-size 8K --to-size 1M --iterations 5

Rank 0 prints a row a size in the columns of nccl-tests: bytes, count, milliseconds, algbw and busbw in GB/s. The
figures are of this program and the network under it, not of GPUs. Exit codes: 0 done, 1 a rank was lost or a
sum was wrong.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from pathlib import Path

from ranks import Group, PeerLostError

UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}


def size_of(text: str) -> int:
    """Bytes of 8K, 1M or a plain number, for argparse."""
    match = re.fullmatch(r"(\d+)([KMG]?)B?", text.upper())
    if not match or int(match[1]) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no size such as 8K")
    return int(match[1]) * UNITS[match[2]]


def main() -> int:
    """Every rank makes the same calls; rank 0 speaks."""
    parser = argparse.ArgumentParser(description="Sum a vector over all ranks by TCP and time it.")
    parser.add_argument("--from-size", type=size_of, default=size_of("8K"))
    parser.add_argument("--to-size", type=size_of, default=size_of("1M"))
    parser.add_argument("--iterations", type=int, default=5)
    chosen = parser.parse_args()
    rank, size = int(os.environ.get("SLURM_PROCID", "0")), int(os.environ.get("SLURM_NTASKS", "1"))
    mark = "-".join(os.environ.get(name, "0") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"))
    try:
        group = Group(rank, size, Path(f".allreduce-{mark}"))
        if rank == 0:
            print(f"# {size} ranks over TCP; not NCCL, and no GPU takes part")
            print("#      bytes      count   time_ms  algbw_GBps  busbw_GBps  wrong")
        wrong = 0
        here = chosen.from_size
        while here <= chosen.to_size:
            count = max(1, here // 8)
            vector = [1.0] * count
            began = time.monotonic()
            for _ in range(max(1, chosen.iterations)):
                total = group.add_up(vector)
            spent_s = (time.monotonic() - began) / max(1, chosen.iterations)
            bad = sum(1 for value in total if value != size)
            wrong += bad
            rate = count * 8 / spent_s / 1e9
            if rank == 0:
                bus = rate * 2 * (size - 1) / size
                print(
                    f"{count * 8:12d} {count:10d} {spent_s * 1000:9.3f} {rate:11.4f} {bus:11.4f} {bad:6d}", flush=True
                )
            here *= 2
        group.close()
    except PeerLostError as error:
        print(f"allreduce.py: rank {rank}: {error}", file=sys.stderr)
        return 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
