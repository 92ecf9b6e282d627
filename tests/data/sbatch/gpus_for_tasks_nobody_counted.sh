#!/bin/bash
#SBATCH --gpus-per-task=2
#SBATCH --ntasks-per-node=4
#SBATCH --time=10
srun ./run
