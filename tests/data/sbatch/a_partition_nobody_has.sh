#!/bin/bash
#SBATCH --partition=a100-large
#SBATCH --nodes=1 --gres=gpu:2 --time=10
hostname
