#!/bin/bash
#SBATCH --job-name=both-ways
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8   # eight of them
#SBATCH --gres=gpu:8
#SBATCH --time=30
srun ./step
