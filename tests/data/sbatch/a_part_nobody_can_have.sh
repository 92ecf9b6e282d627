#!/bin/bash
#SBATCH --nodes=1 --gpus-per-node=8 --time=10
#SBATCH hetjob
#SBATCH --nodes=40 --gpus-per-node=8
srun hostname
