#!/bin/bash
#SBATCH --nodes=1 --ntasks=8 --cpus-per-task=4
#SBATCH --mem-per-cpu=2G
#SBATCH --hint=nomultithread
#SBATCH --gres=gpu:4
#SBATCH --time=1-00
srun ./simulate
