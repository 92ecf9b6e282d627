#!/bin/bash
#SBATCH -N 1 --gpus-per-node=8 -C "hbm4&liquid"
#SBATCH -t 10
hostname
