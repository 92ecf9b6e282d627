#!/bin/bash
#SBATCH --nodes=2-4
#SBATCH --gpus-per-node=8
#SBATCH --ntasks-per-node=8
#SBATCH --time=60
srun python elastic.py
