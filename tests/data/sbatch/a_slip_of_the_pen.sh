#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gpu-per-nodes=8
#SBATCH --time=10
hostname
