#!/bin/bash
#SBATCH --job-name=long-run
#SBATCH --nodes=1
#SBATCH --gres=gpu:8
#SBATCH --time=2-00:00:00
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --dependency=singleton
#SBATCH --mail-type=END,FAIL
#SBATCH --mail-user=nobody@example.org
#SBATCH --nice=100
trap 'scontrol requeue "$SLURM_JOB_ID"' USR1
srun python train.py --resume auto & wait
