#!/bin/sh
#SBATCH -J pre -t 15 -N 1 -n 4 --mem=8G --nice=20
#SBATCH packjob
#SBATCH -n 1 -c 8
#SBATCH packjob   # a third one, as it comes
echo "$SLURM_HET_SIZE"
