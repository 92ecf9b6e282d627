#!/bin/bash
#SBATCH --nodes=1 --gres=gpu:1 --time=5
#SBATCH --licenses=simulator:2
./simulator
