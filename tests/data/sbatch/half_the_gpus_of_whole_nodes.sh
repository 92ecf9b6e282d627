#!/bin/bash
#SBATCH -J half-of-it
#SBATCH -N 2
#SBATCH --gres=gpu:h100:4
#SBATCH --exclusive
#SBATCH --wait-all-nodes=1
#SBATCH -t 1:00:00
srun ./warm-up
