#!/bin/bash
#SBATCH --ntasks=8
#SBATCH --ntasks-per-gpu=1
#SBATCH --cpus-per-task=4
#SBATCH --time=10
srun ./run
