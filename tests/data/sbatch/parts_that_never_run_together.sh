#!/bin/bash
#SBATCH --nodes=4 --gpus-per-node=8 --time=10
#SBATCH hetjob
#SBATCH --nodes=1 --gpus-per-node=8
srun hostname
