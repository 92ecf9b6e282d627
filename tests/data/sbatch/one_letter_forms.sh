#!/usr/bin/env bash
#SBATCH -J sweep.3
#SBATCH -N2
#SBATCH -n 16 --ntasks-per-node=8   # one task a GPU
#SBATCH -c12
#SBATCH --gres=gpu:h100:8
#SBATCH -t 0-12:00
#SBATCH -p gpu -o out.txt -e err.txt
srun ./bench
