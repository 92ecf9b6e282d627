#!/bin/bash
#SBATCH --job-name=lr-grid
#SBATCH --array=0-7%2
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=8
#SBATCH --time=20
LRS=(1e-5 2e-5 5e-5 1e-4 2e-4 5e-4 1e-3 2e-3)
python tune.py --lr "${LRS[$SLURM_ARRAY_TASK_ID]}"
