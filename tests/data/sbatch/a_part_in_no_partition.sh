#!/bin/bash
#SBATCH --nodes=1 --time=10
#SBATCH hetjob
#SBATCH --nodes=1 --partition=nowhere
srun hostname
