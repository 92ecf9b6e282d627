#!/bin/bash
#SBATCH --ntasks=400
#SBATCH --hint=nomultithread
#SBATCH --time=2:00:00
srun ./count
