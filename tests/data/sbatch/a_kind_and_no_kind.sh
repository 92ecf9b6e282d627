#!/bin/bash
#SBATCH --gres=gpu:h100:4
#SBATCH --gpus=8
#SBATCH --time=10
./run
