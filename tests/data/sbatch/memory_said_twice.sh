#!/bin/bash
#SBATCH --nodes=1
#SBATCH --mem=200G
#SBATCH --mem-per-cpu=4G
#SBATCH --time=10
./run
