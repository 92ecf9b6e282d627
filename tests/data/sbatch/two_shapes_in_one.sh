#!/bin/bash
#SBATCH --job-name=actor-learner
#SBATCH --nodes=1 --ntasks=1 --gres=gpu:8 --time=30
#SBATCH hetjob
#SBATCH --nodes=1 --ntasks=16 --gres=gpu:1
srun --het-group=0 ./learner : --het-group=1 ./actor
