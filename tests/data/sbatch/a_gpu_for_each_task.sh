#!/bin/bash
#SBATCH --ntasks=16
#SBATCH --gpus-per-task=1
#SBATCH --cpus-per-task=10
#SBATCH --time=00:45:00
srun python -u evaluate.py --shards "$SLURM_NTASKS"
