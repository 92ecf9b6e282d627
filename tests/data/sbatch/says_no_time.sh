#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gpus=8
srun ./profile.sh
