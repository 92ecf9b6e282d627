#!/bin/bash
#SBATCH --nodes=1 --time=10 --array=0-3
#SBATCH hetjob
#SBATCH --nodes=1
srun hostname
