#!/bin/bash
#SBATCH --ntasks=24
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --time=1:00:00
srun python -m pretrain
