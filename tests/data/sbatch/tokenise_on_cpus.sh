#!/bin/bash
#SBATCH --job-name=tokenise
#SBATCH --cpus-per-task=32
#SBATCH --mem=64G
#SBATCH --time=4:00:00
python tokenise.py --workers "$SLURM_CPUS_PER_TASK"
