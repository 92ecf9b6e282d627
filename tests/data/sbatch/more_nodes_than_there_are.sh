#!/bin/bash
#SBATCH --nodes=64
#SBATCH --gpus-per-node=8
#SBATCH --time=24:00:00
srun ./pretrain
