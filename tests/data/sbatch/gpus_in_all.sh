#!/bin/bash
#SBATCH -G 16
#SBATCH --time 120
srun nccl-tests/all_reduce_perf -b 8 -e 2G -f 2 -g 1
