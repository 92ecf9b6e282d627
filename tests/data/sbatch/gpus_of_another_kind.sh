#!/bin/bash
#SBATCH --gres=gpu:a100:4
#SBATCH --nodes=1
#SBATCH --time=30
nvidia-smi
