#!/bin/bash -l
#SBATCH --job-name="야간 학습 '밤'"
#SBATCH --begin=now+1days
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-task=1
#SBATCH --time=8:00:00
#SBATCH --export=ALL,NCCL_DEBUG=INFO,FI_PROVIDER=efa
#SBATCH --get-user-env
srun python night.py
