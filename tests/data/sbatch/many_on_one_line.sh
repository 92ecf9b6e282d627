#!/bin/bash
# A script in the old style: all on one line, a remark behind it.
#SBATCH --nodes 1 --ntasks-per-node 4 --gpus-per-node=4 --cpus-per-task=16 --time 02:00:00   # four ranks
##SBATCH --nodes=64
#SBATCH --comment="two words # and a hash"
echo begin
#SBATCH --nodes=32
srun ./run.sh
